//! Where the stacks of the CPUs other than the first one lie. The page below a stack is not mapped, so
//! that an overflow does not change other memory.

use core::ops::Range;
use hotmem_directmap::PAGE_BYTES;

/// The pages of a CPU: those of its stack, and the one below.
const PAGES_PER_CPU: u64 = 1 + STACK_BYTES / PAGE_BYTES;
const STACK_BYTES: u64 = 32 << 10;

/// Returns the pages of a CPU's stack, numbered from the start of the window. The CPU starts at the end
/// of the last page.
pub(crate) fn pages(cpu: usize) -> Range<u64> {
    cpu as u64 * PAGES_PER_CPU..(cpu as u64 + 1) * PAGES_PER_CPU
}

/// Returns whether the page is one below a stack.
pub(crate) fn is_guard_page(page: u64) -> bool {
    page.is_multiple_of(PAGES_PER_CPU)
}
