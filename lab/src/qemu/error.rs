//! Errors of virtual machines.

use crate::size::approximate;
use hotmem::Bytes;
use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// The reason why a virtual machine could not be started or controlled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// QEMU's program is not installed.
    #[error("{} not found: `cargo xtask setup` installs it (Debian: qemu-system-x86, qemu-system-arm, qemu-system-ppc)", .0.display())]
    NoQemu(PathBuf),
    /// QEMU could not be run.
    #[error("could not start QEMU")]
    Start(#[source] io::Error),
    /// The host has less available memory than the guest would access.
    #[error(
        "this needs {} of the host's memory and {} are available",
        approximate(*.needed),
        approximate(*.available)
    )]
    HostMemory {
        /// The memory that the guest would access, and QEMU's own memory.
        needed: Bytes,
        /// The memory that the host has available without swapping.
        available: Bytes,
    },
    /// There is no file at the path of the guest's image.
    #[error("no guest image at {}", .0.display())]
    NoImage(PathBuf),
    /// The guest's image could not be built.
    #[error("could not build the guest: {0}")]
    Build(String),
    /// QEMU ended before an event that was waited for.
    #[error("QEMU ended ({status}) before {awaited}{output}")]
    Ended {
        /// The event that was waited for.
        awaited: String,
        /// QEMU's exit status.
        status: ExitStatus,
        /// The last output of QEMU and the guest.
        output: Tail,
    },
    /// An event of the guest did not occur in time.
    #[error("the guest hangs: no {awaited} after {} s{output}", wait.as_secs())]
    Hang {
        /// The event that was waited for.
        awaited: String,
        /// The length of the wait.
        wait: Duration,
        /// The last output of the guest.
        output: Tail,
    },
    /// The guest ended its tests early, for this reason (TAP: `Bail out!`).
    #[error("the guest gave up: {0}")]
    BailOut(String),
    /// The guest has run all its tests and reported that a test failed.
    #[error("the guest reports a failure{}", .0.as_ref().map(|t| format!(": {t}")).unwrap_or_default())]
    Failed(Option<String>),
    /// The guest's last line and QEMU's exit status do not agree.
    #[error("the guest reported success and QEMU ended with {0}")]
    Status(ExitStatus),
    /// A line that begins like an event cannot be parsed.
    #[error("the guest's event `{line}` cannot be parsed")]
    Garbled {
        /// The line.
        line: String,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// QEMU refused a command.
    #[error("QEMU refuses `{command}`: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// The reason that QEMU gave.
        reason: String,
    },
    /// The guest refused a command.
    #[error("the guest refuses `{command}`: {reason}")]
    GuestRefused {
        /// The command.
        command: String,
        /// The reason that the guest gave.
        reason: String,
    },
    /// The machine has no connection by which the guest takes commands.
    #[error("the guest takes no commands")]
    NoCommands,
    /// The connection by which the guest takes commands broke.
    #[error("the connection for commands broke")]
    Commands(#[source] io::Error),
    /// The connection to QEMU's monitor broke.
    #[error("QEMU's monitor does not answer")]
    Monitor(#[source] io::Error),
}

/// The last lines of output, which an error message quotes.
#[derive(Debug, Default, Clone)]
pub struct Tail(pub Vec<String>);

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; last output:")?;
        self.0.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}
