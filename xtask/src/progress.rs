//! Runs a command and shows one line for it. While the command runs, the line shows its last output
//! if standard output is a terminal. If the command fails, all of its output is shown.

use crate::step::spawn;
use std::{
    io::{self, BufRead, BufReader, IsTerminal, Write},
    process::Command,
    time::Instant,
};

/// The width of the line in characters. The line must not wrap, because it is overwritten.
const WIDTH: usize = 78;

/// Runs the command. Prints `title` and the time taken, and the output if the command fails.
/// Returns whether the command succeeded.
pub(crate) fn run(title: &str, command: Command) -> bool {
    let start = Instant::now();
    let is_terminal = io::stdout().is_terminal();
    if !is_terminal {
        println!("== {title}");
    }
    let show = |last: &str| {
        if is_terminal {
            let seconds = start.elapsed().as_secs();
            let line = format!("== {title}: {seconds} s  {}", last.trim());
            // The escape codes move the cursor to the beginning of the line and clear it.
            print!("\r\x1b[K{}", line.chars().take(WIDTH).collect::<String>());
            // If the progress cannot be shown, the command continues.
            let _ = io::stdout().flush();
        }
    };
    show("");
    let (outcome, output) = run_and_show(command, show);
    if is_terminal {
        print!("\r\x1b[K");
    }
    let seconds = start.elapsed().as_secs_f64();
    match outcome {
        Ok(true) => println!("== {title}: {seconds:.0} s"),
        Ok(false) => println!("{output}== {title}: FAILED after {seconds:.0} s"),
        Err(ref error) => println!("== {title}: {error}"),
    }
    outcome.is_ok_and(|succeeded| succeeded)
}

/// Runs the command, and calls `show` with each line of its output. Returns whether the command
/// succeeded, and the output.
fn run_and_show(command: Command, show: impl Fn(&str)) -> (io::Result<bool>, String) {
    let mut output = String::new();
    let run_to_end = || {
        let (mut child, pipe) = spawn(command)?;
        for line in BufReader::new(pipe).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            show(&line);
            output += &line;
            output.push('\n');
        }
        Ok(child.wait()?.success())
    };
    (run_to_end(), output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn output_and_errors_of_a_command_stay_in_order() {
        let lines = RefCell::new(Vec::new());
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo one; echo two >&2; printf three; exit 3"]);
        let (outcome, output) =
            run_and_show(shell, |line| lines.borrow_mut().push(line.to_owned()));
        assert!(!outcome.unwrap());
        assert_eq!(output, "one\ntwo\nthree\n");
        assert_eq!(lines.into_inner(), ["one", "two", "three"]);
    }

    #[test]
    fn a_program_that_fails_or_is_missing_is_a_failure() {
        assert!(run("true", Command::new("true")));
        assert!(!run("false", Command::new("false")));
        assert!(!run("nothing", Command::new("/nowhere/program")));
    }
}
