//! Maps runs of pages at unused addresses. The runs have the form of those that [`Owner::unmapped`]
//! receives.

use crate::entry::{Entry, EntryAddr};
use crate::error::{StopReason, Stopped, StoppedBy};
use crate::level::{ENTRIES, Kind, Level};
use crate::mmu::{Mmu, Table, entry_at};
use crate::native::{Flusher, Native, Tables};
use crate::owner::Owner;
use crate::page_tables::{PageTables, span_of};
use crate::range::OffsetRange;
use crate::run::Run;
use crate::space::{Roots, Space};
use crate::sync::Ordering;
use crate::well_formed::check_roots;
use hotmem_addr::{Bytes, Pfn};

impl<T: Tables, F: Flusher> PageTables<'_, Native<T, F>> {
    /// Maps a run of pages at unused addresses: see [`Native::map`].
    ///
    /// # Errors
    /// Those of [`Native::map`].
    pub fn map(
        &mut self,
        run: Run<F::Format>,
        owner: &mut impl Owner<F::Format>,
    ) -> Result<Bytes, StoppedBy<Native<T, F>>> {
        self.mmu.map(self.space, run, owner)
    }
}

impl<T: Tables, F: Flusher> Native<T, F> {
    /// Maps a run of pages at unused addresses of an address space. Takes frames for missing tables from the owner.
    /// [Publishes](Flusher::publish) the pages once, and flushes nothing, because no entry was present
    /// before. Returns how many bytes of tables it wrote.
    ///
    /// The caller holds the lock of the range (see [`Mmu`]), and ensures that no other CPU adds the
    /// same missing tables at the same time.
    ///
    /// Cost: one store for each entry, and the stores that clear new tables.
    ///
    /// # Errors
    /// [`Stopped`] if an address is in use, or a table cannot be made. All pages below
    /// [`Stopped::address`] are mapped, and no table is leaked.
    pub fn map(
        &mut self,
        space: Space<F::Format>,
        run: Run<F::Format>,
        owner: &mut impl Owner<F::Format>,
    ) -> Result<Bytes, StoppedBy<Self>> {
        let mut written = 0;
        let mapped = self.map_unpublished(space, run, &mut written, owner);
        if written != 0 {
            self.flusher().publish(run.virt);
        }
        mapped.map(|()| Bytes(written))
    }

    /// Maps a run as [`map`](Self::map) does, and adds the number of bytes of tables that it has
    /// written to `written`. If there are any, the caller publishes them, after an error too.
    fn map_unpublished(
        &self,
        space: Space<F::Format>,
        run: Run<F::Format>,
        written: &mut u64,
        owner: &mut impl Owner<F::Format>,
    ) -> Result<(), StoppedBy<Self>> {
        let OffsetRange { mut start, end } = span_of(space, run.virt)?;
        let page_bytes = run.level.entry_span().0;
        let last_page = Bytes(run.virt.bytes().0 - page_bytes.min(run.virt.bytes().0)).frames();
        let first_frame = run.frames().map(|frames| frames.start());
        let entry_at = |frame: Option<Pfn>| run.entry.moved_to(frame?, run.level);
        let is_valid = entry_at(first_frame) == Some(run.entry)
            && entry_at(first_frame.and_then(|frame| frame.checked_add(last_page))).is_some();
        let is_aligned = (start | end).is_multiple_of(page_bytes);
        // A page in the root itself would be missing in the user's root.
        let has_level = run.level < space.root_level
            || run.level == space.root_level && space.user_root.is_none();
        if run.entry.kind(run.level) != Kind::Page || !is_valid || !is_aligned || !has_level {
            return Err(Stopped::new(run.virt.start(), StopReason::NotAPage(run.entry)));
        }
        check_roots(self, space, OffsetRange { start, end })?;
        let mut entry = run.entry;
        while start < end {
            let table = self.table_for(space, start, run.level, written, owner)?;
            for word in &table[run.level.index(start)..] {
                if start == end {
                    break;
                }
                let old_entry = Entry::<F::Format>::from_bits(word.load(Ordering::Relaxed));
                if !old_entry.is_empty() {
                    let address = space.address_at(start);
                    return Err(Stopped::new(address, StopReason::Occupied(old_entry)));
                }
                // Release: a processor that finds the page also sees what was written to its frame
                // before.
                word.store(entry.bits(), Ordering::Release);
                *written += ENTRY_BYTES;
                start += page_bytes;
                entry = Entry::from_bits(entry.bits_after(page_bytes));
            }
        }
        Ok(())
    }

    /// Returns the table of this level that maps an offset. Makes it, and missing tables above it,
    /// if necessary.
    fn table_for(
        &self,
        space: Space<F::Format>,
        offset: u64,
        level: Level,
        written: &mut u64,
        owner: &mut impl Owner<F::Format>,
    ) -> Result<&Table, StoppedBy<Self>> {
        let stopped = |reason| Stopped::new(space.address_at(offset), reason);
        let table_in =
            |frame, level| self.table(frame).ok_or(stopped(StopReason::NotATable { frame, level }));
        let mut table_level = space.root_level;
        let mut frame = space.root;
        let mut table = table_in(frame, table_level)?;
        while let Some(below) = table_level.below().filter(|_| table_level > level) {
            let index = table_level.index(offset);
            let entry = entry_at::<F::Format>(table, index);
            (frame, table) = match entry.kind(table_level) {
                Kind::Table(frame) => (frame, table_in(frame, below)?),
                Kind::Empty => {
                    let copy_addr = Roots::of(space).user_copy(EntryAddr::new(frame, index));
                    let user_copy = copy_addr
                        .map(|addr| Ok(&table_in(addr.table(), table_level)?[addr.index()]))
                        .transpose()?;
                    let frame =
                        owner.new_table().ok_or(stopped(StopReason::NoTableFrame(entry)))?;
                    let new_table =
                        table_in(frame, below).inspect_err(|_| owner.free_table(frame))?;
                    new_table.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                    // Release pairs with the dependent reads of the page walk, which so finds the
                    // new table empty.
                    let link = Entry::<F::Format>::link(frame).bits();
                    for word in user_copy.into_iter().chain([&table[index]]) {
                        word.store(link, Ordering::Release);
                    }
                    *written += (1 + ENTRIES as u64) * ENTRY_BYTES;
                    (frame, new_table)
                }
                _ => return Err(stopped(StopReason::Occupied(entry))),
            };
            table_level = below;
        }
        Ok(table)
    }
}

const ENTRY_BYTES: u64 = size_of::<u64>() as u64;
