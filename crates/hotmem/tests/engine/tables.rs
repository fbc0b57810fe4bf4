//! A mapping with page tables, as a kernel has them: a table maps [`TABLE_SPAN`] frames, is made
//! when memory there is first mapped, and is released with the last memory there.

use hotmem::*;
use hotmem_testkit::{PAGEBLOCK, SECTION};
use std::collections::{BTreeMap, BTreeSet};

/// The number of frames that a table maps.
pub(crate) const TABLE_SPAN: u64 = SECTION;

/// Page tables of one level. Fails a test if a promise of the engine is broken.
pub(crate) struct TableMapping {
    memory: AlwaysMapped,
    table_reserve: u64,
    /// Whether `unmap` frees tables, as the code of some kernels does.
    frees_on_unmap: bool,
    /// Each table by the number of the first frame that it maps, with its frame and the pageblocks
    /// that it maps or that are unmapped and not released yet.
    tables: BTreeMap<u64, (Pfn, BTreeSet<Pfn>)>,
}

impl TableMapping {
    pub(crate) fn new(memory: AlwaysMapped, table_reserve: u64) -> TableMapping {
        TableMapping { memory, table_reserve, frees_on_unmap: false, tables: BTreeMap::new() }
    }

    /// Makes `unmap` free tables. Somebody else takes their frames at once.
    pub(crate) fn freeing_on_unmap(self) -> TableMapping {
        TableMapping { frees_on_unmap: true, ..self }
    }

    /// Removes the pageblocks of `range`, and passes the tables that map nothing any more to `free`.
    fn remove(&mut self, range: PfnRange, mut free: impl FnMut(Pfn)) {
        for block in range.chunks(PAGEBLOCK) {
            let (table, blocks) = self.tables.get_mut(&span_of(block)).expect("it has a table");
            let table = *table;
            blocks.remove(&block.start());
            if blocks.is_empty() {
                self.tables.remove(&span_of(block));
                free(table);
            }
        }
    }

    /// Returns the number of tables.
    pub(crate) fn tables(&self) -> u64 {
        self.tables.len() as u64
    }
}

/// Returns the number of tables that map `range`.
fn tables_of(range: PfnRange) -> u64 {
    range.chunks(TABLE_SPAN).count() as u64
}

fn span_of(block: PfnRange) -> u64 {
    block.start().align_down(TABLE_SPAN).number()
}

// SAFETY: all of the memory is mapped by the inner mapping. Frames that `take` yields are kept until
// they are released.
unsafe impl Map for TableMapping {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn mappable_range(&self) -> PfnRange {
        self.memory.mappable_range()
    }

    fn table_reserve(&self) -> u64 {
        self.table_reserve
    }

    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
        Ok(tables_of(range))
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for block in range.chunks(PAGEBLOCK) {
            let new_table =
                || (take().expect("a table is missing that was promised"), BTreeSet::new());
            let (_, blocks) = self.tables.entry(span_of(block)).or_insert_with(new_table);
            assert!(blocks.insert(block.start()), "{block} is mapped twice");
        }
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        if self.frees_on_unmap {
            self.remove(range, |_| {});
        }
    }

    fn remap_tables_needed(&self, range: PfnRange) -> u64 {
        if self.frees_on_unmap { tables_of(range) } else { 0 }
    }

    unsafe fn remap(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        if self.frees_on_unmap {
            // SAFETY: as for `map`.
            return unsafe { self.map(range, take) };
        }
        for block in range.chunks(PAGEBLOCK) {
            let (_, blocks) = self.tables.get(&span_of(block)).expect("the table was released");
            assert!(blocks.contains(&block.start()), "{block} was released");
        }
    }

    unsafe fn release_tables(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
        if !self.frees_on_unmap {
            self.remove(range, |frame| free(frame).expect("the engine has given this frame"));
        }
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        None
    }
}
