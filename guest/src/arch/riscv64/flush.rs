//! Flushes the TLBs of all CPUs. The SBI implementation interrupts the other CPUs (SBI, chapter "RFENCE
//! Extension"), and its call returns when they have flushed.

use crate::arch::handlers;
use core::arch::asm;
use hotmem_guest::signal::other_cpus;
use hotmem_guest::to_usize;
use hotmem_pgtable::riscv64::Format;
use hotmem_pgtable::{Flush, Flusher, VirtRange};
use sbi_rt::HartMask;

/// Flushes the TLBs of all CPUs after changes of page tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushAll;

const PAGE: usize = 4 << 10;
/// The largest number of pages that are flushed one by one.
const MAX_PAGES: usize = 64;

impl Flusher for FlushAll {
    type Format = Format;

    fn flush(&mut self, flush: Flush) {
        let (start, bytes) = (to_usize(flush.range.start()), to_usize(flush.range.bytes().0));
        // With an address, the instruction keeps entries for tables (privileged specification, 12.2.1).
        if flush.tables || bytes > MAX_PAGES * PAGE {
            return flush_all();
        }
        for page in (start..start + bytes).step_by(PAGE) {
            // SAFETY: a flush changes no memory.
            unsafe { asm!("sfence.vma {}, zero", in(reg) page, options(nostack, preserves_flags)) }
        }
        flush_others(start, bytes);
    }

    /// Also flushes the TLBs of the other CPUs, because a CPU may keep that an entry was not valid, and a
    /// fault on its stack would find no stack to be handled on.
    fn publish(&mut self, _: VirtRange) {
        flush_all();
    }
}

/// Flushes the TLBs of all CPUs.
pub(crate) fn flush_all() {
    // SAFETY: a flush changes no memory.
    unsafe { asm!("sfence.vma", options(nostack, preserves_flags)) }
    // This size means all addresses.
    flush_others(0, usize::MAX);
}

/// Flushes addresses in the TLBs of the other CPUs. Ends the run if the SBI implementation cannot do so,
/// because memory that was unmapped would still be accessed.
fn flush_others(start: usize, bytes: usize) {
    if other_cpus() == 0 {
        return;
    }
    let all = HartMask::all();
    // SAFETY: a barrier. The other CPUs must see the changes of page tables before they flush, and the call
    // does not promise that (privileged specification, 12.2.1).
    unsafe { asm!("fence rw, rw", options(nostack, preserves_flags)) }
    if let Some(error) = sbi_rt::remote_sfence_vma(all, start, bytes).err() {
        (handlers::get().give_up)(&format_args!("the SBI flushes no TLBs: {error:?}"))
    }
}

/// Does nothing, because the SBI implementation answers in the CPU's place.
pub(crate) fn answer_flush(_: usize) {}
