//! A source of memory for the heap talc, which allocates talc's heaps from an instance's frames and
//! frees them.

use core::alloc::Layout;
use core::fmt;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{AllocRequest, Bytes, Frames, PfnRange, Platform};
use hotmem_invariant::OrRecordViolation;
use hotmem_port::{AllocRetry, LinearMap};
use talc::base::{CHUNK_UNIT, Talc, binning::Binning};
use talc::source::Source;

/// The size of talc's heaps if the kernel chooses none: small enough that a few objects that stay
/// allocated keep little memory, and large enough that talc seldom asks for the next heap.
const DEFAULT_HEAP: Bytes = Bytes(64 << 10);

/// The bits of an address that are an offset in its frame.
#[allow(clippy::cast_possible_truncation, reason = "4095 fits")]
const OFFSET_MASK: usize = FRAME_SIZE as usize - 1;

/// The memory of a kernel whose heap is talc: an alternative to [`Heap`](crate::Heap).
///
/// When talc has no room for an object, the source allocates frames and gives them to talc as a
/// *heap*, talc's word for a contiguous piece of memory. A heap without objects goes back to
/// [`Frames`] as a whole, and so does the free end of a heap when it is as long as a quarter of the
/// [size of heaps](Self::with_heap_size). Free memory between objects stays in the heap. The first
/// heap also has talc's own lists, so its first frame stays in use.
///
/// ```
/// use core::alloc::{GlobalAlloc, Layout};
/// use hotmem::{AlwaysMapped, Frames, Hotplug, OneCpu, PfnRange};
/// use hotmem_heap::FrameSource;
/// use hotmem_port::LinearMap;
/// use talc::TalcLock;
///
/// static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// // SAFETY: the layout is not empty.
/// let memory = unsafe { std::alloc::alloc_zeroed(Layout::from_size_align(64 << 20, 4096)?) };
/// type Lock = spin::mutex::SpinMutex<()>; // or one that disables interrupts
/// // A kernel has a `static` with `#[global_allocator]` here.
/// let heap: TalcLock<Lock, _> =
///     TalcLock::new(FrameSource::new(&FRAMES, LinearMap::new(memory)));
///
/// let layout = Layout::new::<[u64; 500]>();
/// // SAFETY: the layout is not empty.
/// assert!(unsafe { heap.alloc(layout) }.is_null()); // there is no memory yet
/// // SAFETY: 64 MiB are mapped there, and nothing else uses them.
/// let mapping = unsafe { AlwaysMapped::new(memory, PfnRange::ALL) };
/// // SAFETY: the map is correct, and nothing else uses this memory.
/// let hotplug = unsafe { Hotplug::bootstrap(&FRAMES, mapping, &[(0..64 << 20).into()])? };
/// // SAFETY: as above.
/// let object = unsafe { heap.alloc(layout) };
/// assert!(!object.is_null());
/// // SAFETY: the object was allocated with this layout.
/// unsafe { heap.dealloc(object, layout) };
/// # drop(hotplug);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The source takes no lock. Talc calls it while it holds its own lock, in every context in which
/// that lock may be taken.
///
/// Cost: [`Frames::alloc`] for a new heap and [`Frames::free_raw`] for a returned one. An object of
/// more than the size of a heap gets a heap of its own, so each of its allocations takes frames.
///
/// Nothing else may claim, extend, truncate or resize heaps of the same talc, with one exception: a
/// kernel that needs a heap before it knows its memory may claim one region before the first
/// allocation, if the region has fewer bytes than a quarter of the size of heaps. If the talc is
/// dropped, its frames stay allocated.
pub struct FrameSource<'f, P> {
    frames: &'f Frames<P>,
    map: LinearMap,
    /// The number of frames of a heap, unless one object needs more.
    heap_frames: u64,
}

impl<'f, P: Platform> FrameSource<'f, P> {
    /// Makes a source that allocates from `frames`. `map` must be the linear map of the machine, at
    /// the base of its [`Map`](hotmem::Map).
    #[must_use]
    pub const fn new(frames: &'f Frames<P>, map: LinearMap) -> FrameSource<'f, P> {
        FrameSource { frames, map, heap_frames: DEFAULT_HEAP.0 / FRAME_SIZE }
    }

    /// Sets the size of heaps, rounded up to frames and at least one frame: 64 KiB by default.
    /// Objects that stay allocated keep less memory if heaps are small, and talc asks for memory
    /// more seldom if they are large.
    #[must_use]
    pub const fn with_heap_size(self, size: Bytes) -> FrameSource<'f, P> {
        let frames = size.0.div_ceil(FRAME_SIZE);
        FrameSource { heap_frames: if frames == 0 { 1 } else { frames }, ..self }
    }

    /// Returns the number of bytes from which on the free end of a heap is freed: a quarter of a
    /// heap, and at least a frame, so that objects that are allocated and freed at the end of a heap
    /// seldom move this end.
    const fn min_free_end(&self) -> u64 {
        self.heap_frames.div_ceil(4) * FRAME_SIZE
    }

    /// Allocates the frames of a heap, or only as many as are `needed` if no more are free.
    fn alloc_heap(&self, needed: u64) -> Option<PfnRange> {
        let alloc = |frames| self.frames.alloc_retry(AllocRequest::frames(frames)).ok();
        let heap = alloc(needed.max(self.heap_frames)).or_else(|| alloc(needed))?;
        Some(heap.into_raw())
    }

    /// Frees frames. The engine refuses them only if they are free already, so only if something
    /// else has changed talc's heaps.
    ///
    /// # Safety
    /// The source has allocated the frames, and nothing uses them any more.
    unsafe fn free(&self, frames: PfnRange) {
        // SAFETY: by the caller's promise.
        let _ = unsafe { self.frames.free_raw(frames) }.or_record_violation();
    }
}

/// Returns the number of frames with which a heap has room for an object, wherever the object lies
/// in the heap. Returns `None` if there can be no such heap.
fn frames_needed<B: Binning>(layout: Layout, is_first_heap: bool) -> Option<u64> {
    // Talc loses at most a unit at each end of a heap. The first heap has talc's lists, too.
    let lists = if is_first_heap { talc::min_first_heap_size::<B>() } else { 0 };
    let overhead = lists + 2 * CHUNK_UNIT;
    let bytes = layout.size().checked_add(layout.align())?.checked_add(overhead)?;
    Some((bytes as u64).div_ceil(FRAME_SIZE))
}

// SAFETY: `acquire` and `resize` only allocate and free frames, so they do not use the talc that
// calls them. `resize` returns addresses from `chunk_base` to `heap_end`.
unsafe impl<P: Platform> Source for FrameSource<'_, P> {
    const TRACK_HEAP_END: bool = true;

    #[cold]
    #[allow(clippy::cast_possible_truncation, reason = "the linear map maps the heap")]
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let needed = frames_needed::<B>(layout, !talc.is_metadata_established()).ok_or(())?;
        let heap = talc.source.alloc_heap(needed).ok_or(())?;
        let start = talc.source.map.pointer(heap.start());
        // SAFETY: the frames of the heap were allocated above, and nothing else uses them.
        if unsafe { talc.claim(start, heap.bytes().0 as usize) }.is_none() {
            // SAFETY: talc has not taken the frames, so nothing uses them.
            unsafe { talc.source.free(heap) };
            return Err(());
        }
        Ok(())
    }

    unsafe fn resize(
        &mut self,
        chunk_base: *mut u8,
        heap_end: *mut u8,
        is_heap_base: bool,
    ) -> *mut u8 {
        let free_bytes = (heap_end.addr() - chunk_base.addr()) as u64;
        if !is_heap_base && free_bytes < self.min_free_end() {
            return heap_end;
        }
        // All heaps begin and end at a frame. The base of a heap lies in its first unit, but is not
        // its start.
        let end = if is_heap_base {
            chunk_base.map_addr(|address| (address - 1) & !OFFSET_MASK)
        } else {
            chunk_base.map_addr(|address| (address + OFFSET_MASK) & !OFFSET_MASK)
        };
        let unused = self.map.frames(end, heap_end.addr() - end.addr()).or_record_violation();
        if let Some(unused) = unused {
            // SAFETY: the heap consists of frames that `acquire` has allocated, and talc uses
            // nothing between `end` and `heap_end` after this call.
            unsafe { self.free(unused) };
        }
        if is_heap_base { chunk_base } else { end }
    }
}

impl<P> fmt::Debug for FrameSource<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrameSource { frames, heap_frames, .. } = self;
        f.debug_struct("FrameSource")
            .field("frames", frames)
            .field("heap_frames", heap_frames)
            .finish_non_exhaustive()
    }
}
