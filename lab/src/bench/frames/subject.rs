//! Names the measured allocators, and gives all of them one interface, which allocates and frees
//! runs of 2^order frames.

use super::value_name::value_name;
use crate::hosted::ThreadCpus;
use bitmap_allocator::{BitAlloc, BitAlloc16M, BitAlloc256M};
use buddy_system_allocator::FrameAllocator;
use hotmem::{
    AllocRequest, Bytes, Frames, NodeChoice, NodeId, Pfn, PfnRange, geometry::FRAME_SIZE,
};
use spin::Mutex;
use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};

/// The order of a huge page: a pageblock of 2 MiB.
pub(super) const HUGE_PAGE_ORDER: u32 = 9;

/// The order of the largest huge page, 1 GiB: 8 sections.
const GIB_PAGE_ORDER: u32 = 18;

/// The number of orders that buddy_system_allocator is built for: the largest block is 2^32 frames,
/// 16 TiB.
const BUDDY_ORDERS: usize = 33;

/// An allocator that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Subject {
    /// The engine, in a hosted machine
    Hotmem,
    /// The engine through a magazine of 64 frames for each thread
    HotmemMagazine,
    /// The engine through a magazine of 64 frames for each CPU, which interrupts may use as well
    HotmemCpuMagazine,
    /// The engine, where one call allocates 64 separate runs (a batch), and one call frees them
    HotmemBatches,
    /// Two compare-exchanges of a word that no other thread uses
    Limit,
    /// The crate of this name, behind a spin lock
    #[value(name = "buddy_system_allocator")]
    BuddySystemAllocator,
    /// The crate of this name, behind a spin lock
    BitmapAllocator,
}

impl Subject {
    pub(super) const ALL: [Subject; 7] = [
        Subject::Hotmem,
        Subject::HotmemMagazine,
        Subject::HotmemCpuMagazine,
        Subject::HotmemBatches,
        Subject::BuddySystemAllocator,
        Subject::BitmapAllocator,
        Subject::Limit,
    ];

    /// Returns whether the subject supports this much memory.
    pub(super) const fn supports(self, size: Bytes) -> bool {
        match self {
            Subject::BitmapAllocator => size.0 / FRAME_SIZE <= BitAlloc256M::CAP as u64,
            _ => true,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}

/// The interface that the bench uses for all allocators. It names frames by their numbers.
pub(in crate::bench) trait Allocator: Sync {
    /// The state with which one thread of the bench allocates and frees.
    type ThreadState<'a>: ThreadState
    where
        Self: 'a;
    /// Returns the state for the calling thread.
    fn thread_state(&self) -> Self::ThreadState<'_>;
    /// Allocates 2^`order` frames.
    fn alloc(&self, order: u32) -> Option<u64>;
    /// Frees the 2^`order` frames from `frame` on, which are an allocation or a part of one.
    fn free(&self, frame: u64, order: u32);
    /// Allocates all free memory, in runs as large as possible, and keeps it allocated.
    fn allocate_all(&self);
}

/// The state with which one thread uses an allocator.
pub(in crate::bench) trait ThreadState {
    /// Allocates 2^`order` frames.
    fn alloc(&mut self, order: u32) -> Option<u64>;
    /// Frees an allocation.
    fn free(&mut self, frame: u64, order: u32);

    /// Allocates `count` runs of 2^`order` frames, and appends them to `held`.
    #[inline(always)]
    fn take(&mut self, order: u32, count: u64, held: &mut Vec<u64>) {
        for _ in 0..count {
            held.push(alloc_until_some(|| self.alloc(order)));
        }
    }

    /// Frees all allocations in `held`, and leaves `held` empty.
    #[inline(always)]
    fn free_all(&mut self, order: u32, held: &mut Vec<u64>) {
        for frame in held.drain(..) {
            self.free(frame, order);
        }
    }
}

impl<A: Allocator> ThreadState for &A {
    #[inline(always)]
    fn alloc(&mut self, order: u32) -> Option<u64> {
        A::alloc(self, order)
    }

    #[inline(always)]
    fn free(&mut self, frame: u64, order: u32) {
        A::free(self, frame, order);
    }
}

impl Allocator for Frames<ThreadCpus> {
    type ThreadState<'a> = &'a Self;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline(always)]
    fn alloc(&self, order: u32) -> Option<u64> {
        let request = match order {
            0 => AllocRequest::frames(1),
            _ => AllocRequest::order(order),
        };
        let range = Frames::alloc(self, request.movable()).ok()?.into_raw();
        Some(range.start().number())
    }

    #[inline(always)]
    fn free(&self, frame: u64, order: u32) {
        let range = Pfn::new(frame).and_then(|start| frames_from(start, order));
        // SAFETY: the bench frees only frames that it has allocated, and each once.
        let freed = unsafe {
            self.free_raw(range.expect("the frame and the order are those of an allocation"))
        };
        assert_eq!(freed, Ok(()));
    }

    fn allocate_all(&self) {
        for order in [GIB_PAGE_ORDER, HUGE_PAGE_ORDER] {
            while Allocator::alloc(self, order).is_some() {}
        }
    }
}

/// The engine. Consecutive requests name the nodes in turn.
pub(super) struct OnNodes<'a> {
    frames: &'a Frames<ThreadCpus>,
    nodes: u32,
    refuses_other_nodes: bool,
    next_node: AtomicU32,
}

impl OnNodes<'_> {
    pub(super) fn new(
        frames: &Frames<ThreadCpus>,
        nodes: u32,
        refuses_other_nodes: bool,
    ) -> OnNodes<'_> {
        OnNodes { frames, nodes, refuses_other_nodes, next_node: AtomicU32::new(0) }
    }
}

impl Allocator for OnNodes<'_> {
    type ThreadState<'a>
        = &'a Self
    where
        Self: 'a;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline]
    fn alloc(&self, order: u32) -> Option<u64> {
        let node = NodeId(self.next_node.fetch_add(1, Ordering::Relaxed) % self.nodes);
        let node =
            if self.refuses_other_nodes { NodeChoice::Only(node) } else { NodeChoice::Near(node) };
        let request = AllocRequest::order(order).movable().node(node);
        let range = self.frames.alloc(request).ok()?.into_raw();
        Some(range.start().number())
    }

    #[inline]
    fn free(&self, frame: u64, order: u32) {
        self.frames.free(frame, order);
    }

    fn allocate_all(&self) {
        self.frames.allocate_all();
    }
}

/// The crate `buddy_system_allocator`, behind a spin lock.
pub(in crate::bench) struct Buddy(Mutex<FrameAllocator<BUDDY_ORDERS>>);

impl Buddy {
    pub(in crate::bench) fn new(frames: usize) -> Buddy {
        let mut allocator = FrameAllocator::new();
        allocator.add_frame(0, frames);
        Buddy(Mutex::new(allocator))
    }
}

impl Allocator for Buddy {
    type ThreadState<'a> = &'a Self;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline]
    fn alloc(&self, order: u32) -> Option<u64> {
        self.0.lock().alloc(1 << order).map(|frame| frame as u64)
    }

    #[inline]
    fn free(&self, frame: u64, order: u32) {
        self.0.lock().dealloc(index(frame), 1 << order);
    }

    fn allocate_all(&self) {
        let mut allocator = self.0.lock();
        for order in (0..BUDDY_ORDERS).rev() {
            while allocator.alloc(1 << order).is_some() {}
        }
    }
}

/// The bitmap for up to 64 GiB. It is a `static` because it is too large for a stack.
pub(super) static BITMAP_64G: Mutex<BitAlloc16M> = Mutex::new(BitAlloc16M::DEFAULT);
/// The bitmap for up to 1 TiB.
pub(super) static BITMAP_1T: Mutex<BitAlloc256M> = Mutex::new(BitAlloc256M::DEFAULT);

/// The crate `bitmap-allocator`, behind a spin lock.
pub(in crate::bench) struct Bitmap<B: 'static>(&'static Mutex<B>);

impl<B: BitAlloc> Bitmap<B> {
    /// Makes an allocator of the first `frames` frames. No bit of `bitmap` may be set.
    pub(in crate::bench) fn new(bitmap: &'static Mutex<B>, frames: usize) -> Bitmap<B> {
        bitmap.lock().insert(0..frames);
        Bitmap(bitmap)
    }
}

impl<B: BitAlloc + Send> Allocator for Bitmap<B> {
    type ThreadState<'a> = &'a Self;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline]
    fn alloc(&self, order: u32) -> Option<u64> {
        let mut bitmap = self.0.lock();
        let frame = match order {
            0 => bitmap.alloc(),
            _ => bitmap.alloc_contiguous(None, 1 << order, order as usize),
        };
        frame.map(|frame| frame as u64)
    }

    #[inline]
    fn free(&self, frame: u64, order: u32) {
        let mut bitmap = self.0.lock();
        let freed = match order {
            0 => bitmap.dealloc(index(frame)),
            _ => bitmap.dealloc_contiguous(index(frame), 1 << order),
        };
        assert!(freed, "frames were freed that were not allocated");
    }

    fn allocate_all(&self) {
        self.0.lock().remove(0..B::CAP);
    }
}

/// Repeats an allocation until it succeeds. The memory must be free, or another thread must be
/// freeing it.
#[inline]
pub(in crate::bench) fn alloc_until_some(mut alloc: impl FnMut() -> Option<u64>) -> u64 {
    loop {
        if let Some(frame) = alloc() {
            return frame;
        }
    }
}

/// Returns the 2^`order` frames from `start` on. Order 0 has a branch of its own, in which the
/// number of frames is a constant, as in a kernel that frees one frame.
#[inline]
fn frames_from(start: Pfn, order: u32) -> Option<PfnRange> {
    match order {
        0 => PfnRange::with_len(start, 1),
        _ => PfnRange::with_len(start, 1 << order),
    }
}

/// Converts a number to an index.
#[inline]
pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).expect("the host has 64 bits")
}
