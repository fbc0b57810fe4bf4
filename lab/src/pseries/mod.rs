//! QEMU's pseries machine with the guest of [`hotmem-guest-pseries`], driven from outside: DIMMs
//! are added and removed by the monitor, and the guest says what it makes of them.
//!
//! [`Config`] is the machine, [`Vm`] is it while it runs; [`watch`] is `hotmem vm --arch pseries`.
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
