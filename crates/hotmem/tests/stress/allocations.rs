//! Keeps the allocations of all threads in slots. Any thread may free an allocation, and the kernel
//! may migrate its frames.

use crate::{BOOT_SECTIONS, IS_SMALL_GEOMETRY, SIZE, WORKERS, runs};
use fastrand::Rng;
use hotmem::{AllocError, AllocRequest, Frames, PfnRange};
use hotmem_port::CpuMagazine;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::{BITMAP_WORD_FRAMES, Cpus, Memory, PAGEBLOCK, SECTION, numbers, pfn, range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The maximum number of frames in all allocations of a *limited round*. A limited round uses so
/// little memory that one frame can always be allocated.
const LIMITED_FRAMES: u64 = BOOT_SECTIONS * SECTION / 2;
/// The maximum number of frames in one allocation in a limited round.
const LIMITED_LENGTH: u64 = match (cfg!(miri), IS_SMALL_GEOMETRY) {
    // So short that many allocations fit.
    (true, _) => 2,
    (false, true) => 8,
    (false, false) => 128,
};
const LIMITED_SLOTS: usize = (LIMITED_FRAMES / LIMITED_LENGTH) as usize;
const SLOTS: usize = match (cfg!(miri), IS_SMALL_GEOMETRY) {
    // So few that most steps find a slot that a limited round may use.
    (true, _) => 32,
    (false, true) => 256,
    (false, false) => 2048,
};

/// The tag of a free frame.
const FREE: u64 = 0;
/// The tag that the host writes to reported memory.
const DISCARDED: u64 = u64::MAX - 1;
/// The tag of a frame with descriptors.
const DESCRIPTORS: u64 = u64::MAX - 2;
/// The tag of a frame that is not present.
const ABSENT: u64 = u64::MAX;

pub(crate) struct Allocations<'f> {
    pub(crate) frames: &'f Frames<Cpus>,
    memory: &'f Memory,
    /// The tag of each frame: that of its allocation, or one of the constants above.
    tags: Vec<AtomicU64>,
    slots: Vec<Mutex<Option<SlotAllocation>>>,
    next_serial: AtomicU64,
    allocations: AtomicU64,
    busy_failures: AtomicU64,
    exhausted_failures: AtomicU64,
    from_magazine: AtomicU64,
    /// For each worker, whether the kernel has asked it to drain its magazine.
    drain_requests: [AtomicBool; WORKERS],
}

/// The magazine of a worker, for frames that may be migrated.
pub(crate) type Magazine<'f> = CpuMagazine<'f, Cpus, 16>;

struct SlotAllocation {
    tag: u64,
    movable: bool,
    frames: Vec<u64>,
}

/// Counts of operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationCounts {
    pub(crate) allocations: u64,
    /// Allocations that failed with `Busy`.
    #[allow(dead_code, reason = "printed by Debug")]
    busy_failures: u64,
    pub(crate) exhausted_failures: u64,
    /// Allocations from magazines.
    pub(crate) from_magazine: u64,
}

/// The reason why a frame was not migrated.
pub(crate) enum NotMoved {
    /// Its allocation is not movable.
    Unmovable,
    /// A later attempt may succeed.
    Retry,
}

impl<'f> Allocations<'f> {
    pub(crate) fn new(frames: &'f Frames<Cpus>, memory: &'f Memory) -> Allocations<'f> {
        let first_tag =
            |frame| AtomicU64::new(if frame < BOOT_SECTIONS * SECTION { FREE } else { ABSENT });
        for frame in BOOT_SECTIONS * SECTION..SIZE {
            memory.word(frame).store(ABSENT, Ordering::Relaxed);
        }
        Allocations {
            frames,
            memory,
            tags: (0..SIZE).map(first_tag).collect(),
            slots: (0..SLOTS).map(|_| Mutex::new(None)).collect(),
            next_serial: AtomicU64::new(1),
            allocations: AtomicU64::new(0),
            busy_failures: AtomicU64::new(0),
            exhausted_failures: AtomicU64::new(0),
            from_magazine: AtomicU64::new(0),
            drain_requests: [const { AtomicBool::new(false) }; WORKERS],
        }
    }

    /// Drains the worker's magazine, if the kernel has asked for that.
    pub(crate) fn drain_if_asked(&self, worker: usize, magazine: &Magazine<'_>) {
        if self.drain_requests[worker].swap(false, Ordering::AcqRel) {
            magazine.drain();
        }
    }

    pub(crate) fn counts(&self) -> AllocationCounts {
        AllocationCounts {
            allocations: self.allocations.load(Ordering::Relaxed),
            busy_failures: self.busy_failures.load(Ordering::Relaxed),
            exhausted_failures: self.exhausted_failures.load(Ordering::Relaxed),
            from_magazine: self.from_magazine.load(Ordering::Relaxed),
        }
    }

    /// Does one step of a worker in a random slot: if the slot is empty, makes an allocation,
    /// otherwise frees the allocation or a part of it.
    pub(crate) fn step_worker(&self, rng: &mut Rng, magazine: &Magazine<'_>, is_limited: bool) {
        let slot_index = rng.usize(..SLOTS);
        let Ok(mut slot) = self.slots[slot_index].try_lock() else { return };
        match &mut *slot {
            None if is_limited && slot_index >= LIMITED_SLOTS => {}
            None => *slot = self.allocate(rng, magazine, slot_index, is_limited),
            Some(allocation) if !is_limited && rng.u8(..4) == 0 => {
                let first = rng.usize(..allocation.frames.len());
                let part = allocation.frames.split_off(first);
                self.free(allocation.tag, &part);
                if allocation.frames.is_empty() {
                    *slot = None;
                }
            }
            Some(allocation) => {
                match allocation.frames[..] {
                    [frame] if allocation.movable && rng.bool() => {
                        self.untag_frame(frame, allocation.tag);
                        // SAFETY: the frame is allocated, and its slot has just given it up.
                        unsafe { magazine.free(pfn(frame)) };
                    }
                    _ => self.free(allocation.tag, &allocation.frames),
                }
                *slot = None;
            }
        }
    }

    fn allocate(
        &self,
        rng: &mut Rng,
        magazine: &Magazine<'_>,
        slot_index: usize,
        is_limited: bool,
    ) -> Option<SlotAllocation> {
        let movable = rng.u8(..4) != 0;
        if movable && rng.u8(..4) == 0 {
            // This fails if the magazines of other workers hold the last free frames.
            let frame = magazine.alloc().ok()?;
            self.from_magazine.fetch_add(1, Ordering::Relaxed);
            return Some(self.tag_allocation(slot_index, true, vec![frame.number()]));
        }
        let frames = match rng.u8(..16) {
            0..9 => 1,
            9..13 => rng.u64(1..=BITMAP_WORD_FRAMES),
            13 => PAGEBLOCK,
            14 => rng.u64(1..=3 * PAGEBLOCK),
            _ => rng.u64(PAGEBLOCK..=2 * SECTION),
        };
        let frames = if is_limited { frames.min(LIMITED_LENGTH) } else { frames };
        let request = AllocRequest::frames(frames);
        let request = if movable { request.movable() } else { request };
        let exact = rng.u8(..8) == 0;
        let request = if exact { request.at(pfn(rng.u64(..SIZE - frames))) } else { request };
        let allocated = match self.frames.alloc_range(request) {
            Ok(allocated) => allocated,
            Err(AllocError::Busy) => {
                self.busy_failures.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Err(AllocError::NotFree(_)) if exact => return None,
            Err(AllocError::OutOfMemory) if !exact => {
                // Boot memory alone has twice as many frames as all allocations of a limited round.
                assert!(
                    !is_limited || frames > 1,
                    "one frame could not be allocated in a limited round"
                );
                self.exhausted_failures.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Err(error) => panic!("{request:?}: {error}"),
        };
        self.allocations.fetch_add(1, Ordering::Relaxed);
        assert_eq!(allocated.frames(), frames);
        Some(self.tag_allocation(slot_index, movable, numbers(allocated).collect()))
    }

    /// Tags frames that were allocated for a slot.
    fn tag_allocation(&self, slot_index: usize, movable: bool, frames: Vec<u64>) -> SlotAllocation {
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        let allocation = SlotAllocation { tag: serial << 16 | slot_index as u64, movable, frames };
        allocation.frames.iter().for_each(|&frame| self.tag_frame(frame, allocation.tag));
        allocation
    }

    /// Frees frames. Adjacent frames are freed together.
    fn free(&self, tag: u64, frames: &[u64]) {
        frames.iter().for_each(|&frame| self.untag_frame(frame, tag));
        for run in runs(frames) {
            self.frames.free_range(run).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Frees the allocations that exceed the limits of a limited round. No other thread may run.
    pub(crate) fn free_excess(&self) {
        for (slot_index, slot) in self.slots.iter().enumerate() {
            let mut slot = slot.lock().expect("no thread panicked while it held the lock");
            let fits =
                |allocation: &mut SlotAllocation| allocation.frames.len() as u64 <= LIMITED_LENGTH;
            if slot_index >= LIMITED_SLOTS || !slot.as_mut().is_none_or(fits) {
                slot.take()
                    .iter()
                    .for_each(|allocation| self.free(allocation.tag, &allocation.frames));
            }
        }
    }

    fn tag_frame(&self, frame: u64, tag: u64) {
        let before = self.tags[frame as usize].swap(tag, Ordering::AcqRel);
        assert_eq!(before, FREE, "frame {frame:#x} was allocated to {tag:#x}, but was not free");
        self.memory.word(frame).store(tag, Ordering::Relaxed);
    }

    fn untag_frame(&self, frame: u64, tag: u64) {
        let written = self.memory.word(frame).load(Ordering::Relaxed);
        let recorded = self.tags[frame as usize].swap(FREE, Ordering::AcqRel);
        assert_eq!((recorded, written), (tag, tag), "frame {frame:#x} has another owner");
    }

    /// Records that the host has taken the frame's memory.
    pub(crate) fn mark_discarded(&self, frame: u64) {
        self.memory.word(frame).store(DISCARDED, Ordering::Relaxed);
    }

    /// Migrates one frame of an allocation.
    pub(crate) fn migrate_frame(&self, frame: u64) -> Result<(), NotMoved> {
        let tag = self.tags[frame as usize].load(Ordering::Acquire);
        // The frame is in a magazine, or a worker has allocated it and not tagged it yet, or a worker
        // has just removed its tag.
        if tag == FREE {
            self.drain_requests.iter().for_each(|asked| asked.store(true, Ordering::Release));
            return Err(NotMoved::Retry);
        }
        let slot = &self.slots[(tag & 0xffff) as usize];
        let Ok(mut slot) = slot.try_lock() else { return Err(NotMoved::Retry) };
        let allocation =
            slot.as_mut().filter(|allocation| allocation.tag == tag).ok_or(NotMoved::Retry)?;
        if !allocation.movable {
            return Err(NotMoved::Unmovable);
        }
        let index =
            allocation.frames.iter().position(|&other| other == frame).ok_or(NotMoved::Retry)?;
        let new = self
            .frames
            .alloc_range(AllocRequest::frames(1).movable())
            .map_err(|_| NotMoved::Retry)?;
        let new = new.start().number();
        self.tag_frame(new, tag);
        allocation.frames[index] = new;
        self.free(tag, &[frame]);
        Ok(())
    }

    /// Records that memory in `range` was added or removed.
    pub(crate) fn set_present(&self, range: PfnRange, present: bool) {
        let (before, after) = if present { (ABSENT, FREE) } else { (FREE, ABSENT) };
        for frame in numbers(range) {
            if self.holds_descriptors(frame) {
                continue;
            }
            let was = self.tags[frame as usize].swap(after, Ordering::AcqRel);
            assert_eq!(was, before, "the tag of frame {frame:#x}");
            let word = self.memory.word(frame);
            if present {
                assert_eq!(
                    word.load(Ordering::Relaxed),
                    ABSENT,
                    "frame {frame:#x} was written while it was absent"
                );
            } else {
                word.store(ABSENT, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether the frame holds descriptors. Panics if they were overwritten.
    fn holds_descriptors(&self, frame: u64) -> bool {
        let holds_descriptors = self.tags[frame as usize].load(Ordering::Acquire) == DESCRIPTORS;
        // Read no other frame: it may hold pointers of the engine, which Miri does not let a test
        // read as numbers.
        if holds_descriptors {
            let word = self.memory.word(frame).load(Ordering::Relaxed);
            assert_eq!(word, DESCRIPTORS, "the descriptors at {frame:#x} were overwritten");
        }
        holds_descriptors
    }

    /// Records that a frame of new memory holds descriptors.
    pub(crate) fn add_descriptors(&self, descriptor_frames: PfnRange) {
        numbers(descriptor_frames).for_each(|frame| self.tag_frame(frame, DESCRIPTORS));
    }

    /// Records that memory was removed with the descriptors that it held.
    pub(crate) fn remove_descriptors(&self, removed: PfnRange) {
        for frame in numbers(removed).filter(|&frame| self.holds_descriptors(frame)) {
            self.untag_frame(frame, DESCRIPTORS);
            self.set_present(range(frame, 1), false);
        }
    }

    /// Checks that each allocation has exactly the frames with its tag. Returns the number of
    /// frames in use. No other thread may run.
    pub(crate) fn check_owners(&self) -> u64 {
        let mut count = 0;
        for slot in &self.slots {
            let slot = slot.lock().expect("no thread panicked while it held the lock");
            for (allocation, &frame) in
                slot.iter().flat_map(|a| a.frames.iter().map(move |f| (a, f)))
            {
                let recorded = self.tags[frame as usize].load(Ordering::Acquire);
                let written = self.memory.word(frame).load(Ordering::Relaxed);
                assert_eq!(
                    (recorded, written),
                    (allocation.tag, allocation.tag),
                    "frame {frame:#x}"
                );
                count += 1;
            }
        }
        let tag_of = |frame: u64| self.tags[frame as usize].load(Ordering::Acquire);
        let is_owned = |frame: &u64| {
            !self.holds_descriptors(*frame) && ![FREE, ABSENT].contains(&tag_of(*frame))
        };
        assert_eq!((0..SIZE).filter(is_owned).count() as u64, count);
        count
    }

    pub(crate) fn assert_unowned(&self, range: PfnRange) {
        for frame in numbers(range) {
            assert_eq!(self.tags[frame as usize].load(Ordering::Acquire), FREE, "{frame:#x}");
        }
    }
}
