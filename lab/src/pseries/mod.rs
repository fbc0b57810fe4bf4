//! QEMU's pseries machine with the guest of [`hotmem-guest-pseries`], controlled from this process:
//! QEMU's monitor adds and removes DIMMs, and the guest prints an event for each change.
//!
//! [`Config`] describes a machine, [`Vm`] is a running one, and [`watch`] is `hotmem vm --arch
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
pub use event::{Done, Event};
pub use linux::LinuxGuest;
pub use monitor::{HostEvent, Plugged};
pub use vm::{Removal, Vm};
