//! Maps the stacks of the CPUs other than the first one, in a window. The page below a stack is not
//! mapped, so an overflow faults.

use super::memory::{AddressSpace, alloc_frames};
use super::take_once::TakeOnce;
use crate::arch::{FlushAll, LAYOUT, paging, stack_layout};
use core::fmt;
use hotmem::{AllocError, AllocRequest};
use hotmem_directmap::{Attributes, PAGE_BYTES, Window, WindowError};
use hotmem_guest::tables::FrameTables;
use hotmem_guest::to_usize;
use hotmem_pgtable::target::{Batch, Format};

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
        Stacks(space.window(LAYOUT.stacks, BATCH.take()))
    }

    /// Maps the stacks of a CPU. Returns the end of the stack on which it starts.
    pub(crate) fn add(&mut self, cpu: usize) -> Result<usize, StackError> {
        let pages = stack_layout::pages(cpu);
        // The CPU pushes to the stacks when it cannot handle a fault, so the pages are ready for use.
        let attributes = paging::supported(Attributes::KERNEL_DATA);
        for page in pages.clone().filter(|&page| !stack_layout::is_guard_page(page)) {
            let frame = alloc_frames(AllocRequest::frames(1)).map_err(StackError::Memory)?;
            let new_table = || Some(alloc_frames(AllocRequest::frames(1)).ok()?.start());
            let mapped = self.0.map(page, frame.start(), attributes, new_table);
            mapped.map_err(StackError::Window)?;
        }
        Ok(to_usize(LAYOUT.stacks + pages.end * PAGE_BYTES))
    }
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StackError::Memory(error) => error.fmt(f),
            StackError::Window(error) => error.fmt(f),
        }
    }
}
