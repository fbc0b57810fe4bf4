//! Counts the instructions of one function of this test program. valgrind runs the program again in
//! a child process, in which a variable of the environment tells the test what to do.

use std::process::{Command, Stdio};

/// Returns whether valgrind is installed. If it is not, says that the test is skipped.
pub(crate) fn can_count() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    let is_installed = version.is_ok_and(|status| status.success());
    if !is_installed {
        eprintln!("skipped: valgrind is not installed");
    }
    is_installed
}

/// Runs `test` under valgrind, with the environment variable `name` set to `value`. Returns the
/// number of instructions of all calls of `function`.
pub(crate) fn instructions(test: &str, function: &str, (name, value): (&str, &str)) -> f64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(name, value)
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    let count = messages
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .expect("valgrind prints a line `Collected`")
        .1;
    count.trim().parse().unwrap()
}
