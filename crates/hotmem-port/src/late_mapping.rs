//! A mapping that first uses the boot code's linear map, and later calls the kernel's own code to
//! map memory.

use crate::lent::LentFrames;
use crate::linear::LinearMap;
use core::fmt;
use hotmem::{Frames, Mapping, Pfn, PfnRange, Platform, Veto};
use lock_api::{Mutex, RawMutex};

/// The kernel's own functions for the page tables of its linear map.
#[derive(Clone, Copy, Debug)]
pub struct Mapper {
    /// Returns whether a range can be mapped. `map` cannot fail, so everything that the kernel
    /// might refuse is checked here.
    pub can_map: fn(PfnRange) -> Result<(), Veto>,
    /// Maps memory.
    pub map: fn(PfnRange),
    /// Unmaps memory, and keeps the page tables.
    pub unmap: fn(PfnRange),
    /// Returns an upper bound of the page tables that mapping a range needs.
    pub tables_needed: fn(PfnRange) -> u64,
}

/// A linear map that boot code has made, and that a kernel's own [`Mapper`] extends. The mapper is
/// set later, because it needs an allocator. It allocates page tables from the kernel's allocator,
/// which calls [`take_table`](Self::take_table) first, so mapping cannot run out of frames.
///
/// A reference to it is a [`Mapping`].
pub struct LateMapping<'f, P, L> {
    map: LinearMap,
    reach: PfnRange,
    mapper: Mutex<L, Option<Mapper>>,
    tables: Mutex<L, LentFrames<'f, P>>,
}

impl<'f, P: Platform, L: RawMutex> LateMapping<'f, P, L> {
    /// Makes a mapping of the memory that boot code has mapped.
    ///
    /// # Safety
    /// Until [`set_mapper`](Self::set_mapper), each byte of `reach` that is boot memory or
    /// announced is readable and writable in `map`, and not used elsewhere, for as long as the
    /// machine's [`Frames`] live.
    #[must_use]
    pub const unsafe fn new(frames: &'f Frames<P>, map: LinearMap, reach: PfnRange) -> Self {
        let tables = Mutex::new(LentFrames::new(frames, map));
        LateMapping { map, reach, mapper: Mutex::new(None), tables }
    }

    /// Sets the mapper for memory that is added from now on.
    ///
    /// # Safety
    /// Boot memory stays mapped. After `map`, the range is readable and writable in the linear map
    /// until `unmap`. Mapping it again after that needs no page tables.
    pub unsafe fn set_mapper(&self, mapper: Mapper) {
        *self.mapper.lock() = Some(mapper);
    }

    /// Takes a frame for a page table, if the kernel is mapping memory for the engine.
    pub fn take_table(&self) -> Option<Pfn> {
        self.tables.lock().take()
    }

    fn mapper(&self) -> Option<Mapper> {
        *self.mapper.lock()
    }
}

// SAFETY: the callers of `new` and `set_mapper` have promised what the trait requires. Frames from
// `take` become page tables or are freed.
unsafe impl<P: Platform, L: RawMutex> Mapping for &LateMapping<'_, P, L> {
    fn base(&self) -> *mut u8 {
        self.map.base()
    }

    fn reach(&self) -> PfnRange {
        self.reach
    }

    fn can_map(&self, range: PfnRange) -> Result<(), Veto> {
        self.mapper().map_or(Ok(()), |mapper| (mapper.can_map)(range))
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        self.mapper().map_or(0, |mapper| (mapper.tables_needed)(range))
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        if let Some(mapper) = self.mapper() {
            // SAFETY: the engine allocated the frames for this, from this machine.
            unsafe { self.tables.lock().fill(take) };
            // The lock is not held, because the mapper calls `take_table`.
            (mapper.map)(range);
            self.tables.lock().free_rest();
        }
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        if let Some(mapper) = self.mapper() {
            (mapper.unmap)(range);
        }
    }

    unsafe fn remap(&mut self, range: PfnRange) {
        // The tables are still there.
        if let Some(mapper) = self.mapper() {
            (mapper.map)(range);
        }
    }
}

impl<P, L> fmt::Debug for LateMapping<'_, P, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateMapping").field("reach", &self.reach).finish_non_exhaustive()
    }
}
