//! Maps pages at unused addresses. It takes the same runs that [`Owner::unmapped`] reports.

use crate::entry::{ENTRIES, Entry, EntryAddr, Kind, Level};
use crate::error::{Stopped, Why};
use crate::mmu::{Mmu, Table, entry_at};
use crate::native::{Flusher, Native, NativeFault, Tables};
use crate::owner::Owner;
use crate::page_tables::PageTables;
use crate::range::{Span, virt};
use crate::run::Run;
use crate::sound::check_roots;
use crate::sync::Ordering;
use hotmem_addr::Bytes;

impl<T: Tables, F: Flusher> PageTables<'_, Native<T, F>> {
    /// Maps a run of pages at unused addresses. Takes frames for missing tables from the owner.
    /// Needs no flush, because TLBs do not cache entries that are not present.
    ///
    /// The caller holds the range's lock (see [`Mmu`]). No other CPU may add the same missing
    /// tables at the same time.
    ///
    /// Cost: one store for each entry, and the stores that fill new tables. Returns how many bytes
    /// of tables it wrote.
    ///
    /// # Errors
    /// [`Stopped`]; all pages below its address are mapped, and no table is leaked.
    pub fn map(&mut self, run: Run, owner: &mut impl Owner) -> Result<Bytes, Stopped<NativeFault>> {
        let Span { mut start, end } = self.span(run.virt)?;
        let page = run.level.entry_bytes().0;
        let sound = run.frames().and_then(|frames| run.entry.moved_to(frames.start(), run.level));
        let aligned = (start | end).is_multiple_of(page) && run.level < self.space.levels;
        if run.entry.kind(run.level) != Kind::Page || sound != Some(run.entry) || !aligned {
            return Err(Stopped::before(run.virt.start(), Why::NotAPage(run.entry)));
        }
        check_roots(&self.mmu, self.space, Span { start, end })?;
        let (mut entry, mut written) = (run.entry, 0);
        while start < end {
            let table = self.table_over(start, run.level, &mut written, owner)?;
            for word in &table[run.level.index(start)..] {
                if start == end {
                    break;
                }
                let there = Entry::from_bits(word.load(Ordering::Relaxed));
                if !there.is_empty() {
                    let at = virt(start, self.space.levels);
                    return Err(Stopped::before(at, Why::Occupied(there)));
                }
                // Release: a processor that finds the page also sees its earlier contents.
                word.store(entry.bits(), Ordering::Release);
                written += ENTRY_BYTES;
                start += page;
                entry = Entry::from_bits(entry.bits().wrapping_add(page));
            }
        }
        Ok(Bytes(written))
    }

    /// Returns the table of this level for an offset, and makes it if it is missing.
    fn table_over(
        &self,
        offset: u64,
        level: Level,
        written: &mut u64,
        owner: &mut impl Owner,
    ) -> Result<&Table, Stopped<NativeFault>> {
        let stopped = |why| Stopped::before(virt(offset, self.space.levels), why);
        let table_in =
            |frame, level| self.mmu.table(frame).ok_or(stopped(Why::NotATable { frame, level }));
        let mut at = self.space.levels;
        let mut frame = self.space.root;
        let mut table = table_in(frame, at)?;
        while let Some(below) = at.below().filter(|_| at > level) {
            let index = at.index(offset);
            let entry = entry_at(table, index);
            (frame, table) = match entry.kind(at) {
                Kind::Table(frame) => (frame, table_in(frame, below)?),
                Kind::Empty => {
                    let copy = self.batch.user_copy(EntryAddr::new(frame, index));
                    let copy = copy.map(|copy| Ok(&table_in(copy.table(), at)?[copy.index()]));
                    let copy = copy.transpose()?;
                    let frame = owner.new_table().ok_or(stopped(Why::NoTableFrame(entry)))?;
                    let new = table_in(frame, below).inspect_err(|_| owner.free_table(frame))?;
                    new.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                    // Release: pairs with the dependent reads of the page walk, which then sees the
                    // table empty.
                    let link = Entry::link(frame).bits();
                    for word in copy.into_iter().chain([&table[index]]) {
                        word.store(link, Ordering::Release);
                    }
                    *written += (1 + ENTRIES as u64) * ENTRY_BYTES;
                    (frame, new)
                }
                _ => return Err(stopped(Why::Occupied(entry))),
            };
            at = below;
        }
        Ok(table)
    }
}

const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;
