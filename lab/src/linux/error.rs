//! Errors of preparing Linux to boot.

use std::{io, path::PathBuf};

/// The reason why there is no Linux to boot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The packages are not installed.
    #[error(
        "no Linux to compare with: `cargo xtask setup` fetches it \
         (Debian: apt-get install linux-image-cloud-amd64 busybox-static)"
    )]
    NotInstalled,
    /// A part of the packages.
    #[error("the Linux kernel's package is incomplete: no {}", .0.display())]
    Missing(PathBuf),
    /// A file that cannot be read.
    #[error("reading {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The initramfs cannot be made.
    #[error("making an initramfs")]
    Initramfs(#[source] io::Error),
}
