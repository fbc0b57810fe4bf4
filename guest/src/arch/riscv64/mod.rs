//! riscv64: entered in S-mode by an SBI implementation, with a hart ID and the address of a device tree,
//! as Linux is. The page tables are those of Sv39, which every hart with a larger mode has, too
//! (privileged specification, 12.1.11), or with the feature `sv48` those of Sv48.

mod clock;
mod console;
mod cpu_number;
mod entry;
mod firmware_cpus;
mod flush;
pub(crate) mod interrupts;
mod layout;
pub(crate) mod mmio;
pub(crate) mod paging;
mod plic;
mod power;
mod timer;
mod trap;

pub(crate) use super::flat_image::{
    IoPort, NextKernel, handle_nmis, image, stack_layout, take_bad_frame,
};
pub(crate) use clock::{Clock, Stopwatch};
pub(crate) use console::Console;
pub(crate) use cpu_number::cpu_number;
pub(crate) use firmware_cpus::start_others;
pub(crate) use flush::{FlushAll, answer_flush, flush_all};
pub(crate) use interrupts::{MESSAGES, Message, MessageTarget, open_interrupts};
pub(crate) use layout::LAYOUT;
pub(crate) use power::exit;
pub(crate) use timer::tick_at;

use super::handlers::{self, Handlers};

/// The name of the architecture.
pub(super) const NAME: &str = "riscv64";

/// Handles exceptions of the first CPU from now on. The boot code has set up everything else.
pub(crate) fn start_first_cpu(handlers: &'static Handlers) {
    handlers::set(handlers);
}
