//! Implements the heap, and Rust's allocator traits for it.

use crate::class::SizeClass;
use crate::shard::Shard;
use crate::slab::Slab;
use core::alloc::{GlobalAlloc, Layout};
use core::fmt;
use core::ptr::{NonNull, null_mut};
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{AllocError, AllocRequest, Bytes, Contents, Frames, PfnRange, Platform};
use hotmem_invariant::OrRecordViolation;
use hotmem_port::{AllocRetry, LinearMap};
use lock_api::{Mutex, RawMutex};

/// A heap that allocates its memory from an instance's frames, and frees frames without objects.
///
/// A kernel's global allocator is a `static`:
///
/// ```
/// use hotmem::{Frames, OneCpu};
/// use hotmem_heap::Heap;
/// use hotmem_port::LinearMap;
///
/// type Lock = spin::mutex::SpinMutex<()>;
///
/// static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// // A kernel adds `#[global_allocator]` here.
/// static HEAP: Heap<OneCpu, Lock> =
///     Heap::new(&FRAMES, LinearMap::at_address(0xffff_8000_0000_0000));
/// ```
///
/// Each CPU allocates from its own slabs if [`Platform::cpu`] returns distinct numbers below
/// `SHARDS`. Any CPU may free an object that another one has allocated.
///
/// Context: any in which the lock `L` may be taken. If `L` disables interrupts, interrupt handlers
/// may allocate. The lock is held for a few instructions, or for an allocation of frames. Objects of
/// more than 3 KiB take no lock.
pub struct Heap<'f, P, L, const SHARDS: usize = 16> {
    frames: &'f Frames<P>,
    map: LinearMap,
    shards: [LockedShard<L>; SHARDS],
}

/// A shard and its lock, aligned so that no two shards share a cache line.
#[repr(align(128))]
struct LockedShard<L>(Mutex<L, Shard>);

impl<'f, P: Platform, L: RawMutex, const SHARDS: usize> Heap<'f, P, L, SHARDS> {
    /// Makes an empty heap that allocates from `frames`. `map` must be the linear map of the
    /// machine, at the base of its [`Map`](hotmem::Map).
    ///
    /// # Panics
    /// Panics if `SHARDS` is 0 or more than 65536. In a constant this is a compile error.
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, map: LinearMap) -> Heap<'f, P, L, SHARDS> {
        assert!(SHARDS > 0 && SHARDS <= 1 << 16);
        Heap { frames, map, shards: [const { LockedShard(Mutex::new(Shard::new())) }; SHARDS] }
    }

    /// Allocates memory, whose contents are undefined. Returns `None` if no memory is free. A layout
    /// of size zero gets some bytes as well. An address has an alignment above 4096 only if the base
    /// of the linear map has that alignment.
    ///
    /// Cost: for up to 3 KiB, taking the lock, and making a slab if the CPU's slabs have no free
    /// object. For more than 3 KiB, the cost of [`Frames::alloc`].
    pub fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        match SizeClass::of(layout) {
            Some(class) => self.alloc_small(class),
            None => self.alloc_frames(layout),
        }
    }

    /// Allocates memory as [`alloc`](Self::alloc) does, of which the first `layout.size()` bytes are zero.
    /// Writes no zeroes to whole frames that the engine [knows to be
    /// zero](Frames::alloc_with_contents).
    ///
    /// Cost: as for [`alloc`](Self::alloc), and that of writing the zeroes.
    pub fn alloc_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (memory, contents) = match SizeClass::of(layout) {
            Some(class) => (self.alloc_small(class)?, Contents::Undefined),
            None => self.alloc_frames_with_contents(layout)?,
        };
        if contents != Contents::Filled(0) {
            // SAFETY: at least `layout.size()` bytes were allocated.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        Some(memory)
    }

    /// Frees an allocation.
    ///
    /// Cost: as for [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// The memory was allocated from this heap with this layout, and is not used any more.
    pub unsafe fn free(&self, memory: NonNull<u8>, layout: Layout) {
        let Some(class) = SizeClass::of(layout) else {
            // SAFETY: by the caller's promise. An allocation of this size consists of whole frames.
            return unsafe { self.free_frames(self.frames_of(memory, layout.size())) };
        };
        // Derive the pointers from the map's base, because the provenance of `memory` may cover the
        // object only, and not the header of its slab.
        let offset = memory.addr().get().wrapping_sub(self.map.base().addr());
        let start = offset & !(class.slab_bytes() - 1);
        let slab = NonNull::new(self.map.base().wrapping_add(start).cast::<Slab>());
        let object = NonNull::new(self.map.base().wrapping_add(offset));
        let (Some(slab), Some(object)) = (slab, object) else { return };
        // SAFETY: a slab with an allocated object is not freed, and `shard` never changes.
        let shard = usize::from(unsafe { (*slab.as_ptr()).shard });
        let mut shard = self.shards[shard % SHARDS].0.lock();
        // SAFETY: the slab belongs to this shard, and the caller owns the object.
        let empty = unsafe { shard.free(slab, object) };
        drop(shard);
        if let Some(empty) = empty {
            // SAFETY: `empty` belongs to no shard any more, and has no objects.
            unsafe { self.free_slab(empty) };
        }
    }

    /// Changes the size of an allocation to `size` bytes, in place if possible, and keeps its
    /// alignment. Returns `None`, and changes nothing, if no memory is free.
    ///
    /// # Safety
    /// `memory` was allocated from this heap with this layout. If this returns an allocation,
    /// `memory` is not used any more.
    pub unsafe fn resize(
        &self,
        memory: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Option<NonNull<u8>> {
        let new = Layout::from_size_align(size, layout.align()).ok()?;
        match (SizeClass::of(layout), SizeClass::of(new)) {
            (Some(old), Some(new)) if old == new => return Some(memory),
            // SAFETY: by the caller's promise.
            (None, None) if unsafe { self.resize_frames(memory, layout.size(), size) } => {
                return Some(memory);
            }
            _ => {}
        }
        let moved = self.alloc(new)?;
        // SAFETY: both allocations have at least this many bytes and do not overlap, because `moved`
        // was just allocated.
        unsafe {
            moved.copy_from_nonoverlapping(memory, layout.size().min(size));
            self.free(memory, layout);
        }
        Some(moved)
    }

    /// Frees the empty slabs that the heap keeps: at most one for each CPU and size. Returns how many
    /// bytes were freed.
    ///
    /// A kernel calls this before memory is unplugged, or from
    /// [`Hooks::migrate`](hotmem::Hooks::migrate) and [`Hooks::discard`](hotmem::Hooks::discard). The
    /// implementation of [`Hooks`](hotmem::Hooks) for `&Heap` does the latter.
    ///
    /// Cost: O(slabs that are neither full nor empty).
    pub fn trim(&self) -> Bytes {
        let mut frames = 0;
        for LockedShard(shard) in &self.shards {
            for class in SizeClass::all() {
                let empty = shard.lock().take_empty(class);
                if let Some(empty) = empty {
                    frames += class.frames() as u64;
                    // SAFETY: `empty` belongs to no shard any more, and has no objects.
                    unsafe { self.free_slab(empty) };
                }
            }
        }
        Bytes(frames * FRAME_SIZE)
    }

    /// Sets aside the slabs in the pageblocks of `range`: no new object is placed in them, and each
    /// slab is freed when its last object is freed. So memory can be unplugged while objects are
    /// allocated and freed. If no memory is free for a new slab, the heap again uses a slab that was
    /// set aside.
    ///
    /// This call skips full slabs, and empty slabs, which [`trim`](Self::trim) frees. So call
    /// `vacate` and `trim` repeatedly until the memory is free, as the [hooks](hotmem::Hooks) of a
    /// heap do.
    ///
    /// Cost: O(slabs that are neither full nor empty).
    pub fn vacate(&self, range: PfnRange) {
        let range = range.align_outward(PAGEBLOCK_FRAMES as u64);
        let addresses = self.map.pointer(range.start())..self.map.pointer(range.end());
        for LockedShard(shard) in &self.shards {
            SizeClass::all().for_each(|class| shard.lock().set_aside(class, &addresses));
        }
    }

    #[inline]
    fn alloc_small(&self, class: SizeClass) -> Option<NonNull<u8>> {
        let shard_number = self.frames.platform().cpu() % SHARDS;
        let mut shard = self.shards[shard_number].0.lock();
        if let Some(object) = shard.alloc(class) {
            return Some(object);
        }
        match self.make_slab(class, shard_number) {
            // SAFETY: `slab` was just made for this shard.
            Some(slab) => unsafe { shard.add(slab) },
            None if shard.reuse_set_aside(class) => {}
            None => return None,
        }
        shard.alloc(class)
    }

    #[cold]
    #[allow(clippy::cast_possible_truncation, reason = "`new` allows at most 65536 shards")]
    fn make_slab(&self, class: SizeClass, shard: usize) -> Option<NonNull<Slab>> {
        let frames = class.frames() as u64;
        let frames =
            self.frames.alloc_retry(AllocRequest::frames(frames).aligned(frames)).ok()?.into_raw();
        let memory = NonNull::new(self.map.pointer(frames.start()))?;
        // SAFETY: the frames of a slab of this class, aligned to its size, were just allocated.
        Some(unsafe { Slab::make(memory, class, shard as u16) })
    }

    /// Frees the frames of a slab.
    ///
    /// # Safety
    /// The slab has no objects, and belongs to no shard.
    unsafe fn free_slab(&self, slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise.
        unsafe {
            let bytes = slab.as_ref().class.slab_bytes();
            self.free_frames(self.frames_of(slab.cast(), bytes));
        }
    }

    fn alloc_frames(&self, layout: Layout) -> Option<NonNull<u8>> {
        let frames = self.frames.alloc_retry(layout.into()).ok()?.into_raw();
        NonNull::new(self.map.pointer(frames.start()))
    }

    /// Allocates whole frames. Also returns what they contain.
    fn alloc_frames_with_contents(&self, layout: Layout) -> Option<(NonNull<u8>, Contents)> {
        let (frames, contents) = match self.frames.alloc_with_contents(layout.into()) {
            Err(AllocError::Busy) => {
                (self.frames.alloc_retry(layout.into()).ok()?, Contents::Undefined)
            }
            result => result.ok()?,
        };
        Some((NonNull::new(self.map.pointer(frames.into_raw().start()))?, contents))
    }

    /// Resizes an allocation of whole frames in place. Returns false, and changes nothing, if that
    /// is not possible.
    ///
    /// # Safety
    /// `memory` is an allocation of `old` bytes from this heap. Its bytes beyond `size` are not used
    /// any more.
    unsafe fn resize_frames(&self, memory: NonNull<u8>, old: usize, size: usize) -> bool {
        let (old, new) = (self.frames_of(memory, old), self.frames_of(memory, size));
        if new.frames() <= old.frames() {
            let remaining = old.split_at(new.end()).1;
            if !remaining.is_empty() {
                // SAFETY: by the caller's promise.
                unsafe { self.free_frames(remaining) };
            }
            return true;
        }
        let extension = AllocRequest::frames(new.frames() - old.frames()).at(old.end());
        self.frames.alloc(extension).map(|frames| frames.into_raw()).is_ok()
    }

    /// Returns the frames of an allocation of whole frames. An allocation of size zero has one frame.
    fn frames_of(&self, memory: NonNull<u8>, bytes: usize) -> PfnRange {
        // The frames exist, because the memory was allocated.
        let frames = self.map.frames(memory.as_ptr(), bytes.max(1));
        frames.or_record_violation().unwrap_or(PfnRange::EMPTY)
    }

    /// Frees frames. The engine refuses the frames only if they are free already, so only if a
    /// caller of [`free`](Self::free) has broken its promise.
    ///
    /// # Safety
    /// The heap owns the frames, and nothing uses them any more.
    unsafe fn free_frames(&self, frames: PfnRange) {
        // SAFETY: by the caller's promise.
        let _ = unsafe { self.frames.free_raw(frames) }.or_record_violation();
    }
}

// SAFETY: allocated memory has one owner until it is freed, because objects of a slab do not overlap
// and frames have one owner. The memory has at least the size and the alignment of its layout.
unsafe impl<P: Platform, L: RawMutex, const SHARDS: usize> GlobalAlloc for Heap<'_, P, L, SHARDS> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Heap::alloc(self, layout).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Heap::alloc_zeroed(self, layout).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if let Some(memory) = NonNull::new(memory) {
            // SAFETY: by the caller's promise.
            unsafe { self.free(memory, layout) };
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let memory = NonNull::new(memory);
        // SAFETY: by the caller's promise.
        let resized = memory.and_then(|memory| unsafe { self.resize(memory, layout, size) });
        resized.map_or(null_mut(), NonNull::as_ptr)
    }
}

#[cfg(feature = "allocator-api2")]
// SAFETY: as for `GlobalAlloc`. All references to the heap are equivalent.
unsafe impl<P: Platform, L: RawMutex, const SHARDS: usize> allocator_api2::alloc::Allocator
    for &Heap<'_, P, L, SHARDS>
{
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, allocator_api2::alloc::AllocError> {
        let memory = Heap::alloc(self, layout).ok_or(allocator_api2::alloc::AllocError)?;
        Ok(NonNull::slice_from_raw_parts(memory, layout.size()))
    }

    fn allocate_zeroed(
        &self,
        layout: Layout,
    ) -> Result<NonNull<[u8]>, allocator_api2::alloc::AllocError> {
        let memory = Heap::alloc_zeroed(self, layout).ok_or(allocator_api2::alloc::AllocError)?;
        Ok(NonNull::slice_from_raw_parts(memory, layout.size()))
    }

    unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { self.free(memory, layout) };
    }
}

impl<P, L, const SHARDS: usize> fmt::Debug for Heap<'_, P, L, SHARDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("frames", &self.frames).finish_non_exhaustive()
    }
}
