//! Defines the kernel's mapping of physical memory. The engine is sound only if the mapping keeps
//! its contract.
//!
//! The engine keeps metadata in RAM, fills memory if the kernel [requires it](crate::Contents), and
//! hands out memory to owners who write to it. All these accesses use one mapping, which
//! [`Hotplug::bootstrap`](crate::Hotplug::bootstrap) takes and keeps: no safe call can replace it.

use crate::addr::{Pfn, PfnRange};
use crate::descriptors::Describe;
use crate::range_error::{RangeError, Veto};

/// A [table reserve](Map::table_reserve) that suits most kernels, in frames. With the page tables
/// of x86-64, whose pages have 2 MiB or more, this is enough to add up to 13 GiB when no kernel
/// memory is free: a table for each GiB that the memory touches, and for each 512 GiB. With
/// descriptors of 64 bytes, it is enough for 2 MiB.
pub const TABLE_RESERVE: u64 = 16;
/// The largest number of frames that the engine keeps in reserve for page tables and descriptors.
pub(crate) const MAX_TABLE_RESERVE: usize = if cfg!(loom) {
    2
} else if cfg!(hotmem_geometry = "small") {
    4
} else {
    64
};

/// Maps and unmaps memory for the engine. No method has a default, because a kernel that forgets
/// one would lose memory or corrupt it. [`AlwaysMapped`] implements the trait for a machine whose
/// memory is always mapped.
///
/// Calls of the control path that add or remove memory call these methods, in the context of the
/// caller. The engine has no locks, so the methods may use the frame allocator.
///
/// # Safety
/// The implementation promises, for as long as the [`Frames`](crate::Frames) of the instance exist:
/// - [`base`](Self::base), a multiple of 4096, and [`mappable_range`](Self::mappable_range) never change.
/// - From the return of [`map`](Self::map) or [`remap`](Self::remap) to the call of
///   [`unmap`](Self::unmap), each byte of the range is memory, readable and writable at `base` +
///   its physical address, and is used only by the engine and by the owners to whom the engine
///   hands it out. The engine maps only ranges that lie within `mappable_range` and were announced. The
///   implementation promises that a device has put memory into these ranges. Boot memory is mapped
///   from the start, and never unmapped.
/// - Dropping the mapping unmaps nothing.
/// - Frames that `take` yields are used only for page tables of this instance. A frame that the
///   mapping passes to `free` is one of these, or one that the kernel allocated itself. Nobody uses
///   that frame any more, and the mapping passes it only once. The engine refuses a frame that is
///   not allocated.
///
/// ```
/// use hotmem::{Bytes, Describe, Map, Pfn, PfnRange, RangeError, TABLE_RESERVE, Veto};
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
/// unsafe impl Map for Kernel {
///     fn base(&self) -> *mut u8 {
///         self.base
///     }
///
///     fn mappable_range(&self) -> PfnRange {
///         PfnRange::ALL
///     }
///
///     fn table_reserve(&self) -> u64 {
///         TABLE_RESERVE
///     }
///
///     fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
///         Ok(range.chunks(GIB).count() as u64)
///     }
///
///     unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
///         for part in range.chunks(GIB) {
///             let table = self.tables.entry(part.start().align_down(GIB));
///             table.or_insert_with(|| take().expect("`tables_needed` has counted this table"));
///             // Its entries for `part` are written.
///         }
///     }
///
///     unsafe fn unmap(&mut self, range: PfnRange) {
///         // The entries are cleared, and every TLB flushed.
///     }
///
///     fn remap_tables_needed(&self, range: PfnRange) -> u64 {
///         0 // `unmap` keeps the tables.
///     }
///
///     unsafe fn remap(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
///         // The entries are written again.
///     }
///
///     unsafe fn release_tables(
///         &mut self,
///         range: PfnRange,
///         free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
///     ) {
///         for whole in range.chunks(GIB).filter(|part| part.frames() == GIB) {
///             let table = self.tables.remove(&whole.start());
///             table.map(&mut *free).transpose().expect("`map` has taken this table");
///         }
///     }
///
///     fn descriptors(&mut self) -> Option<&mut dyn Describe> {
///         None
///     }
/// }
///
/// let range = PfnRange::from_bytes(512 << 20, Bytes::gib(2))?;
/// let kernel = Kernel { base: std::ptr::null_mut(), tables: BTreeMap::new() };
/// assert_eq!(kernel.tables_needed(range), Ok(3));
/// # Ok::<(), hotmem::AddrError>(())
/// ```
///
/// An implementation that forgets a method, such as `unmap`, does not compile:
///
/// ```compile_fail,E0046
/// # use hotmem::{Describe, Map, Pfn, PfnRange, RangeError, Veto};
/// struct Forgetful;
/// unsafe impl Map for Forgetful {
///     fn base(&self) -> *mut u8 {
///         std::ptr::null_mut()
///     }
///     fn mappable_range(&self) -> PfnRange {
///         PfnRange::ALL
///     }
///     fn table_reserve(&self) -> u64 {
///         0
///     }
///     fn tables_needed(&self, _: PfnRange) -> Result<u64, Veto> {
///         Ok(0)
///     }
///     unsafe fn map(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
///     fn remap_tables_needed(&self, _: PfnRange) -> u64 {
///         0
///     }
///     unsafe fn remap(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
///     unsafe fn release_tables(
///         &mut self,
///         _: PfnRange,
///         _: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
///     ) {
///     }
///     fn descriptors(&mut self) -> Option<&mut dyn Describe> {
///         None
///     }
/// }
/// ```
///
/// Neither does a safe `impl`:
///
/// ```compile_fail,E0200
/// # use hotmem::{AlwaysMapped, Describe, Map, Pfn, PfnRange, RangeError, Veto};
/// struct Nowhere;
/// impl Map for Nowhere {
///     fn base(&self) -> *mut u8 {
///         std::ptr::null_mut()
///     }
/// #   fn mappable_range(&self) -> PfnRange {
/// #       PfnRange::ALL
/// #   }
/// #   fn table_reserve(&self) -> u64 {
/// #       0
/// #   }
/// #   fn tables_needed(&self, _: PfnRange) -> Result<u64, Veto> {
/// #       Ok(0)
/// #   }
/// #   unsafe fn map(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
/// #   unsafe fn unmap(&mut self, _: PfnRange) {}
/// #   fn remap_tables_needed(&self, _: PfnRange) -> u64 {
/// #       0
/// #   }
/// #   unsafe fn remap(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}
/// #   unsafe fn release_tables(
/// #       &mut self,
/// #       _: PfnRange,
/// #       _: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
/// #   ) {
/// #   }
/// #   fn descriptors(&mut self) -> Option<&mut dyn Describe> {
/// #       None
/// #   }
/// }
/// ```
pub unsafe trait Map {
    /// Returns the virtual address at which physical address 0 is mapped, or would be mapped if it
    /// is not RAM: virtual address = `base` + physical address, with wrapping. The result is a
    /// multiple of 4096. The pointer's provenance covers all memory that is mapped.
    fn base(&self) -> *mut u8;

    /// Returns the frames that can ever be mapped, [`PfnRange::ALL`] if there is no limit. Boot and
    /// [`announce`](crate::Hotplug::announce) refuse other memory.
    fn mappable_range(&self) -> PfnRange;

    /// Returns how many frames the engine keeps in reserve for page tables and descriptors:
    /// [`TABLE_RESERVE`], or 0 if the mapping takes no frames. The engine keeps at most 64. With
    /// these frames, memory can be added when no kernel memory is free. The engine calls this once,
    /// at boot, and fills the reserve again when kernel memory comes online.
    fn table_reserve(&self) -> u64;

    /// Returns the maximum number of frames that [`map`](Self::map) may take for the page tables of
    /// `range`, whatever is mapped when it is called: 0 if the tables of all memory exist. The
    /// result depends only on `range`: a table that exists now may be released by another request
    /// before `range` is mapped, so it counts as well.
    ///
    /// # Errors
    /// A veto refuses the addition of `range`. `map` cannot fail, so a kernel whose own code may
    /// refuse to map must refuse here, before anything is allocated for the addition.
    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto>;

    /// Maps `range` in the direct map, with page tables in frames from `take`. Must not fail:
    /// `take` yields as many frames as [`tables_needed`](Self::tables_needed) has returned. Their
    /// contents are undefined. The engine frees the frames that are not taken.
    ///
    /// # Safety
    /// The engine promises: `range` is being added, and `take` yields frames that nobody else uses.
    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>);

    /// Unmaps `range` in the direct map, and flushes it from every TLB. Does the same in the memmap
    /// for the [pageblocks of `range` that hold descriptors](Describe::pageblocks_needed). The page
    /// tables stay, whatever other memory is removed, until [`release_tables`](Self::release_tables)
    /// is called for them. If the kernel's own code frees tables here, the mapping says in
    /// [`remap_tables_needed`](Self::remap_tables_needed) how many [`remap`](Self::remap) needs.
    ///
    /// # Safety
    /// The engine promises: `range` was mapped, and is used by nobody.
    unsafe fn unmap(&mut self, range: PfnRange);

    /// Returns the maximum number of frames that [`remap`](Self::remap) may take for the page tables
    /// of `range`, whatever is mapped then: 0 if [`unmap`](Self::unmap) keeps the tables. Otherwise a
    /// removal first allocates these frames, and is refused if there are not enough; and a prepared
    /// removal cannot be [split](crate::Removal::split_at).
    fn remap_tables_needed(&self, range: PfnRange) -> u64;

    /// Undoes [`unmap`](Self::unmap): the device did not take the memory. Must not fail: `take`
    /// yields as many frames as [`remap_tables_needed`](Self::remap_tables_needed) has returned.
    ///
    /// # Safety
    /// The engine promises: `range` is part of a range that was unmapped, its tables were not
    /// released, and `take` yields frames that nobody else uses.
    unsafe fn remap(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>);

    /// Releases the page tables that mapped only `range`, which is removed. Passes their frames to
    /// `free`, which returns an error for a frame that is not allocated. Such an error is a bug of
    /// the kernel: it passed a frame twice, or one that it did not own. The engine has not changed
    /// the frame, and still removes the memory.
    ///
    /// # Safety
    /// The engine promises: `range` was unmapped, and is not mapped again before it is added again.
    unsafe fn release_tables(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    );

    /// Returns what describes RAM, or `None` if the kernel has no descriptors. The engine calls this
    /// for each addition and removal. A kernel that has descriptors only later describes the memory
    /// that is present by then itself, because the engine undescribes it when it is removed.
    fn descriptors(&mut self) -> Option<&mut dyn Describe>;
}

/// The mapping of a machine whose memory is always mapped: its methods map and unmap nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlwaysMapped {
    base: *mut u8,
    mappable_range: PfnRange,
}

// SAFETY: `AlwaysMapped` uses `base` only as an address; each access through it states why it is
// safe.
unsafe impl Send for AlwaysMapped {}
// SAFETY: `AlwaysMapped` uses `base` only as an address; each access through it states why it is
// safe.
unsafe impl Sync for AlwaysMapped {}

impl AlwaysMapped {
    /// Returns the mapping of memory whose physical address 0 is mapped at `base`, or would be
    /// mapped if it is not RAM. The engine refuses memory outside `mappable_range`.
    ///
    /// # Safety
    /// `base` is a multiple of 4096. For as long as the instance's [`Frames`](crate::Frames) live,
    /// each byte of `mappable_range` that is boot memory or announced is memory, is readable and
    /// writable at `base` + its physical address, and is used by nobody else.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, mappable_range: PfnRange) -> AlwaysMapped {
        AlwaysMapped { base, mappable_range }
    }
}

// SAFETY: the caller of `AlwaysMapped::new` has promised what the trait requires.
unsafe impl Map for AlwaysMapped {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn mappable_range(&self) -> PfnRange {
        self.mappable_range
    }

    fn table_reserve(&self) -> u64 {
        0
    }

    fn tables_needed(&self, _: PfnRange) -> Result<u64, Veto> {
        Ok(0)
    }

    unsafe fn map(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}

    unsafe fn unmap(&mut self, _: PfnRange) {}

    fn remap_tables_needed(&self, _: PfnRange) -> u64 {
        0
    }

    unsafe fn remap(&mut self, _: PfnRange, _: &mut dyn FnMut() -> Option<Pfn>) {}

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

// SAFETY: all methods call those of the mapping `M`, which keeps the promises. Nobody else can
// change that mapping while it is borrowed.
unsafe impl<M: Map + ?Sized> Map for &mut M {
    fn base(&self) -> *mut u8 {
        (**self).base()
    }

    fn mappable_range(&self) -> PfnRange {
        (**self).mappable_range()
    }

    fn table_reserve(&self) -> u64 {
        (**self).table_reserve()
    }

    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
        (**self).tables_needed(range)
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        // SAFETY: the caller has made the same promises.
        unsafe { (**self).map(range, take) };
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        // SAFETY: the caller has made the same promises.
        unsafe { (**self).unmap(range) };
    }

    fn remap_tables_needed(&self, range: PfnRange) -> u64 {
        (**self).remap_tables_needed(range)
    }

    unsafe fn remap(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        // SAFETY: the caller has made the same promises.
        unsafe { (**self).remap(range, take) };
    }

    unsafe fn release_tables(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
        // SAFETY: the caller has made the same promises.
        unsafe { (**self).release_tables(range, free) };
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        (**self).descriptors()
    }
}
