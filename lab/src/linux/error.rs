//! The errors of preparing a Linux guest.

use std::{io, path::PathBuf};

/// The reason why no Linux guest could be prepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The packages are not installed.
    #[error(
        "no Linux to compare with: `cargo xtask setup` fetches it \
         (Debian: apt-get install linux-image-cloud-amd64 busybox-static)"
    )]
    NotInstalled,
    /// A file of the packages is missing.
    #[error("the Linux kernel's package is incomplete: no {}", .0.display())]
    Missing(PathBuf),
    /// A file cannot be read.
    #[error("reading {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The initramfs cannot be made.
    #[error("making an initramfs")]
    Initramfs(#[source] io::Error),
}
