//! A processor by itself: entries are changed by atomic exchange.

use crate::batch::{Batch, Slot};
use crate::entry::{ENTRIES, Entry, EntryAddr, Flags};
use crate::mmu::{Change, Flush, Halted, Mmu, Table};
use crate::range::VirtRange;
use crate::space::Space;
use crate::sync::{AtomicU64, Ordering, fence};
use core::fmt;
use hotmem_addr::{Bytes, Pfn};
use hotmem_invariant::Known;

/// Where the kernel reaches its tables.
pub trait Tables {
    /// The table in this frame; `None` if the kernel has none there.
    fn table(&self, frame: Pfn) -> Option<&Table>;
}

/// How the kernel makes processors forget, by instructions and interrupts of its own.
pub trait Flusher {
    /// Returns when all processors have forgotten, and all walkers without locks have passed.
    fn flush(&mut self, flush: Flush);
}

impl<F: FnMut(Flush)> Flusher for F {
    fn flush(&mut self, flush: Flush) {
        self(flush);
    }
}

/// A processor's own page tables.
///
/// An entry in which a processor may still set Accessed or Dirty is exchanged. Where both are set
/// there is nothing to lose, and it is simply overwritten: processors set them by locked cycles
/// (SDM volume 3, 9.1.2.1), which find the entry either as it was or not present.
///
/// All of it is `Relaxed`: what an exchange returns is a property of the one word. What the kernel
/// does with pages afterwards is ordered by the flush, which every processor takes part in, and
/// before which there is a `SeqCst` fence: nobody is told to forget what is still to be seen.
#[derive(Debug)]
pub struct Native<T, F> {
    tables: T,
    flusher: F,
    split: Split,
}

/// How the entry of a large page becomes the entry of a table while processors use it.
///
/// A processor may hold translations of both sizes for one address as long as they are alike; if
/// they differ in the frame or in what is allowed, it may use either (SDM volume 3, 4.10.2.3 and
/// 4.10.4.2). So all translations of the large page are flushed before anything that the table
/// maps is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Split {
    /// The entry is cleared, flushed, and then names the table: no processor ever holds both
    /// sizes. A processor that uses the page meanwhile faults. The kernel's fault handler takes the
    /// lock that the caller holds (see [`Mmu`]), finds the page present, and returns.
    #[default]
    OutOfSight,
    /// The entry names the table at once, and is flushed then. Nobody faults: for memory that the
    /// fault handler, the flush or the tables themselves need, such as a kernel's direct map.
    /// Processors hold both sizes, which are alike, until they are flushed.
    InPlace,
}

/// Why a processor's page tables were not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NativeFault {
    /// The kernel has no table in this frame.
    NotATable(Pfn),
    /// Not a large page.
    NotLarge(Entry),
}

impl<T: Tables, F: Flusher> Native<T, F> {
    /// The tables and how they are flushed.
    pub const fn new(tables: T, flusher: F) -> Self {
        Native { tables, flusher, split: Split::OutOfSight }
    }

    /// The same, with large pages split in this way.
    #[must_use]
    pub fn splitting(self, split: Split) -> Self {
        Native { split, ..self }
    }

    /// Both back.
    pub fn into_parts(self) -> (T, F) {
        (self.tables, self.flusher)
    }

    /// Clears each entry by `clear`, which returns what it was, and its copy for user mode.
    fn each(
        &self,
        batch: &mut Batch,
        clear: impl Fn(&AtomicU64, Entry) -> Entry,
    ) -> Result<(), Halted<NativeFault>> {
        let (mut done, copies) = (0, batch.copies());
        for slots in batch.slots_mut() {
            let words = self.words(slots.at).map_err(|fault| Halted { done, fault })?;
            if let Some(at) = copies.of(slots.at) {
                let copies = self.words(at).map_err(|fault| Halted { done, fault })?;
                let copies = copies.iter().take(slots.entries.len());
                copies.for_each(|copy| copy.store(0, Ordering::Relaxed));
            }
            done += slots.entries.len();
            for (word, entry) in words.iter().zip(slots.entries) {
                *entry = clear(word, *entry);
            }
        }
        Ok(())
    }

    /// The words of a table from an entry on.
    fn words(&self, at: EntryAddr) -> Result<&[AtomicU64], NativeFault> {
        let frame = at.table();
        let table = self.tables.table(frame).ok_or(NativeFault::NotATable(frame))?;
        Ok(&table[at.index()..])
    }
}

impl<T: Tables, F: Flusher> Mmu for Native<T, F> {
    type Fault = NativeFault;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.table(frame)
    }

    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), Halted<NativeFault>> {
        self.each(batch, |word, entry| {
            if entry.is_settled() {
                word.store(0, Ordering::Relaxed);
                return entry;
            }
            Entry::from_bits(word.swap(0, Ordering::Relaxed))
        })
    }

    fn clear(&mut self, batch: &mut Batch) -> Result<(), Halted<NativeFault>> {
        self.each(batch, |word, entry| {
            word.store(0, Ordering::Relaxed);
            entry
        })
    }

    /// No processor uses the entries any more: what was read of them is final.
    fn get_and_clear_full(&mut self, batch: &mut Batch) -> Result<(), Halted<NativeFault>> {
        self.clear(batch)
    }

    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), Halted<NativeFault>> {
        let mut done = 0;
        for slots in batch.slots() {
            let words = self.words(slots.at).map_err(|fault| Halted { done, fault })?;
            done += slots.entries.len();
            for (word, entry) in words.iter().zip(slots.entries) {
                if entry.is_settled() {
                    word.store(change.of(*entry).bits(), Ordering::Relaxed);
                    continue;
                }
                let changed = |bits| Some(change.of(Entry::from_bits(bits)).bits());
                // `changed` always has an answer.
                word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).known();
            }
        }
        Ok(())
    }

    fn split(&mut self, slot: &Slot, table: Pfn) -> Result<(), NativeFault> {
        let Native { tables, flusher, split } = self;
        let is_large = slot.entry.flags().contains(Flags::LARGE);
        let first = slot.entry.part(slot.level, 0).filter(|_| is_large);
        let first = first.ok_or(NativeFault::NotLarge(slot.entry))?;
        let table_in = |frame| tables.table(frame).ok_or(NativeFault::NotATable(frame));
        let (parts, word) = (table_in(table)?, &table_in(slot.at.table())?[slot.at.index()]);
        let bytes = slot.level.entry_bytes();
        let part = bytes.0 / ENTRIES as u64;
        let fill = |used: Flags| {
            let mut bits = first.with(used).bits();
            for word in parts {
                word.store(bits, Ordering::Relaxed);
                bits = bits.wrapping_add(part);
            }
        };
        let flush = Flush { range: VirtRange::around(slot.virt, bytes), tables: false };
        let link = Entry::link(table).bits();
        let used = |before| Entry::from_bits(before).flags() & Flags::USED;
        match split {
            Split::OutOfSight => {
                let before = word.swap(0, Ordering::Relaxed);
                forget(flusher, flush);
                fill(used(before));
                // Release: with the walker's dependent reads, it sees the parts through the link.
                word.store(link, Ordering::Release);
            }
            Split::InPlace => {
                fill(Flags::empty());
                // Release: as above.
                let late = used(word.swap(link, Ordering::AcqRel)) - first.flags();
                if !late.is_empty() {
                    for part in parts {
                        part.fetch_or(late.bits(), Ordering::Relaxed);
                    }
                }
                forget(flusher, flush);
            }
        }
        Ok(())
    }

    fn flush(&mut self, flush: Flush) -> Result<(), NativeFault> {
        forget(&mut self.flusher, flush);
        Ok(())
    }

    fn retire(&mut self, space: Space) -> Result<(), NativeFault> {
        let half = Bytes(space.levels.table_bytes().0 / 2);
        self.flush(Flush { range: VirtRange::around(0, half), tables: true })
    }
}

/// Has all processors forget. The fence: nobody is told to forget what is still to be seen.
fn forget(flusher: &mut impl Flusher, flush: Flush) {
    fence(Ordering::SeqCst);
    flusher.flush(flush);
}

impl fmt::Display for NativeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NativeFault::NotATable(frame) => write!(f, "no table of the kernel at {frame}"),
            NativeFault::NotLarge(entry) => write!(f, "{entry:?} is no large page"),
        }
    }
}

impl core::error::Error for NativeFault {}
