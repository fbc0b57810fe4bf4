//! Virtual machines under QEMU, controlled from this process.
//!
//! [`Config`] describes a machine with devices of memory, and [`Vm`] is a running machine of any kind.
//! QEMU's standard input is its monitor (a socket), and its standard output is the guest's serial console
//! (a pipe), so no files have to be deleted afterwards. QEMU is killed when the `Vm` is dropped or this process ends.

pub mod accel;
mod boot;
mod command;
mod commands;
mod config;
mod console;
mod cxl;
mod emulator;
mod error;
mod event;
pub mod host;
pub mod image;
mod jump;
mod kvm_cpu;
mod monitor;
mod process;
mod reconfigurable_cxl;
mod report;
mod vm;

pub(crate) use boot::Boot;
pub use boot::Launch;
pub use commands::CommandSocket;
pub use config::{Accel, Balloon, Config, Transport};
pub use cxl::{Cxl, CxlDevice, CxlKind, CxlWindow};
pub use emulator::{Architecture, Emulator};
pub use error::{Error, Tail};
pub use event::{
    Dax, Event, Features, Figure, GuestTime, MarkedOperation, Race, RequestEnd, Zone, ZoneName,
};
pub use monitor::HostEvent;
pub use report::Report;
pub use vm::{CxlMemory, Dimm, Extent, ExtentChange, Observation, Reconfigured, Resize, Vm};
