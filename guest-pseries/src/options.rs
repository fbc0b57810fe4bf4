//! Reads the kernel's command line, which consists of words `hotmem.key=value`.

use crate::faults::Fault;
use core::fmt;
use hotmem::{Bytes, OnlineType};
use hotmem_dlpar::Version;

/// The options of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The version of the device tree's property that lists the LMBs.
    pub version: Version,
    /// Whether the kernel supports events that name LMBs. Without this support QEMU reports only
    /// the number of added LMBs, and cannot request removals.
    pub events: bool,
    /// Whether an event that names one LMB by a count of 1 and a first connector is changed into an
    /// event that names the LMB by the connector's index.
    pub by_index: bool,
    /// How added memory is put online.
    pub online: OnlineType,
    /// The amount of memory to fill with patterns after each addition.
    pub touch: Bytes,
    /// The interval, in additions, at which a frame of the added memory is pinned. The frame is
    /// unpinned after a removal was refused because of it. If this is 0, no frames are pinned.
    pub pin: u32,
    /// The number of times that the kernel vetoes onlining.
    pub veto: u32,
    /// The number of LMBs that one poll of a request handles.
    pub at_once: u32,
    /// The wrong answer of the firmware to inject, if any.
    pub fault: Option<Fault>,
    /// The time in milliseconds after which a waiting request is cancelled.
    pub patience_ms: u32,
    /// Whether the kernel uses more stack than it has, which ends the run.
    pub overflow: bool,
    /// The number of requests after which the machine is switched off; 0 for never.
    pub exit: u32,
}

/// The reason why the command line is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionError<'a> {
    /// The command line is not UTF-8.
    Text,
    /// A key is unknown. Contains the word.
    Key(&'a str),
    /// A value is missing or invalid. Contains the word.
    Value(&'a str),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            version: Version::V2,
            events: true,
            by_index: false,
            online: OnlineType::Movable,
            touch: Bytes::ZERO,
            pin: 0,
            veto: 0,
            at_once: 16,
            fault: None,
            patience_ms: 10_000,
            overflow: false,
            exit: 0,
        }
    }
}

impl Options {
    /// Reads a command line. Words that do not begin with `hotmem.` are ignored.
    ///
    /// # Errors
    /// [`OptionError`] names the first invalid word.
    pub fn parse(line: &[u8]) -> Result<Options, OptionError<'_>> {
        let line = core::str::from_utf8(line).map_err(|_| OptionError::Text)?;
        let mut options = Options::default();
        for word in line.split_ascii_whitespace() {
            let Some(option) = word.strip_prefix("hotmem.") else { continue };
            let (key, value) = option.split_once('=').ok_or(OptionError::Value(word))?;
            let invalid = OptionError::Value(word);
            let number = || value.parse().map_err(|_| invalid);
            match key {
                "version" => {
                    options.version = match value {
                        "1" => Version::V1,
                        "2" => Version::V2,
                        _ => return Err(invalid),
                    }
                }
                "events" => options.events = switch(value).ok_or(invalid)?,
                "by_index" => options.by_index = switch(value).ok_or(invalid)?,
                "online" => {
                    options.online = match value {
                        "movable" => OnlineType::Movable,
                        "kernel" => OnlineType::Kernel,
                        "offline" => OnlineType::Offline,
                        _ => return Err(invalid),
                    }
                }
                "touch" => options.touch = Bytes(value.parse().map_err(|_| invalid)?),
                "pin" => options.pin = number()?,
                "veto" => options.veto = number()?,
                "at_once" => options.at_once = number()?,
                "fault" => options.fault = Some(Fault::parse(value).ok_or(invalid)?),
                "patience" => options.patience_ms = number()?,
                "overflow" => options.overflow = switch(value).ok_or(invalid)?,
                "exit" => options.exit = number()?,
                _ => return Err(OptionError::Key(word)),
            }
        }
        Ok(options)
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

impl fmt::Display for OptionError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::Text => f.write_str("the command line is not UTF-8"),
            OptionError::Key(word) => write!(f, "`{word}`: unknown option"),
            OptionError::Value(word) => write!(f, "`{word}`: invalid value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let line = b"quiet hotmem.version=1 hotmem.events=off hotmem.touch=4096 hotmem.pin=3 \
                     hotmem.online=kernel hotmem.by_index=on hotmem.at_once=1 hotmem.exit=7 hotmem.veto=2 \
                     hotmem.fault=isolate:1+:-2 hotmem.patience=5 hotmem.overflow=on";
        let options = Options {
            version: Version::V1,
            events: false,
            by_index: true,
            online: OnlineType::Kernel,
            touch: Bytes(4096),
            pin: 3,
            veto: 2,
            at_once: 1,
            fault: Fault::parse("isolate:1+:-2"),
            patience_ms: 5,
            overflow: true,
            exit: 7,
        };
        assert_eq!(Options::parse(line), Ok(options));
        assert_eq!(Options::parse(b" root=/dev/sda "), Ok(Options::default()));
    }

    #[test]
    fn invalid_options_are_refused() {
        let error = |line: &'static [u8]| Options::parse(line).unwrap_err();
        assert_eq!(error(b"\xff"), OptionError::Text);
        assert_eq!(error(b"hotmem.nothing=1"), OptionError::Key("hotmem.nothing=1"));
        for word in [
            "hotmem.pin=x",
            "hotmem.pin",
            "hotmem.events=1",
            "hotmem.version=3",
            "hotmem.fault=isolate",
        ] {
            assert_eq!(error(word.as_bytes()), OptionError::Value(word));
        }
    }
}
