//! Changes the page tables of a processor without a hypervisor, by atomic exchanges.

use crate::batch::Batch;
use crate::entry::{ENTRIES, Entry, EntryAddr, Flags};
use crate::located::LocatedEntry;
use crate::mmu::{BatchError, Change, Flush, Mmu, Table};
use crate::range::VirtRange;
use crate::space::Space;
use crate::sync::{AtomicU64, Ordering, fence};
use core::fmt;
use hotmem_addr::{Bytes, Pfn};
use hotmem_invariant::OrRecordViolation;

/// Gives access to the kernel's page tables.
pub trait Tables {
    /// Returns the table in this frame, or `None` if the kernel has no table in it.
    fn table(&self, frame: Pfn) -> Option<&Table>;
}

/// Flushes TLBs by instructions and interrupts of the kernel.
pub trait Flusher {
    /// Flushes all TLBs. Returns when they are flushed, and when all page walks that the kernel was
    /// making without a lock have ended.
    fn flush(&mut self, flush: Flush);
}

impl<F: FnMut(Flush)> Flusher for F {
    fn flush(&mut self, flush: Flush) {
        self(flush);
    }
}

/// The MMU of a processor without a hypervisor's help.
///
/// An entry in which a processor may still set Accessed or Dirty is changed by an atomic exchange.
/// If both bits are set, no bit can be lost, and a plain store is enough: processors set the bits
/// by locked cycles (SDM volume 3, 9.1.2.1), which find the entry either unchanged or not present.
///
/// All accesses are `Relaxed`, because the result of an exchange depends only on the one word.
/// Since every processor takes part in a flush, the flush orders the processors' accesses to pages
/// before what the kernel does with the pages after it. A `SeqCst` fence before the flush makes the
/// cleared entries visible before any processor flushes.
#[derive(Debug)]
pub struct Native<T, F> {
    tables: T,
    flusher: F,
    split: Split,
}

/// How the entry of a large page is replaced by an entry that points to a table, while processors
/// use the page.
///
/// A TLB may cache translations of both page sizes for one address, as long as they agree. If they
/// differ in the frame or in the permissions, the processor may use either (SDM volume 3, 4.10.2.3
/// and 4.10.4.2). So the large page is flushed before any entry of the table is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Split {
    /// The entry is cleared, the TLBs are flushed, and then the entry is made to point to the
    /// table. So no TLB ever caches both page sizes. A processor that accesses the page meanwhile
    /// faults. The kernel's fault handler waits for the lock that the caller holds (see [`Mmu`]),
    /// finds the page present, and returns.
    #[default]
    ClearFirst,
    /// The entry is made to point to the table at once, and then the TLBs are flushed. No access
    /// faults, so this is for memory that the fault handler, the flush or the tables themselves
    /// need, such as a kernel's direct map. Until the flush, TLBs may cache both page sizes, which
    /// agree.
    InPlace,
}

/// The reason why [`Native`] has not changed page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NativeFault {
    /// The kernel has no table in this frame.
    NotATable(Pfn),
    /// The entry is not a large page.
    NotLarge(Entry),
}

impl<T: Tables, F: Flusher> Native<T, F> {
    /// Creates the MMU. `tables` gives access to the page tables, and `flusher` flushes the
    /// TLBs. Large pages are split [`ClearFirst`](Split::ClearFirst).
    pub const fn new(tables: T, flusher: F) -> Self {
        Native { tables, flusher, split: Split::ClearFirst }
    }

    /// Sets how large pages are split.
    #[must_use]
    pub fn with_split(self, split: Split) -> Self {
        Native { split, ..self }
    }

    /// Returns the arguments of [`new`](Self::new): the tables and the flusher.
    pub fn into_parts(self) -> (T, F) {
        (self.tables, self.flusher)
    }

    /// Clears each entry of the batch by `clear`, which returns the previous value. Also clears the
    /// copies of these entries in the user's root.
    fn clear_each(
        &self,
        batch: &mut Batch,
        clear: impl Fn(&AtomicU64, Entry) -> Entry,
    ) -> Result<(), BatchError<NativeFault>> {
        let (mut entries_done, roots) = (0, batch.roots());
        for located in batch.entry_runs_mut() {
            let words = self
                .words_from(located.first_addr)
                .map_err(|fault| BatchError { entries_done, fault })?;
            if let Some(addr) = roots.user_copy(located.first_addr) {
                let copies =
                    self.words_from(addr).map_err(|fault| BatchError { entries_done, fault })?;
                let copies = copies.iter().take(located.entries.len());
                copies.for_each(|copy| copy.store(0, Ordering::Relaxed));
            }
            entries_done += located.entries.len();
            for (word, entry) in words.iter().zip(located.entries) {
                *entry = clear(word, *entry);
            }
        }
        Ok(())
    }

    /// Returns the words of a table from the entry at `addr` to the end of the table.
    fn words_from(&self, addr: EntryAddr) -> Result<&[AtomicU64], NativeFault> {
        let frame = addr.table();
        let table = self.tables.table(frame).ok_or(NativeFault::NotATable(frame))?;
        Ok(&table[addr.index()..])
    }
}

impl<T: Tables, F: Flusher> Mmu for Native<T, F> {
    type Fault = NativeFault;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.table(frame)
    }

    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<NativeFault>> {
        self.clear_each(batch, |word, entry| {
            if entry.has_final_flags() {
                word.store(0, Ordering::Relaxed);
                return entry;
            }
            Entry::from_bits(word.swap(0, Ordering::Relaxed))
        })
    }

    fn clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<NativeFault>> {
        self.clear_each(batch, |word, entry| {
            word.store(0, Ordering::Relaxed);
            entry
        })
    }

    /// Clears the entries by plain stores: no processor uses them any more, so the values that were
    /// read are final.
    fn get_and_clear_full(&mut self, batch: &mut Batch) -> Result<(), BatchError<NativeFault>> {
        self.clear(batch)
    }

    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), BatchError<NativeFault>> {
        let mut entries_done = 0;
        for located in batch.entry_runs() {
            let words = self
                .words_from(located.first_addr)
                .map_err(|fault| BatchError { entries_done, fault })?;
            entries_done += located.entries.len();
            for (word, entry) in words.iter().zip(located.entries) {
                if entry.has_final_flags() {
                    word.store(change.apply(*entry).bits(), Ordering::Relaxed);
                    continue;
                }
                let changed = |bits| Some(change.apply(Entry::from_bits(bits)).bits());
                // The update succeeds, because `changed` always returns `Some`.
                word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed)
                    .or_record_violation();
            }
        }
        Ok(())
    }

    fn split(&mut self, located: &LocatedEntry, table: Pfn) -> Result<(), NativeFault> {
        let Native { tables, flusher, split } = self;
        let is_large = located.entry.flags().contains(Flags::LARGE);
        let first_part = located.entry.part(located.level, 0).filter(|_| is_large);
        let first_part = first_part.ok_or(NativeFault::NotLarge(located.entry))?;
        let table_in = |frame| tables.table(frame).ok_or(NativeFault::NotATable(frame));
        let (parts, word) =
            (table_in(table)?, &table_in(located.addr.table())?[located.addr.index()]);
        let page_bytes = located.level.entry_span();
        let part_bytes = page_bytes.0 / ENTRIES as u64;
        let fill = |used: Flags| {
            let mut bits = first_part.with(used).bits();
            for word in parts {
                word.store(bits, Ordering::Relaxed);
                bits = bits.wrapping_add(part_bytes);
            }
        };
        let flush = Flush { range: VirtRange::around(located.virt, page_bytes), tables: false };
        let link = Entry::link(table).bits();
        let used_flags = |before| Entry::from_bits(before).flags() & Flags::ACCESSED_DIRTY;
        match split {
            Split::ClearFirst => {
                let before = word.swap(0, Ordering::Relaxed);
                flush_all(flusher, flush);
                fill(used_flags(before));
                // Release pairs with the dependent reads of the page walk, which so finds the
                // entries of the table.
                word.store(link, Ordering::Release);
            }
            Split::InPlace => {
                fill(Flags::empty());
                // Release: as in the other case.
                let late_flags = used_flags(word.swap(link, Ordering::AcqRel)) - first_part.flags();
                if !late_flags.is_empty() {
                    for part in parts {
                        part.fetch_or(late_flags.bits(), Ordering::Relaxed);
                    }
                }
                flush_all(flusher, flush);
            }
        }
        Ok(())
    }

    fn flush(&mut self, flush: Flush) -> Result<(), NativeFault> {
        flush_all(&mut self.flusher, flush);
        Ok(())
    }

    fn retire(&mut self, space: Space) -> Result<(), NativeFault> {
        let half = Bytes(space.root_level.table_span().0 / 2);
        self.flush(Flush { range: VirtRange::around(0, half), tables: true })
    }
}

/// Makes the changed entries visible by a fence, and then flushes all TLBs.
fn flush_all(flusher: &mut impl Flusher, flush: Flush) {
    fence(Ordering::SeqCst);
    flusher.flush(flush);
}

impl fmt::Display for NativeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NativeFault::NotATable(frame) => {
                write!(f, "the kernel has no table in the frame at {frame}")
            }
            NativeFault::NotLarge(entry) => write!(f, "{entry:?} is not a large page"),
        }
    }
}

impl core::error::Error for NativeFault {}
