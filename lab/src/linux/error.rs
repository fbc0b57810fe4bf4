//! The errors of preparing a Linux guest.

use crate::qemu::Architecture;
use std::{io, path::PathBuf};

/// The reason why no Linux guest could be prepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The packages of this name for an architecture, and BusyBox, are not installed.
    #[error(
        "no Linux for {0} to compare with: `cargo xtask setup` fetches it (Debian's packages {1} and \
         busybox-static)"
    )]
    NotInstalled(Architecture, &'static str),
    /// Linux has no memory hotplug on the machine.
    #[error(
        "QEMU's machine for {0} has no virtio-mem device, so that Linux has no memory hotplug there"
    )]
    NoHotplug(Architecture),
    /// A file of the packages is missing.
    #[error("the packages for Linux are incomplete: no {}", .0.display())]
    Missing(PathBuf),
    /// A file cannot be read.
    #[error("reading {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The initramfs cannot be made.
    #[error("making an initramfs")]
    Initramfs(#[source] io::Error),
}
