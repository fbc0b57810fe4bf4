//! Changes the page tables of a processor without a hypervisor, by atomic exchanges.

use crate::batch::Batch;
use crate::entry::{Entry, EntryAddr};
use crate::format::{Format, X86_64};
use crate::level::{ENTRIES, Kind};
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

/// Flushes TLBs, and publishes new entries, by instructions and interrupts of the kernel.
///
/// Which processors take part in a flush is the kernel's choice: all of them, or those that have
/// used the address space. An x86-64 kernel interrupts them, an aarch64 processor broadcasts the
/// flush by itself, and a riscv64 kernel asks the firmware.
pub trait Flusher {
    /// The format of the processor's entries.
    type Format: Format;

    /// Flushes the TLBs that may cache the addresses. Returns when they are flushed, when every
    /// access that used an old translation is complete, and when all page walks that the kernel was
    /// making without a lock have ended.
    ///
    /// On aarch64: `dsb ishst`, the `tlbi` instructions, `dsb ish`, `isb`. If [`Flush::tables`] is set,
    /// the instructions must not be those for the last level only (such as `tlbi vale1is`), because
    /// they keep the entries that point to tables. On riscv64: `sfence.vma` on each hart; if
    /// `Flush::tables` is set, without an address (`rs1` is `x0`), for the same reason.
    fn flush(&mut self, flush: Flush);

    /// Makes entries that became present, and that were not present before, visible to page walks:
    /// entries of pages, and entries that point to new tables. Returns when an access to the
    /// addresses by this processor succeeds. An access by another processor may still fault; then
    /// its fault handler finds the page present, does the same, and returns.
    ///
    /// On x86-64 there is nothing to do. On aarch64: `dsb ishst`, `isb`. On riscv64: `sfence.vma`
    /// without an address (`rs1` is `x0`), because with one it does not order entries that point to
    /// tables. A hart with Svvptc finds the entries soon without it, so a kernel whose fault handler
    /// returns as above for all addresses may leave it out there.
    fn publish(&mut self, range: VirtRange);
}

/// The flusher of an x86-64 kernel, which has nothing to publish. A kernel of another architecture
/// implements [`Flusher`] itself: with a closure, its entries would have the format of x86-64.
impl<F: FnMut(Flush)> Flusher for F {
    type Format = X86_64;

    fn flush(&mut self, flush: Flush) {
        self(flush);
    }

    #[inline]
    fn publish(&mut self, _: VirtRange) {}
}

/// The MMU of a processor without a hypervisor's help.
///
/// An entry in which a processor may still set Accessed or Dirty is changed by an atomic exchange.
/// If both bits are set, no bit can be lost, and a plain store is enough: processors set the bits
/// by atomic updates (SDM volume 3, 9.1.2.1; Arm ARM, D8.5), which find the entry either unchanged
/// or not present.
///
/// All accesses are `Relaxed`, because the result of an exchange depends only on the one word. The
/// [flush](Flusher::flush) orders the processors' accesses to pages before what the kernel does with
/// the pages after it. A `SeqCst` fence before the flush makes the cleared entries visible before
/// any processor flushes.
#[derive(Debug)]
pub struct Native<T, F> {
    tables: T,
    flusher: F,
    split: Split,
}

/// How the entry of a large page is replaced by an entry that points to a table, while processors
/// use the page.
///
/// On x86-64 and riscv64, a TLB may cache translations of both page sizes for one address, as long
/// as they agree. If they differ in the frame or in the permissions, the processor may use either
/// (SDM volume 3, 4.10.2.3 and 4.10.4.2). So the large page is flushed before any entry of the table
/// is changed. On aarch64, no TLB may ever cache both (Arm ARM, D8.16.1).
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
    /// agree. Refused in formats without [`Format::SPLITS_IN_PLACE`].
    InPlace,
}

/// The reason why [`Native`] has not changed page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NativeFault<F: Format> {
    /// The kernel has no table in this frame.
    NotATable(Pfn),
    /// The entry is not a large page.
    NotLarge(Entry<F>),
    /// The entry maps a large page, which this format does not allow to be split
    /// [in place](Split::InPlace).
    SplitInPlace(Entry<F>),
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

    /// Returns the flusher.
    pub(crate) fn flusher(&mut self) -> &mut F {
        &mut self.flusher
    }

    /// Clears each entry of the batch by `clear`, which returns the previous value. Also clears the
    /// copies of these entries in the user's root.
    fn clear_each(
        &self,
        batch: &mut Batch<F::Format>,
        clear: impl Fn(&AtomicU64, Entry<F::Format>) -> Entry<F::Format>,
    ) -> Result<(), BatchError<NativeFault<F::Format>>> {
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
    fn words_from(&self, addr: EntryAddr) -> Result<&[AtomicU64], NativeFault<F::Format>> {
        let frame = addr.table();
        let table = self.tables.table(frame).ok_or(NativeFault::NotATable(frame))?;
        Ok(&table[addr.index()..])
    }
}

impl<T: Tables, F: Flusher> Mmu for Native<T, F> {
    type Format = F::Format;
    type Fault = NativeFault<F::Format>;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.table(frame)
    }

    fn get_and_clear(
        &mut self,
        batch: &mut Batch<F::Format>,
    ) -> Result<(), BatchError<NativeFault<F::Format>>> {
        self.clear_each(batch, |word, entry| {
            if entry.has_final_flags() {
                word.store(0, Ordering::Relaxed);
                return entry;
            }
            Entry::from_bits(word.swap(0, Ordering::Relaxed))
        })
    }

    fn clear(
        &mut self,
        batch: &mut Batch<F::Format>,
    ) -> Result<(), BatchError<NativeFault<F::Format>>> {
        self.clear_each(batch, |word, entry| {
            word.store(0, Ordering::Relaxed);
            entry
        })
    }

    /// Clears the entries by plain stores: no processor uses them any more, so the values that were
    /// read are final.
    fn get_and_clear_full(
        &mut self,
        batch: &mut Batch<F::Format>,
    ) -> Result<(), BatchError<NativeFault<F::Format>>> {
        self.clear(batch)
    }

    fn protect(
        &mut self,
        batch: &Batch<F::Format>,
        change: Change<F::Format>,
    ) -> Result<(), BatchError<NativeFault<F::Format>>> {
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

    fn split(
        &mut self,
        located: &LocatedEntry<F::Format>,
        table: Pfn,
    ) -> Result<(), NativeFault<F::Format>> {
        let Native { tables, flusher, split } = self;
        let is_page = located.kind() == Kind::Page;
        let first_part = located.entry.part(located.level, 0).filter(|_| is_page);
        let first_part = first_part.ok_or(NativeFault::NotLarge(located.entry))?;
        if *split == Split::InPlace && !F::Format::SPLITS_IN_PLACE {
            return Err(NativeFault::SplitInPlace(located.entry));
        }
        let table_in = |frame| tables.table(frame).ok_or(NativeFault::NotATable(frame));
        let (parts, word) =
            (table_in(table)?, &table_in(located.addr.table())?[located.addr.index()]);
        let page_bytes = located.level.entry_span();
        let part_bytes = page_bytes.0 / ENTRIES as u64;
        let fill = |before: Entry<F::Format>| {
            let mut part = first_part.with_use(before.is_accessed(), before.is_dirty());
            for word in parts {
                word.store(part.bits(), Ordering::Relaxed);
                part = Entry::from_bits(part.bits_after(part_bytes));
            }
        };
        // In place, the flush follows the change to an entry that points to a table. A flush of pages
        // alone does not order such an entry on riscv64.
        let tables = *split == Split::InPlace;
        let flush = Flush { range: VirtRange::around(located.virt, page_bytes), tables };
        let link = Entry::<F::Format>::link(table).bits();
        match split {
            Split::ClearFirst => {
                let before = word.swap(0, Ordering::Relaxed);
                flush_all(flusher, flush);
                fill(Entry::from_bits(before));
                // Release pairs with the dependent reads of the page walk, which so finds the
                // entries of the table.
                word.store(link, Ordering::Release);
                flusher.publish(flush.range);
            }
            Split::InPlace => {
                fill(first_part);
                // Release: as in the other case.
                let before = Entry::<F::Format>::from_bits(word.swap(link, Ordering::AcqRel));
                let (accessed, dirty) = (before.is_accessed(), before.is_dirty());
                if (accessed, dirty) != (first_part.is_accessed(), first_part.is_dirty()) {
                    let used = |bits| {
                        Some(Entry::<F::Format>::from_bits(bits).with_use(accessed, dirty).bits())
                    };
                    for part in parts {
                        // The update succeeds, because `used` always returns `Some`.
                        part.fetch_update(Ordering::Relaxed, Ordering::Relaxed, used)
                            .or_record_violation();
                    }
                }
                flush_all(flusher, flush);
            }
        }
        Ok(())
    }

    fn flush(&mut self, flush: Flush) -> Result<(), NativeFault<F::Format>> {
        flush_all(&mut self.flusher, flush);
        Ok(())
    }

    fn retire(&mut self, space: Space<F::Format>) -> Result<(), NativeFault<F::Format>> {
        let half = Bytes(space.user_bytes());
        let range = VirtRange::around(space.address_at(0), half);
        self.flush(Flush { range, tables: true })
    }
}

/// Makes the changed entries visible by a fence, and then flushes all TLBs.
fn flush_all(flusher: &mut impl Flusher, flush: Flush) {
    fence(Ordering::SeqCst);
    flusher.flush(flush);
}

impl<F: Format> fmt::Display for NativeFault<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NativeFault::NotATable(frame) => {
                write!(f, "the kernel has no table in the frame at {frame}")
            }
            NativeFault::NotLarge(entry) => write!(f, "{entry:?} is not a large page"),
            NativeFault::SplitInPlace(entry) => {
                write!(f, "the large page of {entry:?} must not be split while it is present")
            }
        }
    }
}

impl<F: Format> core::error::Error for NativeFault<F> {}
