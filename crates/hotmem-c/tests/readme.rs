//! Runs the commands of the README, which build the library and run the example, and compares what the
//! example prints with the README.

use std::path::Path;
use std::process::{Command, Stdio};

const README: &str = include_str!("../README.md");

/// Returns the code blocks of the README in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let start = format!("```{language}\n");
    let after_starts = README.split(&start).skip(1);
    after_starts.filter_map(|rest| rest.split("```").next()).collect()
}

/// Runs lines of the shell in the root of the repository. Returns what they print.
fn output_of(lines: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", lines]).current_dir(root).stderr(Stdio::inherit());
    let output = shell.output().expect("the shell is installed");
    assert!(output.status.success(), "{}:\n{lines}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_commands_of_the_readme_print_what_it_says() {
    let commands = blocks("sh");
    assert_eq!(commands.len(), 2, "one block builds the library, and one installs it");
    let printed = blocks("text");
    for block in commands {
        assert_eq!(output_of(block), printed[0], "{block}");
    }
}

#[test]
fn pkg_config_and_the_crate_have_the_same_version() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).display();
    let version = output_of(&format!("PKG_CONFIG_PATH={directory} pkg-config --modversion hotmem"));
    assert_eq!(version.trim_end(), env!("CARGO_PKG_VERSION"));
}
