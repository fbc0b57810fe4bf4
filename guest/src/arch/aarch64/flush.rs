//! Flushes the TLBs of all CPUs. The CPUs do this together, without an interrupt (Arm ARM, D8.16).

use core::arch::asm;
use hotmem_pgtable::aarch64::Format;
use hotmem_pgtable::{Flush, Flusher, VirtRange};

/// Flushes the TLBs of all CPUs after changes of page tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushAll;

const PAGE: u64 = 4 << 10;
/// The largest number of pages that are flushed one by one.
const MAX_PAGES: u64 = 64;

impl Flusher for FlushAll {
    type Format = Format;

    fn flush(&mut self, flush: Flush) {
        let pages = flush.range.bytes().0 / PAGE;
        if pages > MAX_PAGES {
            return flush_all();
        }
        // SAFETY: a flush changes no memory. The instruction also flushes entries for tables.
        unsafe {
            asm!("dsb ishst", options(nostack, preserves_flags));
            for page in 0..pages {
                let number = (flush.range.start() / PAGE + page) & ((1 << 44) - 1);
                asm!("tlbi vaae1is, {}", in(reg) number, options(nostack, preserves_flags));
            }
            asm!("dsb ish", "isb", options(nostack, preserves_flags));
        }
    }

    #[inline]
    fn publish(&mut self, _: VirtRange) {
        // SAFETY: barriers.
        unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) }
    }
}

/// Flushes the TLBs of all CPUs.
pub(crate) fn flush_all() {
    // SAFETY: a flush changes no memory.
    unsafe {
        asm!("dsb ishst", "tlbi vmalle1is", "dsb ish", "isb", options(nostack, preserves_flags));
    }
}

/// Does nothing, because no CPU has to answer.
pub(crate) fn answer_flush(_: usize) {}
