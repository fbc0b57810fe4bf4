//! Joins unmapped pages into runs, and passes the runs to the owner.

use crate::entry::Entry;
use crate::format::Format;
use crate::level::{LINE_ENTRIES, Level};
use crate::located::LocatedEntries;
use crate::owner::Owner;
use crate::range::VirtRange;
use crate::run::Run;
use hotmem_addr::Bytes;

/// The run that is being joined. Entries must be added in the order of addresses.
#[derive(Clone, Copy)]
pub(crate) struct RunBuilder<F: Format> {
    /// The start of the run. If the run has no bytes, no run is being joined.
    virt: u64,
    bytes: u64,
    entry: Entry<F>,
    level: Level,
}

impl<F: Format> Default for RunBuilder<F> {
    fn default() -> RunBuilder<F> {
        RunBuilder { virt: 0, bytes: 0, entry: Entry::EMPTY, level: Level::L1 }
    }
}

impl<F: Format> RunBuilder<F> {
    #[inline]
    pub(crate) fn add(&mut self, located: LocatedEntries<&[Entry<F>]>, owner: &mut impl Owner<F>) {
        let LocatedEntries { mut virt, level, entries, .. } = located;
        let page_bytes = level.entry_span().0;
        for line in entries.chunks(LINE_ENTRIES) {
            if self.continues_addresses(virt, level) && self.continues_frames(line, page_bytes) {
                self.bytes += page_bytes * line.len() as u64;
            } else {
                self.add_each(line, virt, level, owner);
            }
            virt = virt.wrapping_add(page_bytes * line.len() as u64);
        }
    }

    /// Returns whether a page of this level at this address follows the run in addresses.
    #[inline]
    fn continues_addresses(&self, virt: u64, level: Level) -> bool {
        self.bytes != 0 && self.virt.wrapping_add(self.bytes) == virt && self.level == level
    }

    /// Returns whether all of these entries follow the run in frames and have its flags. Compares
    /// all entries without a branch for each.
    #[inline]
    fn continues_frames(&self, line: &[Entry<F>], page_bytes: u64) -> bool {
        let mut next = self.entry.bits_after(self.bytes);
        if line.first().is_none_or(|first| first.bits() != next) {
            return false;
        }
        let mut different = 0;
        for entry in line {
            different |= entry.bits() ^ next;
            next = Entry::<F>::from_bits(next).bits_after(page_bytes);
        }
        different == 0 && self.entry.is_present()
    }

    fn add_each(
        &mut self,
        line: &[Entry<F>],
        mut virt: u64,
        level: Level,
        owner: &mut impl Owner<F>,
    ) {
        if !self.continues_addresses(virt, level) {
            self.finish(owner);
        }
        let (page_bytes, mut run) = (level.entry_span().0, *self);
        for &entry in line {
            let next = run.entry.bits_after(run.bytes);
            if run.bytes != 0 && next == entry.bits() && entry.is_present() {
                run.bytes += page_bytes;
            } else {
                run.finish(owner);
                run = RunBuilder { virt, bytes: page_bytes, entry, level };
            }
            virt = virt.wrapping_add(page_bytes);
        }
        *self = run;
    }

    #[inline]
    pub(crate) fn finish(&mut self, owner: &mut impl Owner<F>) {
        let RunBuilder { virt, entry, level, .. } = *self;
        let bytes = Bytes(core::mem::take(&mut self.bytes));
        if bytes != Bytes::ZERO {
            owner.unmapped(Run { virt: VirtRange::of_pages(virt, bytes), entry, level });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::entry::EntryAddr;
    use crate::format::{X86_64, X86Flags as Flags};
    use hotmem_addr::Pfn;

    type Run = super::Run<X86_64>;

    struct Received(Vec<Run>);

    impl Owner<X86_64> for Received {
        fn unmapped(&mut self, run: Run) {
            self.0.push(run);
        }

        fn free_table(&mut self, _: Pfn) {}
    }

    #[test]
    fn a_run_ends_where_flags_frames_or_addresses_do_not_continue() {
        let page = |number: u64, flags| Entry::new(Pfn::new(0x1000 + number).unwrap(), flags);
        let clean = Flags::PRESENT;
        let mut entries: Vec<_> = (0..60).map(|number| page(number, clean)).collect();
        // Pages 13 to 29 are dirty, the frames from page 40 on do not follow the earlier ones, and
        // entries 50 and 51 hold data of the kernel.
        entries[13..30].iter_mut().for_each(|entry| *entry = entry.with(Flags::DIRTY));
        entries.drain(40..43);
        entries[50] = Entry::from_bits(0x6a);
        entries[51] = Entry::from_bits(0x106a);
        let expected = vec![(0, 13), (13, 17), (30, 10), (40, 10), (50, 1), (51, 1), (52, 5)];
        for chunk_len in [57, 1, 7, 8, 9, 16] {
            let (mut run, mut received) = (RunBuilder::default(), Received(Vec::new()));
            for (number, entries) in (0..).step_by(chunk_len).zip(entries.chunks(chunk_len)) {
                let first_addr = EntryAddr::new(Pfn::ZERO, 0);
                run.add(
                    LocatedEntries { virt: number << 12, first_addr, level: Level::L1, entries },
                    &mut received,
                );
            }
            run.finish(&mut received);
            let pages = |run: &Run| (run.virt.start() >> 12, run.virt.bytes().frames());
            assert_eq!(
                received.0.iter().map(pages).collect::<Vec<_>>(),
                expected,
                "cut at {chunk_len}"
            );
            let dirty: Vec<_> = received.0.iter().map(Run::is_dirty).collect();
            assert_eq!(dirty.iter().position(|&dirty| dirty), Some(1));
        }
        // Pages whose addresses are not consecutive are two runs.
        let (mut run, mut received) = (RunBuilder::default(), Received(Vec::new()));
        for (virt, entries) in [(0, &entries[..9]), (0xa000, &entries[9..13])] {
            let first_addr = EntryAddr::new(Pfn::ZERO, 0);
            run.add(LocatedEntries { virt, first_addr, level: Level::L1, entries }, &mut received);
        }
        run.finish(&mut received);
        assert_eq!(received.0.len(), 2);
    }
}
