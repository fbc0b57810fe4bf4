//! QEMU's pseries machine with the guest of [`hotmem-guest-pseries`] or Linux. QEMU's monitor adds
//! and removes DIMMs. The reference guest prints an event for each request.
//!
//! [`Config`] describes a machine, [`Vm`] is a running machine, and [`watch`] is `hotmem vm --arch
//! pseries`.
//!
//! [`hotmem-guest-pseries`]: https://github.com/hotmem/hotmem/tree/main/guest-pseries

mod config;
mod event;
mod linux;
mod monitor;
mod vm;
pub mod watch;

pub use config::{Config, Dimm, SLOTS};
pub use event::{Event, RequestEnd};
pub use linux::LinuxGuest;
pub use monitor::{HostEvent, PluggedDimm};
pub use vm::{Removal, Vm};
