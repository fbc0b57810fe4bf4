//! How ArceOS maps memory, and the page tables that it is lent.

use crate::machine::{FRAMES, LINEAR};
use hotmem::{Mapping, Pfn, PfnRange};
use hotmem_port::{LatePlatform, LentFrames};
use kspin::SpinNoIrq;

/// ArceOS's own code for its page tables, which lies above this crate.
#[derive(Clone, Copy)]
pub struct Mapper {
    /// Maps memory in the linear map.
    pub map: fn(PfnRange),
    /// Takes it out again, and leaves the page tables.
    pub unmap: fn(PfnRange),
}

static MAPPER: SpinNoIrq<Option<Mapper>> = SpinNoIrq::new(None);
static TABLES: SpinNoIrq<LentFrames<LatePlatform>> =
    SpinNoIrq::new(LentFrames::new(&FRAMES, LINEAR));

/// From now on memory is mapped by this. Until then it is taken for mapped, as ArceOS's boot code
/// maps 512 GiB.
///
/// # Safety
/// After `map` all of the range is readable and writable in the linear map until `unmap`.
pub unsafe fn set_mapper(mapper: Mapper) {
    *MAPPER.lock() = Some(mapper);
}

pub(crate) fn take_table() -> Option<Pfn> {
    TABLES.lock().take()
}

/// The linear map.
pub struct KernelMapping;

// SAFETY: ArceOS's boot code maps all that is in reach, or else `set_mapper` was promised that the
// mapper does.
unsafe impl Mapping for KernelMapping {
    fn base(&self) -> *mut u8 {
        LINEAR.base()
    }

    fn reach(&self) -> PfnRange {
        PfnRange::with_len(Pfn::ZERO, 512 << 18).expect("512 GiB")
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        // Pages of 4 KiB: a table for each 2 MiB, for each GiB, and one above.
        let tables = range.chunks(1 << 9).count() + range.chunks(1 << 18).count() + 1;
        if MAPPER.lock().is_some() { tables as u64 } else { 0 }
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        let mapper = *MAPPER.lock();
        if let Some(mapper) = mapper {
            // SAFETY: the frames were allocated for this, from this machine.
            unsafe { TABLES.lock().fill(take) };
            (mapper.map)(range);
            TABLES.lock().free_rest();
        }
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        let mapper = *MAPPER.lock();
        if let Some(mapper) = mapper {
            (mapper.unmap)(range);
        }
    }

    unsafe fn remap(&mut self, range: PfnRange) {
        // The tables are still there.
        let mapper = *MAPPER.lock();
        if let Some(mapper) = mapper {
            (mapper.map)(range);
        }
    }
}
