//! Where the stacks of the CPUs other than the first one lie. A CPU has two stacks: one for NMIs, which
//! may arrive however full the other one is, and one for everything else. The page below a stack is not
//! mapped, so an overflow faults.

use super::image::STACK_BYTES;
use super::layout::LAYOUT;
use core::ops::Range;
use hotmem_directmap::PAGE_BYTES;
use hotmem_guest::limits::MAX_CPUS;

/// The size of a stack for NMIs.
pub(super) const NMI_STACK_BYTES: u64 = 8 << 10;
/// The pages of a CPU: those of the stack for NMIs, those of the other stack, and one below each.
const PAGES_PER_CPU: u64 = 1 + NMI_STACK_PAGES + 1 + STACK_BYTES / PAGE_BYTES;
const NMI_STACK_PAGES: u64 = NMI_STACK_BYTES / PAGE_BYTES;

/// Returns the pages of a CPU's stacks, numbered from [`LAYOUT`]'s `stacks` on. The CPU starts at the end of
/// the last page.
pub(crate) fn pages(cpu: usize) -> Range<u64> {
    cpu as u64 * PAGES_PER_CPU..(cpu as u64 + 1) * PAGES_PER_CPU
}

/// Returns whether the page is one below a stack.
pub(crate) fn is_guard_page(page: u64) -> bool {
    [0, 1 + NMI_STACK_PAGES].contains(&(page % PAGES_PER_CPU))
}

/// Returns the end of the stack for NMIs of a CPU other than the first one.
pub(super) fn nmi_stack_end(cpu: usize) -> u64 {
    LAYOUT.stacks + (cpu as u64 * PAGES_PER_CPU + 1 + NMI_STACK_PAGES) * PAGE_BYTES
}

/// Returns whether `addr` lies in a page below a stack.
pub(super) fn is_guard(addr: u64) -> bool {
    let page = addr.wrapping_sub(LAYOUT.stacks) / PAGE_BYTES;
    page < MAX_CPUS as u64 * PAGES_PER_CPU && is_guard_page(page)
}
