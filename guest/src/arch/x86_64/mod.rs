//! x86-64: entered by PVH in 32-bit mode, or by Linux's boot protocol in 64-bit mode. Interrupts come by
//! 8259s, by messages to the local APIC, or both.

mod clock;
mod console;
mod cpu32;
mod cpu_number;
mod entry;
mod exit;
mod flush;
pub(crate) mod image;
pub(crate) mod interrupts;
mod io_port;
mod lapic;
mod layout;
mod machine_check;
pub(crate) mod mmio;
mod next_kernel;
pub(crate) mod paging;
mod pic;
mod pit;
mod smp;
pub(crate) mod stack_layout;
mod task_state;
mod trap;
mod vectors;

pub(crate) use clock::{Clock, Stopwatch};
pub(crate) use console::Console;
pub(crate) use cpu_number::cpu_number;
pub(crate) use exit::exit;
pub(crate) use flush::{FlushAll, answer_flush, flush_all};
pub(crate) use io_port::IoPort;
pub(crate) use lapic::ApicId as MessageTarget;
pub(crate) use layout::LAYOUT;
pub(crate) use machine_check::take_bad_frame;
pub(crate) use next_kernel::NextKernel;
pub(crate) use smp::start_others;
pub(crate) use trap::handle_nmis;
pub(crate) use vectors::{MESSAGES, Message};

use super::handlers::{self, Handlers};
use core::ptr::NonNull;
use hotmem::PfnRange;
use hotmem_guest::device_tree::DeviceTree;
use lapic::LocalApic;

/// Handles exceptions and interrupts of the first CPU from now on.
pub(crate) fn start_first_cpu(handlers: &'static Handlers) {
    handlers::set(handlers);
    cpu_number::set(0);
    trap::load();
    machine_check::enable();
    pic::remap();
    pic::unmask(pit::IRQ);
    ::x86_64::instructions::interrupts::enable();
}

/// Finds the local APIC, if there is one. `map` maps registers, given their physical address and size.
/// There is no other controller, and none needs memory.
pub(crate) fn open_interrupts<E>(
    _: Option<&DeviceTree<'_>>,
    map: impl FnMut(u64, u64) -> Result<NonNull<u8>, E>,
    _: fn(u32) -> Option<PfnRange>,
) -> Result<(), E> {
    if let Some(apic) = LocalApic::open(map)? {
        apic.pass_on_pic_interrupts_and_nmis();
    }
    Ok(())
}

/// Makes a timer interrupt the first CPU `per_second` times a second: the 8254 if it can interrupt,
/// and otherwise the timer of the local APIC, after [`open_interrupts`]. Returns whether there is
/// a timer.
pub(crate) fn tick_at(per_second: u32) -> bool {
    pic::exists() && pit::tick_at(per_second) || lapic::tick_at(per_second)
}
