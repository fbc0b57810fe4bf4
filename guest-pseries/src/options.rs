//! The kernel's command line: words `hotmem.key=value`.

use crate::faults::Fault;
use core::fmt;
use hotmem::{Bytes, OnlineType};
use hotmem_dlpar::Version;

/// What the kernel is told to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The version of the property with the LMBs.
    pub version: Version,
    /// Whether it takes events that say which LMBs; else QEMU says only how many are added, and
    /// cannot ask for any back.
    pub events: bool,
    /// Whether a request for a single LMB from some connector on is replayed as one by index.
    pub by_index: bool,
    /// What added memory is online for.
    pub online: OnlineType,
    /// Memory that is filled with patterns whenever some was added.
    pub touch: Bytes,
    /// Every this many additions, a frame of them is pinned until its removal was refused; 0:
    /// never.
    pub pin: u32,
    /// This many ranges are kept from coming online by the kernel's veto.
    pub veto: u32,
    /// LMBs that one poll of a request works on.
    pub at_once: u32,
    /// A call of the firmware that is answered wrongly.
    pub fault: Option<Fault>,
    /// Milliseconds that a request may wait for one thing before it is cancelled.
    pub patience: u32,
    /// Requests after which the machine is switched off; 0: never.
    pub exit: u32,
}

/// A word that is not understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionError<'a> {
    /// The command line is not a text.
    Text,
    /// There is no such key.
    Key(&'a str),
    /// Its value makes no sense.
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
            patience: 10_000,
            exit: 0,
        }
    }
}

impl Options {
    /// Reads a command line. Words that do not begin with `hotmem.` are somebody else's.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse(line: &[u8]) -> Result<Options, OptionError<'_>> {
        let line = core::str::from_utf8(line).map_err(|_| OptionError::Text)?;
        let mut options = Options::default();
        for word in line.split_ascii_whitespace() {
            let Some(option) = word.strip_prefix("hotmem.") else { continue };
            let (key, value) = option.split_once('=').ok_or(OptionError::Value(word))?;
            let wrong = OptionError::Value(word);
            let number = || value.parse().map_err(|_| wrong);
            match key {
                "version" => {
                    options.version = match value {
                        "1" => Version::V1,
                        "2" => Version::V2,
                        _ => return Err(wrong),
                    }
                }
                "events" => options.events = switch(value).ok_or(wrong)?,
                "by_index" => options.by_index = switch(value).ok_or(wrong)?,
                "online" => {
                    options.online = match value {
                        "movable" => OnlineType::Movable,
                        "kernel" => OnlineType::Kernel,
                        "offline" => OnlineType::Offline,
                        _ => return Err(wrong),
                    }
                }
                "touch" => options.touch = Bytes(value.parse().map_err(|_| wrong)?),
                "pin" => options.pin = number()?,
                "veto" => options.veto = number()?,
                "at_once" => options.at_once = number()?,
                "fault" => options.fault = Some(Fault::parse(value).ok_or(wrong)?),
                "patience" => options.patience = number()?,
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
            OptionError::Text => f.write_str("the command line is not a text"),
            OptionError::Key(word) => write!(f, "`{word}`: there is no such option"),
            OptionError::Value(word) => write!(f, "`{word}`: the value makes no sense"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_done() {
        let line = b"quiet hotmem.version=1 hotmem.events=off hotmem.touch=4096 hotmem.pin=3 \
                     hotmem.online=kernel hotmem.by_index=on hotmem.at_once=1 hotmem.exit=7 hotmem.veto=2 \
                     hotmem.fault=isolate:1+:-2 hotmem.patience=5";
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
            patience: 5,
            exit: 7,
        };
        assert_eq!(Options::parse(line), Ok(options));
        assert_eq!(Options::parse(b" root=/dev/sda "), Ok(Options::default()));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
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
