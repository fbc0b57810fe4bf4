//! A virtual machine under QEMU with virtio-mem devices, controlled from this process.
//!
//! [`Config`] describes a machine, and [`Vm`] is a running machine. QEMU's standard input is its
//! monitor (a socket), and its standard output is the guest's serial console (a pipe), so no files
//! have to be deleted afterwards. QEMU is killed when the `Vm` is dropped or this process ends.

pub mod accel;
mod boot;
mod config;
mod console;
mod emulator;
mod error;
pub mod host;
pub mod image;
mod kvm_cpu;
mod monitor;
mod process;
mod report;
mod vm;

pub use config::{Accel, Balloon, Config, Transport};
pub use emulator::Emulator;
pub use error::Error;
pub(crate) use process::die_with_parent;
pub use report::{Event, Report, Zone, ZoneName};
pub use vm::{Dimm, Observation, Resize, Vm};

/// Parts that machines of other architectures use, too.
pub(crate) mod raw {
    pub(crate) use super::boot::Boot;
    pub(crate) use super::console::{Console, NoLine};
    pub(crate) use super::process::Qemu;
}
