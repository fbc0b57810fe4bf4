//! Measures the cases on this processor. Page tables are arrays that no processor walks, so flushes
//! are counted and not executed, and no processor sets bits during a measurement.

use super::args::{COUNTED_FLUSHES, CYCLES};
use crate::bench::record::Sample;
use anyhow::{Context, Result, ensure};
use hotmem::{Bytes, Pfn};
use hotmem_pgtable::x86_64::{Batch, Entry, Flags, Format, Run, Space};
use hotmem_pgtable::{
    AtomicU64, CoveredTables, ENTRIES, Flush, Level, Native, Owner, PageTables, Table, Tables,
    Unmap, VirtRange, entry_at,
};
use std::sync::atomic::Ordering::Relaxed;

/// The number of L1 tables: they map 1 GiB.
const L1_TABLES: usize = 512;
/// The frame of the first page, above the frames of all tables.
const FIRST_FRAME: u64 = 1 << 20;
/// The number of pages that the L1 tables can map.
const PAGES: u64 = (L1_TABLES * ENTRIES) as u64;
/// In a sparse range, one page of this many is mapped. So one in eight cache lines of an L1 table
/// has a present entry.
const SPARSE_INTERVAL: usize = 64;

/// A case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// A few pages are mapped, and half of them are dirty.
    Sparse,
    /// All pages are mapped, and half of them are dirty.
    Dense,
    /// All pages are mapped and none is dirty. Each may become dirty until its entry is cleared.
    Clean,
    /// The whole address space is torn down.
    Exit,
}

impl Case {
    pub(super) const ALL: [Case; 4] = [Case::Sparse, Case::Dense, Case::Clean, Case::Exit];

    pub(super) fn name(self) -> &'static str {
        match self {
            Case::Sparse => "native-munmap-sparse",
            Case::Dense => "native-munmap-dense",
            Case::Clean => "native-munmap-clean",
            Case::Exit => "native-exit",
        }
    }

    /// Returns the interval of the mapped pages.
    fn interval(self) -> usize {
        if self == Case::Sparse { SPARSE_INTERVAL } else { 1 }
    }

    fn mapped_pages(self) -> u64 {
        PAGES / self.interval() as u64
    }

    fn dirty_pages(self) -> u64 {
        if self == Case::Clean { 0 } else { self.mapped_pages() / 2 }
    }
}

/// The way in which entries are cleared.
#[derive(Clone, Copy)]
enum Subject {
    /// Exchanges every entry.
    ExchangeEach,
    /// Reads each entry, and exchanges it unless it is empty, as Linux does in `munmap`.
    TestedFirst,
    /// Reads each entry, and clears it by a plain store unless it is empty, as Linux does at the end of
    /// an address space (`ptep_get_and_clear_full`).
    Plain,
    /// Frees tables as a whole.
    Hotmem,
    /// As `Hotmem`, but keeps the tables, so that each entry is cleared.
    TablesKept,
}

/// Measures a case. The recorded cycles are divided by the number of entries that the range spans.
pub(super) fn measure(case: Case, runs: u32, sample: &mut Sample) -> Result<()> {
    let subjects: &[Subject] = match case {
        Case::Exit => &[Subject::ExchangeEach, Subject::Plain, Subject::Hotmem],
        _ => &[Subject::ExchangeEach, Subject::TestedFirst, Subject::Hotmem, Subject::TablesKept],
    };
    let memory = Memory::new();
    let mut batch = Box::new(Batch::new());
    // The first run is a warm-up.
    for run in 0..=runs {
        for &subject in subjects {
            let space = memory.map(case);
            let mut owner = CountingOwner::default();
            let mut flushes = 0_u32;
            let start = read_cycles()?;
            match subject {
                Subject::ExchangeEach => {
                    memory.clear_each(space, &mut owner, |word| Some(word.swap(0, Relaxed)));
                    flushes += 1;
                }
                Subject::TestedFirst => {
                    memory.clear_each(space, &mut owner, |word| {
                        (word.load(Relaxed) != 0).then(|| word.swap(0, Relaxed))
                    });
                    flushes += 1;
                }
                Subject::Plain => {
                    memory.clear_each(space, &mut owner, |word| {
                        let entry = word.load(Relaxed);
                        (entry != 0).then(|| {
                            word.store(0, Relaxed);
                            entry
                        })
                    });
                    flushes += 1;
                }
                Subject::Hotmem | Subject::TablesKept => {
                    let native = Native::new(&memory, |_: Flush| flushes += 1);
                    let mut tables = PageTables::new(native, space, &mut batch);
                    let range = VirtRange::new(0, Bytes(PAGES << 12))?;
                    let keeps_tables = matches!(subject, Subject::TablesKept);
                    let covered =
                        if keeps_tables { CoveredTables::Keep } else { CoveredTables::Free };
                    let unmap = Unmap { tables: covered, ..Unmap::default() };
                    match case {
                        Case::Exit => tables.teardown(&mut owner)?,
                        _ => tables.unmap_range(range, unmap, &mut owner)?,
                    }
                }
            }
            let cycles = read_cycles()? - start;
            ensure!(
                (owner.pages, owner.dirty_pages) == (case.mapped_pages(), case.dirty_pages()),
                "the unmapped pages are not the mapped ones: {owner:?}"
            );
            if run == 0 {
                continue;
            }
            let name = match subject {
                Subject::ExchangeEach => "before",
                Subject::TestedFirst => "before, tested first",
                Subject::Plain => "linux-full",
                Subject::Hotmem => "hotmem",
                Subject::TablesKept => "hotmem, tables kept",
            };
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            sample.add(case.name(), name, CYCLES, cycles as f64 / PAGES as f64);
            sample.add(case.name(), name, COUNTED_FLUSHES, f64::from(flushes));
        }
    }
    Ok(())
}

/// An owner that counts what it receives.
#[derive(Default, Debug)]
struct CountingOwner {
    pages: u64,
    dirty_pages: u64,
    tables: u64,
}

impl Owner<Format> for CountingOwner {
    fn unmapped(&mut self, run: Run) {
        let pages = run.virt.bytes().frames();
        self.pages += pages;
        self.dirty_pages += if run.is_dirty() { pages } else { 0 };
    }

    fn free_table(&mut self, _: Pfn) {
        self.tables += 1;
    }
}

/// The tables: frame 1 is the root, followed by the L3 table, the L2 table and the L1 tables.
struct Memory {
    tables: Vec<Table>,
}

impl Tables for &Memory {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.get(usize::try_from(frame.number()).ok()?)
    }
}

fn pfn(number: usize) -> Pfn {
    Pfn::new(number as u64).unwrap_or(Pfn::ZERO)
}

impl Memory {
    fn new() -> Memory {
        let table = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Memory { tables: (0..4 + L1_TABLES).map(table).collect() }
    }

    /// Maps the pages of the case to ascending frames. In all cases except `Clean`, every second
    /// run of 256 pages is dirty.
    fn map(&self, case: Case) -> Space {
        let link = |frame| Entry::new(pfn(frame), Flags::PRESENT | Flags::WRITABLE).bits();
        self.tables[1][0].store(link(2), Relaxed);
        self.tables[2][0].store(link(3), Relaxed);
        for number in 0..L1_TABLES {
            self.tables[3][number].store(link(4 + number), Relaxed);
            for index in 0..ENTRIES {
                let page = number * ENTRIES + index;
                let is_dirty = case != Case::Clean && (page / 256).is_multiple_of(2);
                let accessed = if is_dirty { Flags::ACCESSED_DIRTY } else { Flags::ACCESSED };
                let frame = pfn(page + usize::try_from(FIRST_FRAME).unwrap_or(0));
                let entry = Entry::new(frame, Flags::PRESENT | Flags::WRITABLE | accessed);
                let entry = if page.is_multiple_of(case.interval()) { entry } else { Entry::EMPTY };
                self.tables[4 + number][index].store(entry.bits(), Relaxed);
            }
        }
        Space::new(pfn(1), Level::L4)
    }

    /// Clears each entry of the range, passes the runs to the owner, and frees the tables. `clear`
    /// clears an entry and returns it, or returns `None` if the entry is empty.
    #[inline(always)]
    fn clear_each(
        &self,
        space: Space,
        owner: &mut CountingOwner,
        clear: impl Fn(&AtomicU64) -> Option<u64>,
    ) {
        let root = &self.tables[usize::try_from(space.root.number()).unwrap_or(0)];
        let lower_table = |table: &Table, index| {
            let frame = entry_at::<Format>(table, index).frame(Level::L4).unwrap_or(Pfn::ZERO);
            &self.tables[usize::try_from(frame.number()).unwrap_or(0)]
        };
        let l2_table = lower_table(lower_table(root, 0), 0);
        let mut run: Option<Run> = None;
        for number in 0..L1_TABLES {
            let table = lower_table(l2_table, number);
            for (index, word) in table.iter().enumerate() {
                let Some(bits) = clear(word) else { continue };
                let entry = Entry::from_bits(bits);
                if entry.is_empty() {
                    continue;
                }
                let virt = ((number * ENTRIES + index) as u64) << 12;
                run = Some(match run {
                    Some(run)
                        if run.virt.last() + 1 == virt
                            && run.entry.bits() + run.virt.bytes().0 == entry.bits() =>
                    {
                        let bytes = run.virt.bytes() + Bytes(4096);
                        let virt = VirtRange::new(run.virt.start(), bytes).unwrap_or(run.virt);
                        Run { virt, ..run }
                    }
                    ended => {
                        if let Some(ended) = ended {
                            owner.unmapped(ended);
                        }
                        let Ok(virt) = VirtRange::new(virt, Bytes(4096)) else { continue };
                        Run { virt, entry, level: Level::L1 }
                    }
                });
            }
        }
        if let Some(run) = run {
            owner.unmapped(run);
        }
        for word in l2_table {
            let link = Entry::from_bits(word.swap(0, Relaxed));
            owner.free_table(link.frame(Level::L2).unwrap_or(Pfn::ZERO));
        }
    }
}

/// Reads the processor's time-stamp counter.
fn read_cycles() -> Result<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction `rdtsc`.
    let cycles = Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    let cycles = None;
    cycles.context("cycles are counted on x86-64 only")
}
