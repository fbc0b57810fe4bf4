//! Flushes the TLBs of all CPUs.

use super::lapic;
use super::vectors;
use hotmem_guest::signal::{Signal, other_cpus};
use hotmem_pgtable::x86_64::Format;
use hotmem_pgtable::{Flush, Flusher, VirtRange};
use x86_64::instructions::tlb;

/// The request to the other CPUs to flush their TLBs.
static FLUSH: Signal = Signal::new();

/// Flushes the TLBs of all CPUs after changes of page tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushAll;

impl Flusher for FlushAll {
    type Format = Format;

    fn flush(&mut self, _: Flush) {
        flush_all();
    }

    #[inline]
    fn publish(&mut self, _: VirtRange) {}
}

/// Flushes the TLBs of all CPUs. Interrupts the other CPUs, so that each flushes its own TLB.
pub(crate) fn flush_all() {
    tlb::flush_all();
    if other_cpus() > 0 {
        let round = FLUSH.begin();
        lapic::interrupt_others(vectors::FLUSH);
        FLUSH.wait(round);
    }
}

/// Flushes the TLB of the calling CPU, if another CPU has requested this.
pub(crate) fn answer_flush(cpu: usize) {
    FLUSH.answer(cpu, tlb::flush_all);
}
