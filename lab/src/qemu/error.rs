//! Errors of virtual machines.

use super::emulator::PROGRAM;
use crate::size::about;
use hotmem::Bytes;
use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// The reason why a virtual machine could not be started or controlled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such program on this machine.
    #[error("{} not found: `cargo xtask setup` installs it (Debian: qemu-system-x86, qemu-system-ppc)", .0.display())]
    NoQemu(PathBuf),
    /// QEMU could not be run.
    #[error("could not start {PROGRAM}")]
    Start(#[source] io::Error),
    /// The host has too little memory for the memory that the guest would touch.
    #[error("this needs {} of the host's memory and {} are available", about(*.need), about(*.available))]
    HostMemory {
        /// The memory that the guest and QEMU need, with the memory that is touched.
        need: Bytes,
        /// The memory that the host has available without swapping.
        available: Bytes,
    },
    /// The guest's image is not there.
    #[error("no guest image at {}", .0.display())]
    NoImage(PathBuf),
    /// The guest's image could not be built.
    #[error("could not build the guest: {0}")]
    Build(String),
    /// QEMU ended by itself, before the guest gave its verdict.
    #[error("QEMU ended ({status}) before {what}{said}")]
    Ended {
        /// The event that QEMU ended before.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// The last output of QEMU and the guest.
        said: Tail,
    },
    /// An expected event of the guest did not come in time.
    #[error("the guest hangs: no {what} after {} s{said}", after.as_secs())]
    Hang {
        /// The expected event.
        what: String,
        /// The time that was waited.
        after: Duration,
        /// The last output of the guest.
        said: Tail,
    },
    /// The guest gave up.
    #[error("the guest gave up: {0}")]
    BailOut(String),
    /// The guest ran to its end and reported a failure.
    #[error("the guest reports a failure{}", .0.as_ref().map(|t| format!(": {t}")).unwrap_or_default())]
    Failed(Option<String>),
    /// The guest's last line and QEMU's exit status do not agree.
    #[error("the guest reported success and QEMU ended with {0}")]
    Status(ExitStatus),
    /// A line that begins like an event, but cannot be parsed.
    #[error("garbled event `{line}` from the guest")]
    Garbled {
        /// The line.
        line: String,
        /// The error.
        #[source]
        source: serde_json::Error,
    },
    /// QEMU refused a command.
    #[error("QEMU refuses `{command}`: {reason}")]
    Refused {
        /// The command, as in QEMU's reference manual.
        command: String,
        /// The reason that QEMU gave.
        reason: String,
    },
    /// The connection to QEMU's monitor broke.
    #[error("QEMU's monitor does not answer")]
    Monitor(#[source] io::Error),
}

/// The last lines of output, with which an error message ends.
#[derive(Debug, Default, Clone)]
pub struct Tail(pub Vec<String>);

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; last words:")?;
        self.0.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}
