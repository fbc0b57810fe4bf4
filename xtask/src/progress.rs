//! Runs a command whose output is condensed to one line. On a terminal the line shows the last
//! output while the command runs. The output is shown in full if the command fails.

use std::{
    io::{self, BufRead, BufReader, IsTerminal, Write},
    process::{Command, Stdio},
    time::Instant,
};

/// The width of the line, which must not wrap because it is overwritten.
const WIDTH: usize = 78;

/// Runs the command. Prints `what` and the time that it took, and the output if it fails. Returns
/// whether it succeeded.
pub(crate) fn run(what: &str, command: &mut Command) -> bool {
    let start = Instant::now();
    let is_terminal = io::stdout().is_terminal();
    if !is_terminal {
        println!("== {what}");
    }
    let show = |last: &str| {
        if is_terminal {
            let seconds = start.elapsed().as_secs();
            let line = format!("== {what}: {seconds} s  {}", last.trim());
            // The codes return to the beginning of the line and clear it.
            print!("\r\x1b[K{}", line.chars().take(WIDTH).collect::<String>());
            // An error of the output must not end the command.
            let _ = io::stdout().flush();
        }
    };
    show("");
    let (outcome, said) = watch(command, show);
    if is_terminal {
        print!("\r\x1b[K");
    }
    let seconds = start.elapsed().as_secs_f64();
    match outcome {
        Ok(true) => println!("== {what}: {seconds:.0} s"),
        Ok(false) => println!("{said}== {what}: FAILED after {seconds:.0} s"),
        Err(ref error) => println!("== {what}: {error}"),
    }
    outcome.is_ok_and(|succeeded| succeeded)
}

/// Runs the command. Returns whether it succeeded, and its output.
fn watch(command: &mut Command, show: impl Fn(&str)) -> (io::Result<bool>, String) {
    let mut said = String::new();
    let mut all = || {
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn()?;
        // `command` holds the writing end of the pipe. Reading does not end while that is open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        for line in BufReader::new(reader).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            show(&line);
            said += &line;
            said.push('\n');
        }
        Ok(child.wait()?.success())
    };
    (all(), said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn output_of_a_command_is_kept_in_order() {
        let lines = RefCell::new(Vec::new());
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo one; echo two >&2; printf three; exit 3"]);
        let (outcome, said) = watch(&mut shell, |line| lines.borrow_mut().push(line.to_owned()));
        assert!(!outcome.unwrap());
        assert_eq!(said, "one\ntwo\nthree\n");
        assert_eq!(lines.into_inner(), ["one", "two", "three"]);
    }

    #[test]
    fn success_and_absence_are_told_apart() {
        assert!(run("true", &mut Command::new("true")));
        assert!(!run("false", &mut Command::new("false")));
        assert!(!run("nothing", &mut Command::new("/nowhere/program")));
    }
}
