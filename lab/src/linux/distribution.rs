//! Debian's packages of Linux for an architecture.

use super::{drivers::Drivers, error::Error};
use crate::qemu::Architecture;

/// What differs between the architectures.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Distribution {
    /// The package whose dependency has the kernel.
    pub(super) package: &'static str,
    /// The end of the kernel's release.
    pub(super) flavour: &'static str,
    /// The directory below `target` into which `cargo xtask setup` unpacks the packages.
    pub(super) directory: &'static str,
    /// The kernel's name of the serial console.
    pub(super) console: &'static str,
}

pub(super) const AMD64: Distribution = Distribution {
    package: "linux-image-cloud-amd64",
    flavour: "-cloud-amd64",
    directory: "linux",
    console: "ttyS0",
};

pub(super) const ARM64: Distribution = Distribution {
    package: "linux-image-cloud-arm64",
    flavour: "-cloud-arm64",
    directory: "linux-arm64",
    console: "ttyAMA0",
};

/// Debian's cloud kernels have no drivers of CXL, and Linux 6.1 makes no memory of CXL devices RAM. It does
/// not boot under QEMU 10's TCG, on which DIMMs are measured.
pub(super) const AMD64_CXL: Distribution = Distribution {
    package: "linux-image-6.12-amd64",
    flavour: "deb12-amd64",
    directory: "linux-cxl",
    console: "ttyS0",
};

impl Distribution {
    /// Returns the packages for an architecture on which Linux is a peer.
    pub(super) fn of(
        architecture: Architecture,
        drivers: Drivers,
    ) -> Result<&'static Distribution, Error> {
        match (architecture, drivers) {
            (Architecture::X86_64, Drivers::Cxl | Drivers::Dimms) => Ok(&AMD64_CXL),
            (Architecture::X86_64, _) => Ok(&AMD64),
            (Architecture::Aarch64, _) => Ok(&ARM64),
            (Architecture::Riscv64, _) => Err(Error::NoHotplug(architecture)),
        }
    }
}
