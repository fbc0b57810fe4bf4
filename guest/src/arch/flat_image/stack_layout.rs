//! Where the stacks lie. The pages below a stack are not mapped, so that an overflow faults, and so that
//! the handler of the fault can tell from the stack pointer that the stack is full: below the stack, the
//! pointer's bit [`SHIFT`] is clear.

use core::ops::Range;
use hotmem_directmap::PAGE_BYTES;

/// A stack begins at an odd multiple of its size, 2^`SHIFT` bytes. The even multiple below is not mapped.
pub(in crate::arch) const SHIFT: u32 = 16;
/// The size of a stack.
pub(in crate::arch) const BYTES: u64 = 1 << SHIFT;
const PAGES: u64 = BYTES / PAGE_BYTES;
/// The pages of a CPU other than the first one: those of its stack, and those below.
const PAGES_PER_CPU: u64 = 2 * PAGES;

/// Returns the pages of a CPU's stack, numbered from the start of the window. The CPU starts at the end
/// of the last page.
pub(crate) fn pages(cpu: usize) -> Range<u64> {
    cpu as u64 * PAGES_PER_CPU..(cpu as u64 + 1) * PAGES_PER_CPU
}

/// Returns whether the page is one below a stack.
pub(crate) fn is_guard_page(page: u64) -> bool {
    page % PAGES_PER_CPU < PAGES
}
