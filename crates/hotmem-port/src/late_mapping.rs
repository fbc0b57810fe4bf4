//! Implements a mapping that first uses the boot code's linear map, and later calls the kernel's own
//! code to map memory.

use crate::linear::LinearMap;
use crate::table_frames::TableFrames;
use core::fmt;
use hotmem::{Describe, Frames, Map, Pfn, PfnRange, Platform, RangeError, TABLE_RESERVE, Veto};
use lock_api::{Mutex, RawMutex};

/// The kernel's own functions for the page tables of its linear map.
#[derive(Clone, Copy, Debug)]
pub struct Mapper {
    /// Checks whether a range can be mapped. `map` cannot fail, so this function returns a veto for
    /// every range that the kernel refuses to map.
    pub can_map: fn(PfnRange) -> Result<(), Veto>,
    /// Maps memory.
    pub map: fn(PfnRange),
    /// Unmaps memory.
    pub unmap: fn(PfnRange),
    /// Whether `unmap` frees page tables that map nothing any more. If so, mapping the memory again
    /// takes tables as mapping it for the first time does.
    pub unmap_frees_tables: bool,
    /// Returns an upper bound of the number of page tables that mapping a range needs, whatever is
    /// mapped then: a table that exists now counts as well if the kernel ever frees tables.
    pub tables_needed: fn(PfnRange) -> u64,
}

/// A linear map that boot code has made, and that a kernel's own [`Mapper`] extends. The mapper is
/// set later, because it needs an allocator.
///
/// The mapper allocates page tables from the kernel's allocator. That allocator must call
/// [`take_table`](Self::take_table) first, so that mapping cannot run out of frames.
///
/// A reference to a `LateMapping` is a [`Map`].
pub struct LateMapping<'f, P, L> {
    map: LinearMap,
    mappable_range: PfnRange,
    mapper: Mutex<L, Option<Mapper>>,
    tables: Mutex<L, TableFrames<'f, P>>,
}

impl<'f, P: Platform, L: RawMutex> LateMapping<'f, P, L> {
    /// Makes a mapping of the memory that boot code has mapped.
    ///
    /// # Safety
    /// As long as `frames` live, nothing else uses the bytes of `mappable_range`
    /// that are boot memory or announced. Until [`set_mapper`](Self::set_mapper) is called, these
    /// bytes are readable and writable in `map`.
    #[must_use]
    pub const unsafe fn new(
        frames: &'f Frames<P>,
        map: LinearMap,
        mappable_range: PfnRange,
    ) -> Self {
        let tables = Mutex::new(TableFrames::new(frames, map));
        LateMapping { map, mappable_range, mapper: Mutex::new(None), tables }
    }

    /// Sets the mapper for memory that is added from now on.
    ///
    /// # Safety
    /// Boot memory stays mapped. From a call of `mapper.map` until `mapper.unmap`, the range is
    /// readable and writable in the linear map. If `mapper.unmap_frees_tables` is false, mapping a
    /// range again after `mapper.unmap` needs no page tables.
    pub unsafe fn set_mapper(&self, mapper: Mapper) {
        *self.mapper.lock() = Some(mapper);
    }

    /// Takes a frame for a page table. Returns `None` except while the kernel maps memory for the
    /// engine.
    pub fn take_table(&self) -> Option<Pfn> {
        self.tables.lock().take()
    }

    /// Maps a range with tables in the frames that `take` returns. Frees the other frames.
    ///
    /// # Safety
    /// The frames were allocated from this instance for page tables.
    unsafe fn map_with_tables(&self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        if let Some(mapper) = self.mapper() {
            // SAFETY: the caller has made the same promise.
            unsafe { self.tables.lock().add_frames(take) };
            // Release the lock of `tables` before this call, because the mapper calls `take_table`.
            (mapper.map)(range);
            self.tables.lock().free_rest();
        }
    }

    fn mapper(&self) -> Option<Mapper> {
        *self.mapper.lock()
    }
}

// SAFETY: the callers of `new` and `set_mapper` have promised what the trait requires. The frames
// that `take` returns become page tables or are freed.
unsafe impl<P: Platform, L: RawMutex> Map for &LateMapping<'_, P, L> {
    fn base(&self) -> *mut u8 {
        self.map.base()
    }

    fn mappable_range(&self) -> PfnRange {
        self.mappable_range
    }

    fn table_reserve(&self) -> u64 {
        TABLE_RESERVE
    }

    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
        let Some(mapper) = self.mapper() else { return Ok(0) };
        (mapper.can_map)(range)?;
        Ok((mapper.tables_needed)(range))
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        // SAFETY: `take` returns frames that the engine has allocated from this instance for page
        // tables.
        unsafe { self.map_with_tables(range, take) };
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        if let Some(mapper) = self.mapper() {
            (mapper.unmap)(range);
        }
    }

    fn remap_tables_needed(&self, range: PfnRange) -> u64 {
        let mapper = self.mapper().filter(|mapper| mapper.unmap_frees_tables);
        mapper.map_or(0, |mapper| (mapper.tables_needed)(range))
    }

    unsafe fn remap(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        // SAFETY: as in `map`.
        unsafe { self.map_with_tables(range, take) };
    }

    /// Does nothing: the kernel's own code keeps its page tables, or has freed them in `unmap`.
    unsafe fn release_tables(
        &mut self,
        _: PfnRange,
        _: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        None
    }
}

impl<P, L> fmt::Debug for LateMapping<'_, P, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateMapping")
            .field("mappable_range", &self.mappable_range)
            .finish_non_exhaustive()
    }
}
