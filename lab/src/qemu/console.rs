//! The guest's serial console, which is read continuously.

use super::error::Tail;
use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// The number of lines that [`Console::tail`] returns.
const TAIL_LINES: usize = 12;

/// The lines of a console. Each has the time at which the end of the line arrived.
pub(crate) struct Console {
    lines: Receiver<(Instant, String)>,
    tail: VecDeque<String>,
}

/// The reason why [`Console::next`] returns no line.
pub(crate) enum NoLine {
    /// No line arrived in time.
    Timeout,
    /// The source has ended, so no more lines arrive.
    Closed,
}

impl Console {
    /// Starts a thread that reads `source` to its end.
    pub(crate) fn new(source: impl Read + Send + 'static) -> Console {
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while source.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let now = Instant::now();
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send((now, text)).is_err() {
                    break;
                }
                line.clear();
            }
        });
        Console { lines, tail: VecDeque::new() }
    }

    /// Returns the next line if it arrives within `patience`. If `patience` is zero, only a line
    /// that has already arrived is returned.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<(Instant, String), NoLine> {
        let (time, line) = self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoLine::Timeout,
            RecvTimeoutError::Disconnected => NoLine::Closed,
        })?;
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line.clone());
        Ok((time, line))
    }

    /// Returns the lines that were read last.
    pub(crate) fn tail(&self) -> Tail {
        Tail(self.tail.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience;

    #[test]
    fn all_lines_of_the_source_are_returned() {
        let mut console = Console::new(&b"one\r\ntwo\nunfini"[..]);
        let mut lines = Vec::new();
        let end = loop {
            match console.next(patience()) {
                Ok((_, line)) => lines.push(line),
                Err(end) => break end,
            }
        };
        assert_eq!(lines, ["one", "two", "unfini"]);
        assert!(matches!(end, NoLine::Closed));
        assert_eq!(console.tail().0, lines);
    }

    #[test]
    fn the_tail_has_the_last_12_lines() {
        let text: String = (0..100).map(|n| format!("{n}\n")).collect();
        let mut console = Console::new(std::io::Cursor::new(text));
        while console.next(patience()).is_ok() {}
        assert_eq!(console.tail().0.len(), TAIL_LINES);
        assert_eq!(console.tail().0.last().map(String::as_str), Some("99"));
    }
}
