//! The page allocator of the crate `buddy-slab-allocator`, behind a spin lock, as ArceOS uses it. It
//! rounds lengths up to a power of two. It keeps 12 bytes for each frame at the start of its memory.

use crate::bench::frames::allocator::{Allocator, index};
use crate::bench::frames::case::Case;
use crate::bench::frames::length::Length;
use crate::bench::frames::place::Place;
use anyhow::{Context, Result};
use buddy_slab_allocator::{BuddyAllocator, SlabPoolTrait, interface::BuddySlabIf};
use hotmem::{Bytes, geometry::FRAME_SIZE};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use spin::Mutex;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of a frame, as the allocator wants it.
#[allow(clippy::cast_possible_truncation, reason = "4096")]
const PAGE: usize = FRAME_SIZE as usize;
/// The most memory for which this process keeps 12 bytes a frame.
const MAX_SIZE: Bytes = Bytes::gib(64);
/// A power of two to which the first frame is aligned.
const ALIGN: usize = 1 << 30;

/// Returns why the allocator cannot do a case.
pub(in crate::bench) fn cannot(case: &Case) -> Option<&'static str> {
    match case.place {
        _ if case.size > MAX_SIZE => Some("it writes 12 bytes for each frame at its start"),
        Place::Anywhere | Place::Low => None,
        _ => Some("it has no nodes"),
    }
}

/// Returns why the instructions of a case cannot be counted.
pub(in crate::bench) fn cannot_be_counted(case: &Case) -> Option<&'static str> {
    let is_large = case.size > Bytes::gib(32);
    is_large.then_some("under valgrind, a process has too few addresses for its memory")
}

/// The allocator. `IS_LOW`: it allocates only from the first 4 GiB.
pub(in crate::bench) struct BuddySlab<const IS_LOW: bool> {
    allocator: Mutex<BuddyAllocator<PAGE>>,
    /// The address of frame 0.
    start: usize,
}

/// The address of frame 0, for [`BuddySlabIf`].
static START: AtomicUsize = AtomicUsize::new(0);

/// The kernel, as the allocator sees it.
struct Kernel;

#[ax_crate_interface::impl_interface]
impl BuddySlabIf for Kernel {
    fn virt_to_phys(address: usize) -> usize {
        // Relaxed: the number is written before any thread of the case starts.
        address - START.load(Ordering::Relaxed)
    }

    fn slab_pool() -> &'static dyn SlabPoolTrait {
        unreachable!("the bench allocates no objects")
    }
}

impl<const IS_LOW: bool> BuddySlab<IS_LOW> {
    /// Makes an allocator of `frames` frames. Reserves addresses for them.
    ///
    /// # Errors
    /// The addresses cannot be reserved, or the allocator refuses them.
    pub(in crate::bench) fn new(frames: usize) -> Result<Self> {
        let metadata = BuddyAllocator::<PAGE>::required_meta_size(frames * PAGE);
        let metadata = (metadata + PAGE).next_multiple_of(PAGE);
        let len = (metadata + frames * PAGE).next_multiple_of(ALIGN) + ALIGN;
        // SAFETY: a new mapping at an address that the kernel chooses changes no existing mapping.
        let mapping = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let mapping = mapping.context("reserving addresses")?.cast::<u8>();
        // The first frame is aligned, so that huge pages are.
        let start = (mapping.addr() + metadata).next_multiple_of(ALIGN);
        let region = mapping.with_addr(start - metadata);
        let mut allocator = BuddyAllocator::new();
        // SAFETY: the bytes are zero and belong to the new mapping, which stays until the process ends.
        let added = unsafe {
            let region = std::slice::from_raw_parts_mut(region, metadata + frames * PAGE);
            allocator.init(region)
        };
        added.ok().context("the allocator refuses its memory")?;
        let section = allocator.section(0).context("the allocator has no memory")?;
        let start = section.start;
        START.store(start, Ordering::Relaxed);
        Ok(BuddySlab { allocator: Mutex::new(allocator), start })
    }
}

impl<const IS_LOW: bool> Allocator for BuddySlab<IS_LOW> {
    type ThreadState<'a> = &'a Self;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline]
    fn alloc(&self, length: Length) -> Option<u64> {
        let mut allocator = self.allocator.lock();
        let frames = index(length.frames());
        let address = match IS_LOW {
            false => allocator.alloc_pages(frames, PAGE),
            true => allocator.alloc_pages_lowmem(frames, PAGE),
        };
        address.ok().map(|address| ((address - self.start) / PAGE) as u64)
    }

    #[inline]
    fn free(&self, frame: u64, length: Length) {
        let address = self.start + index(frame) * PAGE;
        self.allocator.lock().dealloc_pages(address, index(length.frames()));
    }

    fn allocate_all(&self, part: Length) {
        // The allocator frees only what one call has allocated.
        let mut allocator = self.allocator.lock();
        while allocator.alloc_pages(index(part.frames()), PAGE).is_ok() {}
    }
}
