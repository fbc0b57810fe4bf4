//! Asks before a task changes the host, if somebody sits at a terminal.

use std::io::{self, BufRead, IsTerminal, Write};

/// Returns whether these commands may be run. Without a terminal, as in CI, they may.
pub(crate) fn may_run(commands: &[String]) -> bool {
    let is_seen = io::stdin().is_terminal() && io::stdout().is_terminal();
    !is_seen || commands.is_empty() || ask(commands, io::stdin().lock(), io::stdout())
}

/// Asks, and returns the answer. Without an answer it is no.
fn ask(commands: &[String], mut input: impl BufRead, mut out: impl Write) -> bool {
    let question = format!("This task needs: {}\nRun it now? [Y/n] ", commands.join("; "));
    let is_asked = out.write_all(question.as_bytes()).and_then(|()| out.flush()).is_ok();
    let mut answer = String::new();
    let is_answered = input.read_line(&mut answer).is_ok_and(|bytes| bytes > 0);
    let is_yes = matches!(answer.trim(), "" | "y" | "Y" | "yes");
    is_asked && is_answered && is_yes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_can_agree() {
        let commands = ["rustup target add x".to_owned(), "apt-get install y".to_owned()];
        for (answer, is_yes) in [
            ("\n", true),
            ("y\n", true),
            ("yes\n", true),
            ("n\n", false),
            ("no\n", false),
            ("", false),
        ] {
            let mut question = Vec::new();
            assert_eq!(ask(&commands, answer.as_bytes(), &mut question), is_yes, "{answer:?}");
            let question = String::from_utf8(question).unwrap();
            assert!(question.contains("rustup target add x; apt-get install y\n"), "{question}");
        }
    }
}
