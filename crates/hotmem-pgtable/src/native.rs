//! A processor by itself: entries are changed by atomic exchange.

use crate::batch::Slot;
use crate::entry::{Entry, Flags};
use crate::mmu::{Change, Flush, Halted, Mmu, Table};
use crate::range::VirtRange;
use crate::space::Space;
use crate::sync::{AtomicU64, Ordering};
use core::fmt;
use hotmem::{Bytes, Pfn};

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
/// Exchanges are `Relaxed`: what they return is a property of the one word. What the kernel does
/// with pages afterwards is ordered by the flush, which every processor takes part in.
#[derive(Debug)]
pub struct Native<T, F> {
    tables: T,
    flusher: F,
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
        Native { tables, flusher }
    }

    /// Both back.
    pub fn into_parts(self) -> (T, F) {
        (self.tables, self.flusher)
    }

    fn each(
        &self,
        slots: &mut [Slot],
        change: impl Fn(&AtomicU64) -> Entry,
    ) -> Result<(), Halted<NativeFault>> {
        // Slots of one table follow each other.
        let mut found = None;
        for (done, slot) in slots.iter_mut().enumerate() {
            let frame = slot.at.table();
            let table = match found {
                Some((of, table)) if of == frame => table,
                _ => {
                    let fault = NativeFault::NotATable(frame);
                    self.tables.table(frame).ok_or(Halted { done, fault })?
                }
            };
            found = Some((frame, table));
            slot.entry = change(&table[slot.at.index()]);
        }
        Ok(())
    }

    fn word(&self, slot: &Slot) -> Result<&AtomicU64, NativeFault> {
        let frame = slot.at.table();
        let table = self.tables.table(frame).ok_or(NativeFault::NotATable(frame))?;
        Ok(&table[slot.at.index()])
    }
}

impl<T: Tables, F: Flusher> Mmu for Native<T, F> {
    type Fault = NativeFault;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.table(frame)
    }

    fn get_and_clear(&mut self, slots: &mut [Slot]) -> Result<(), Halted<NativeFault>> {
        self.each(slots, |word| Entry::from_bits(word.swap(0, Ordering::Relaxed)))
    }

    fn get_and_clear_full(&mut self, slots: &mut [Slot]) -> Result<(), Halted<NativeFault>> {
        self.each(slots, |word| {
            let entry = Entry::from_bits(word.load(Ordering::Relaxed));
            word.store(0, Ordering::Relaxed);
            entry
        })
    }

    fn protect(&mut self, slots: &[Slot], change: Change) -> Result<(), Halted<NativeFault>> {
        for (done, slot) in slots.iter().enumerate() {
            let word = self.word(slot).map_err(|fault| Halted { done, fault })?;
            let changed = |bits| Some(change.of(Entry::from_bits(bits)).bits());
            // Never `Err`: `changed` always has an answer.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        }
        Ok(())
    }

    fn split(&mut self, slot: &Slot, table: Pfn) -> Result<(), NativeFault> {
        let parts = self.tables.table(table).ok_or(NativeFault::NotATable(table))?;
        let word = self.word(slot)?;
        if slot.entry.part(slot.level, 0).is_none() || !slot.entry.flags().contains(Flags::LARGE) {
            return Err(NativeFault::NotLarge(slot.entry));
        }
        for (index, part) in parts.iter().enumerate() {
            let entry = slot.entry.part(slot.level, index).unwrap_or(Entry::EMPTY);
            part.store(entry.bits(), Ordering::Relaxed);
        }
        // Release: with the walker's dependent reads, it sees the parts through the link.
        let link = Entry::link(table);
        let before = Entry::from_bits(word.swap(link.bits(), Ordering::AcqRel));
        let late = before.flags() & Flags::USED & !slot.entry.flags();
        if !late.is_empty() {
            for part in parts {
                part.fetch_or(late.bits(), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn flush(&mut self, flush: Flush) -> Result<(), NativeFault> {
        self.flusher.flush(flush);
        Ok(())
    }

    fn retire(&mut self, space: Space) -> Result<(), NativeFault> {
        let half = Bytes(space.levels.table_bytes().0 / 2);
        if let Ok(range) = VirtRange::new(0, half) {
            self.flusher.flush(Flush { range, tables: true });
        }
        Ok(())
    }
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
