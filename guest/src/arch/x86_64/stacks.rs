//! Gives each CPU other than the first one its stacks, in a window.
//!
//! A CPU has two stacks: one for NMIs, which may arrive however full the other one is, and one for
//! everything else. The page below a stack is not mapped, so an overflow faults.

use super::flush::FlushAll;
use super::image::STACK_BYTES;
use super::paging::supported;
use crate::kernel::limits::MAX_CPUS;
use crate::kernel::memory::{AddressSpace, alloc_frames};
use crate::kernel::take_once::TakeOnce;
use core::fmt;
use hotmem::{AllocError, AllocRequest};
use hotmem_directmap::{Attributes, PAGE_BYTES, Window, WindowError};
use hotmem_guest::tables::FrameTables;
use hotmem_guest::to_usize;
use hotmem_pgtable::x86_64::{Batch, Format};

/// The start of the window.
const BASE: u64 = 0xffff_f100_0000_0000;
/// The size of a stack for NMIs.
pub(crate) const NMI_STACK_BYTES: u64 = 8 << 10;
/// The pages of a CPU: those of the stack for NMIs, those of the other stack, and one below each.
const PAGES_PER_CPU: u64 = 1 + NMI_STACK_PAGES + 1 + STACK_BYTES / PAGE_BYTES;
const NMI_STACK_PAGES: u64 = NMI_STACK_BYTES / PAGE_BYTES;

/// The batch of the window, which [`Stacks::open`] takes.
static BATCH: TakeOnce<Batch> = TakeOnce::new(Batch::new());

/// The window in which the stacks are mapped.
pub(crate) struct Stacks(Window<'static, FrameTables, FlushAll>);

/// The reason why a CPU gets no stacks.
pub(crate) enum StackError {
    Memory(AllocError),
    Window(WindowError<Format>),
}

impl Stacks {
    /// Opens the window. Ends the run at the second call.
    pub(crate) fn open(space: &AddressSpace) -> Self {
        Stacks(space.window(BASE, BATCH.take()))
    }

    /// Maps the stacks of a CPU. Returns the end of the stack on which it starts.
    pub(crate) fn add(&mut self, cpu: usize) -> Result<usize, StackError> {
        let pages = (cpu as u64 * PAGES_PER_CPU)..((cpu as u64 + 1) * PAGES_PER_CPU);
        // The CPU pushes to the stacks when it cannot handle a fault, so the pages are ready for use.
        let attributes = supported(Attributes::KERNEL_DATA);
        for page in pages.clone().filter(|&page| !is_guard_page(page)) {
            let frame = alloc_frames(AllocRequest::frames(1)).map_err(StackError::Memory)?;
            let new_table = || Some(alloc_frames(AllocRequest::frames(1)).ok()?.start());
            let mapped = self.0.map(page, frame.start(), attributes, new_table);
            mapped.map_err(StackError::Window)?;
        }
        Ok(to_usize(BASE + pages.end * PAGE_BYTES))
    }
}

/// Returns the end of the stack for NMIs of a CPU other than the first one.
pub(crate) fn nmi_stack_end(cpu: usize) -> u64 {
    BASE + (cpu as u64 * PAGES_PER_CPU + 1 + NMI_STACK_PAGES) * PAGE_BYTES
}

/// Returns whether `addr` lies in the page below a stack of this module.
pub(crate) fn is_guard(addr: u64) -> bool {
    let page = addr.wrapping_sub(BASE) / PAGE_BYTES;
    page < MAX_CPUS as u64 * PAGES_PER_CPU && is_guard_page(page)
}

fn is_guard_page(page: u64) -> bool {
    [0, 1 + NMI_STACK_PAGES].contains(&(page % PAGES_PER_CPU))
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StackError::Memory(error) => error.fmt(f),
            StackError::Window(error) => error.fmt(f),
        }
    }
}
