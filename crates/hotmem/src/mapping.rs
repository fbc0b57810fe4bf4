//! Defines the kernel's mapping of physical memory. The soundness of the engine rests on its
//! contract.
//!
//! The engine keeps metadata in memory that it was given, fills memory if the kernel [requires
//! it](crate::Contents), and hands memory to owners who write to it. All these accesses use one
//! mapping, which [`Hotplug::bootstrap`](crate::Hotplug::bootstrap) takes and keeps: no safe call
//! can replace it.

use crate::addr::{Pfn, PfnRange};
use crate::range_error::{RangeErrorKind, Veto};

/// Maps and describes memory for the engine. The defaults are those of a machine whose memory is
/// always mapped and has no descriptors: see [`AlwaysMapped`].
///
/// Requests of the control path that add or remove memory call these methods, in the context in
/// which the kernel makes the request. No lock of the engine is held; the methods may use the frame
/// allocator.
///
/// # Safety
/// The implementation promises, for as long as the [`Frames`](crate::Frames) of the machine live:
/// - [`base`](Self::base), a multiple of 4096, and [`reach`](Self::reach) never change.
/// - From the return of [`map`](Self::map) or [`remap`](Self::remap) to the call of
///   [`unmap`](Self::unmap), each byte of the range is memory, readable and writable at `base` +
///   its physical address, and is used only by the engine and by the owners that the engine hands
///   it to. The engine maps only ranges that lie within `reach` and were announced; the
///   implementation also promises that a device has put memory there. Boot memory is mapped from
///   the start, and never unmapped.
/// - Dropping the mapping unmaps nothing.
/// - Frames that `take` yields are used for page tables and descriptors of this machine only. A
///   frame that is given to `free` is one of these (or of the kernel's own allocations); nobody
///   uses it any more, and it is not given twice. The engine refuses a frame that is not allocated:
///   see [`frame_refused`](Self::frame_refused).
/// - Only [`describe`](Self::describe) writes the pageblocks that [`keeps`](Self::keeps) names, and
///   not after the range that they describe is [undescribed](Self::undescribe).
///
/// ```
/// use hotmem::{Bytes, Mapping, Pfn, PfnRange};
/// use std::collections::BTreeMap;
///
/// /// Maps memory in pages of 2 MiB: a table for each GiB.
/// struct Kernel {
///     base: *mut u8,
///     tables: BTreeMap<Pfn, Pfn>,
/// }
///
/// const GIB: u64 = Bytes::gib(1).frames();
///
/// // SAFETY: `map` writes an entry for all of the range, `unmap` clears it and flushes every TLB.
/// unsafe impl Mapping for Kernel {
///     fn base(&self) -> *mut u8 {
///         self.base
///     }
///
///     fn tables_needed(&self, range: PfnRange) -> u64 {
///         range.chunks(GIB).count() as u64
///     }
///
///     unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
///         for part in range.chunks(GIB) {
///             let table = self.tables.entry(part.start().align_down(GIB));
///             table.or_insert_with(|| take().expect("as asked for"));
///             // Its entries for `part` are written.
///         }
///     }
///
///     unsafe fn unmap(&mut self, range: PfnRange) {
///         // The entries are cleared, and every TLB flushed.
///     }
///
///     unsafe fn remap(&mut self, range: PfnRange) {
///         // The entries are written again.
///     }
///
///     unsafe fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
///         for whole in range.chunks(GIB).filter(|part| part.frames() == GIB) {
///             self.tables.remove(&whole.start()).into_iter().for_each(&mut *free);
///         }
///     }
/// }
///
/// let range = PfnRange::from_bytes(512 << 20, Bytes::gib(2))?;
/// let kernel = Kernel { base: std::ptr::null_mut(), tables: BTreeMap::new() };
/// assert_eq!(kernel.tables_needed(range), 3);
/// # Ok::<(), hotmem::AddrError>(())
/// ```
///
/// Safe code cannot implement it:
///
/// ```compile_fail,E0200
/// # use hotmem::Mapping;
/// struct Nowhere;
/// impl Mapping for Nowhere {
///     fn base(&self) -> *mut u8 {
///         std::ptr::null_mut()
///     }
/// }
/// ```
pub unsafe trait Mapping {
    /// Returns where physical address 0 is mapped, or would be: virtual address = `base` + physical
    /// address, with wrapping. It is a multiple of 4096. The pointer's provenance covers all memory
    /// that is mapped.
    fn base(&self) -> *mut u8;

    /// Returns the frames that can ever be mapped. Boot and [`announce`](crate::Hotplug::announce)
    /// refuse other memory.
    fn reach(&self) -> PfnRange {
        PfnRange::ALL
    }

    /// Decides whether `range` can be mapped. [`map`](Self::map) cannot fail, so a kernel whose own
    /// code may refuse to map reports that here, before anything is allocated for the addition.
    ///
    /// # Errors
    /// A veto refuses the addition.
    fn can_map(&self, range: PfnRange) -> Result<(), Veto> {
        let _ = range;
        Ok(())
    }

    /// Returns how many frames of page tables mapping `range` needs at most.
    fn tables_needed(&self, range: PfnRange) -> u64 {
        let _ = range;
        0
    }

    /// Returns how many frames the descriptors of `range` as RAM need at most, with their page
    /// tables and without the pageblocks that the kernel [keeps](Self::keeps) of the memory itself.
    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        let _ = range;
        0
    }

    /// Returns how many pageblocks at the start of `section`, which is added as a whole, hold the
    /// section's own descriptors: one for 64 bytes a frame. With such pageblocks, adding memory
    /// needs no free memory for its descriptors. They come online with the section, but are never
    /// allocated or migrated. They do not prevent its removal, and are removed with the last part
    /// of it.
    fn keeps(&self, section: PfnRange) -> u64 {
        let _ = section;
        0
    }

    /// Maps `range` in the direct map, with page tables from `take`. Cannot fail: `take` yields as
    /// many frames as [`tables_needed`](Self::tables_needed) has returned, with undefined contents.
    /// The engine frees those that are not taken.
    ///
    /// # Safety
    /// The engine promises: `range` is being added, and `take` yields frames that nobody else uses.
    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        let _ = (range, take);
    }

    /// Makes the descriptors of `range`, which is mapped, as RAM: in the pageblocks of it that the
    /// kernel [keeps](Self::keeps), and in frames from `take`. Cannot fail: `take` yields as many
    /// frames as [`descriptors_needed`](Self::descriptors_needed) has returned.
    ///
    /// # Safety
    /// The engine promises: `range` is mapped and used by nobody, and `take` yields frames that
    /// nobody else uses.
    unsafe fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        let _ = (range, take);
    }

    /// Removes the descriptors of `range`, which is no RAM any more. Gives to `free` the frames
    /// that held them, and those of their page tables that map nothing else.
    ///
    /// # Safety
    /// The engine promises: `range` was described, and is used by nobody.
    unsafe fn undescribe(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let _ = (range, free);
    }

    /// Unmaps `range` in the direct map, and in the memmap where the kernel [keeps](Self::keeps)
    /// parts of `range` for descriptors, and flushes it from every TLB. The page tables stay, so
    /// that [`remap`](Self::remap) cannot fail.
    ///
    /// # Safety
    /// The engine promises: `range` was mapped, and is used by nobody.
    unsafe fn unmap(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Undoes [`unmap`](Self::unmap): the device did not take the memory.
    ///
    /// # Safety
    /// The engine promises: `range` is part of a range that was unmapped, and its tables were not
    /// released.
    unsafe fn remap(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Releases the page tables that mapped nothing but `range`, which is removed. Gives their
    /// frames to `free`.
    ///
    /// # Safety
    /// The engine promises: `range` was unmapped, and is not mapped again before it is added again.
    unsafe fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let _ = (range, free);
    }

    /// Reports the first frame that [`undescribe`](Self::undescribe) or
    /// [`release_tables`](Self::release_tables) gave to `free` in this call and that was not
    /// allocated. The engine has not changed the frame, and removes the memory in spite of this.
    /// The kernel has a bug: it gave a frame back twice, or one that it never had.
    fn frame_refused(&mut self, frame: Pfn, why: RangeErrorKind) {
        let _ = (frame, why);
    }
}

/// The mapping of memory that is mapped from the start: there is nothing to map or unmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlwaysMapped {
    base: *mut u8,
    reach: PfnRange,
}

// SAFETY: the pointer is only an address here; each use of it states why it is safe.
unsafe impl Send for AlwaysMapped {}
// SAFETY: as above.
unsafe impl Sync for AlwaysMapped {}

impl AlwaysMapped {
    /// Returns the mapping of memory whose physical address 0 is mapped at `base`, or would be.
    /// Memory outside `reach` is neither announced nor boot memory.
    ///
    /// # Safety
    /// Each byte of `reach` that is boot memory or announced is memory, readable and writable at
    /// `base` + its physical address for as long as the machine's [`Frames`](crate::Frames) live,
    /// and is used by nobody else. `base` is a multiple of 4096.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, reach: PfnRange) -> AlwaysMapped {
        AlwaysMapped { base, reach }
    }
}

// SAFETY: the caller of `new` has promised what the trait requires.
unsafe impl Mapping for AlwaysMapped {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn reach(&self) -> PfnRange {
        self.reach
    }
}

// SAFETY: this is the same mapping, which nobody else can change while it is borrowed.
unsafe impl<M: Mapping + ?Sized> Mapping for &mut M {
    fn base(&self) -> *mut u8 {
        (**self).base()
    }

    fn reach(&self) -> PfnRange {
        (**self).reach()
    }

    fn can_map(&self, range: PfnRange) -> Result<(), Veto> {
        (**self).can_map(range)
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        (**self).tables_needed(range)
    }

    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        (**self).descriptors_needed(range)
    }

    fn keeps(&self, section: PfnRange) -> u64 {
        (**self).keeps(section)
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        // SAFETY: by the caller's promise.
        unsafe { (**self).map(range, take) };
    }

    unsafe fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        // SAFETY: by the caller's promise.
        unsafe { (**self).describe(range, take) };
    }

    unsafe fn undescribe(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        // SAFETY: by the caller's promise.
        unsafe { (**self).undescribe(range, free) };
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        // SAFETY: by the caller's promise.
        unsafe { (**self).unmap(range) };
    }

    unsafe fn remap(&mut self, range: PfnRange) {
        // SAFETY: by the caller's promise.
        unsafe { (**self).remap(range) };
    }

    unsafe fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        // SAFETY: by the caller's promise.
        unsafe { (**self).release_tables(range, free) };
    }

    fn frame_refused(&mut self, frame: Pfn, why: RangeErrorKind) {
        (**self).frame_refused(frame, why);
    }
}
