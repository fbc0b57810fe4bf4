//! QEMU's pseries machine with the guest of [`hotmem-guest-pseries`] or Linux. QEMU's monitor adds
//! and removes DIMMs. The reference guest prints an event for each request.
//!
//! [`Config`] describes a machine, and [`Vm`] is a running machine.
//!
//! [`hotmem-guest-pseries`]: https://github.com/hotmem/hotmem/tree/main/guest-pseries

mod config;
mod dimms;
mod linux;

pub use crate::qemu::{Event, HostEvent, RequestEnd, Vm};
pub use config::{Config, Dimm, SLOTS};
pub use dimms::{PluggedDimm, Removal};
pub use linux::LinuxGuest;
