//! aarch64: entered in EL1 or EL2 with the address of a device tree, as Linux is. The kernel needs a
//! GICv3.

mod clock;
mod console;
mod cpu_number;
mod entry;
mod firmware_cpus;
mod flush;
mod gic;
pub(crate) mod interrupts;
mod its;
mod layout;
mod mask;
mod messages;
pub(crate) mod mmio;
pub(crate) mod paging;
mod power;
mod trap;

pub(crate) use super::flat_image::{
    IoPort, NextKernel, handle_nmis, image, stack_layout, take_bad_frame,
};
pub(crate) use clock::{Clock, Stopwatch};
pub(crate) use console::Console;
pub(crate) use cpu_number::cpu_number;
pub(crate) use firmware_cpus::start_others;
pub(crate) use flush::{FlushAll, answer_flush, flush_all};
pub(crate) use gic::{open_interrupts, tick_at};
pub(crate) use its::MessageTarget;
pub(crate) use layout::LAYOUT;
pub(crate) use messages::{MESSAGES, Message};
pub(crate) use power::exit;

use super::handlers::{self, Handlers};

/// The name of the architecture.
pub(super) const NAME: &str = "aarch64";

/// Handles exceptions of the first CPU from now on. The boot code has set up everything else.
pub(crate) fn start_first_cpu(handlers: &'static Handlers) {
    handlers::set(handlers);
}
