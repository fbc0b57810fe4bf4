//! Reads the commands that a running kernel takes from its second serial port, one on each line.
//!
//! | line | command |
//! |---|---|
//! | `list` | report the memory of each CXL device and NVDIMM |
//! | `system-ram N [TYPE]` | make memory N RAM, and put it online; TYPE is a value of `hotmem.online` |
//! | `devdax N [force]` | make memory N device memory again; `force`: take it offline before |
//! | `touch` | fill memory with patterns, as after memory was plugged |
//! | `end` | end the run |

use crate::cmdline::Online;
use core::fmt;

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Report the memory of each CXL device and NVDIMM.
    List,
    /// Make device memory RAM.
    ToRam {
        /// The number of the memory.
        number: usize,
        /// How it is put online.
        online: Online,
    },
    /// Make RAM device memory again.
    ToDevice {
        /// The number of the memory.
        number: usize,
        /// Whether memory that is online is taken offline before.
        force: bool,
    },
    /// Fill memory with patterns.
    Touch,
    /// End the run.
    End,
}

/// The reason why a line is no command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// The line is longer than [`MAX_LINE`], or not UTF-8.
    Line,
    /// The first word is no command.
    Unknown,
    /// The number of the memory is missing, or no number.
    Number,
    /// A word after the number is not one of the command's words.
    Option,
    /// There are more words than the command has.
    TooManyWords,
}

/// The maximal length of a line in bytes.
pub const MAX_LINE: usize = 80;

impl Command {
    /// Reads a line.
    ///
    /// # Errors
    /// [`CommandError`]
    pub fn parse(line: &[u8]) -> Result<Command, CommandError> {
        let text = core::str::from_utf8(line).map_err(|_| CommandError::Line)?;
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let number = |word: Option<&str>| {
            word.and_then(|word| word.parse().ok()).ok_or(CommandError::Number)
        };
        let command = match name {
            "list" => Command::List,
            "touch" => Command::Touch,
            "end" => Command::End,
            "system-ram" => {
                let number = number(words.next())?;
                let online = words.next().map_or(Some(Online::Movable), Online::parse);
                Command::ToRam { number, online: online.ok_or(CommandError::Option)? }
            }
            "devdax" => {
                let number = number(words.next())?;
                let force = match words.next() {
                    None => false,
                    Some("force") => true,
                    Some(_) => return Err(CommandError::Option),
                };
                Command::ToDevice { number, force }
            }
            _ => return Err(CommandError::Unknown),
        };
        if words.next().is_some() { Err(CommandError::TooManyWords) } else { Ok(command) }
    }
}

/// Collects the bytes of lines.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: [u8; MAX_LINE],
    /// The length of the line so far, which may be greater than the buffer's.
    len: usize,
}

impl LineBuffer {
    /// Makes an empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        LineBuffer { bytes: [0; MAX_LINE], len: 0 }
    }

    /// Adds a byte. Returns the command if the byte ends a line. Empty lines are skipped.
    pub fn push(&mut self, byte: u8) -> Option<Result<Command, CommandError>> {
        if byte != b'\n' {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
            }
            self.len = self.len.saturating_add(1);
            return None;
        }
        let len = core::mem::take(&mut self.len);
        match self.bytes.get(..len) {
            Some(line) if line.trim_ascii().is_empty() => None,
            Some(line) => Some(Command::parse(line)),
            None => Some(Err(CommandError::Line)),
        }
    }
}

impl Default for LineBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl core::error::Error for CommandError {}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommandError::Line => "the line is too long, or not UTF-8",
            CommandError::Unknown => "the command is unknown",
            CommandError::Number => "the command needs the number of a memory",
            CommandError::Option => "the command has no such option",
            CommandError::TooManyWords => "the line has too many words",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(bytes: &[u8]) -> Vec<Result<Command, CommandError>> {
        let mut buffer = LineBuffer::new();
        bytes.iter().filter_map(|&byte| buffer.push(byte)).collect()
    }

    #[test]
    fn each_line_is_a_command() {
        let text = b"list\n\nsystem-ram 3\r\nsystem-ram 0 offline\ndevdax 1\ndevdax 2 force\ntouch\nend\nli";
        let (movable, offline) = (Online::Movable, Online::Offline);
        let expected = [
            Command::List,
            Command::ToRam { number: 3, online: movable },
            Command::ToRam { number: 0, online: offline },
            Command::ToDevice { number: 1, force: false },
            Command::ToDevice { number: 2, force: true },
            Command::Touch,
            Command::End,
        ];
        assert_eq!(lines(text), expected.map(Ok));
    }

    #[test]
    fn what_is_no_command_is_refused_with_a_reason() {
        for (line, reason) in [
            ("lists", CommandError::Unknown),
            ("devdax", CommandError::Number),
            ("devdax -1", CommandError::Number),
            ("devdax 1 now", CommandError::Option),
            ("system-ram 0 movable", CommandError::Option),
            ("list 1", CommandError::TooManyWords),
            ("devdax 1 force 2", CommandError::TooManyWords),
        ] {
            assert_eq!(Command::parse(line.as_bytes()), Err(reason), "{line}");
        }
        assert_eq!(lines(b"li\xffst\n"), [Err(CommandError::Line)]);
        let long = [&[b'x'; MAX_LINE + 1][..], b"\nend\n"].concat();
        assert_eq!(lines(&long), [Err(CommandError::Line), Ok(Command::End)]);
    }

    proptest! {
        #[test]
        fn a_line_ends_each_command_whatever_came_before(bytes: Vec<u8>) {
            let mut bytes = bytes;
            bytes.extend(b"\nend\n");
            let commands = lines(&bytes);
            prop_assert_eq!(commands.last(), Some(&Ok(Command::End)));
        }
    }
}
