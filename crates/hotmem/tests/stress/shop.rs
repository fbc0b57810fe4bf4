//! The allocations of all threads, here called goods. Each has a few frames. Any thread may free
//! them, and the kernel may migrate them.

use crate::{BOOT_SECTIONS, SIZE, SMALL, runs};
use fastrand::Rng;
use hotmem::{AllocError, AllocRequest, Frames, PfnRange};
use hotmem_testkit::Raw as _;
use hotmem_testkit::{BLOCK, Cpus, Memory, SECTION, WORD, numbers, pfn, range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Goods in a roomy round have at most so many frames in all, ...
const ROOMY_FRAMES: u64 = BOOT_SECTIONS * SECTION / 2;
/// ... and each at most so many.
const ROOMY_LONGEST: u64 = if SMALL { 8 } else { 128 };
const ROOMY_SHELVES: usize = (ROOMY_FRAMES / ROOMY_LONGEST) as usize;
const SHELVES: usize = if SMALL { 256 } else { 2048 };

/// The tag of a free frame.
const FREE: u64 = 0;
/// The tag that the host writes to reported memory.
const SPOILT: u64 = u64::MAX - 1;
/// The tag of a frame with descriptors.
const KEPT: u64 = u64::MAX - 2;
/// The tag of a frame that is not present.
const ABSENT: u64 = u64::MAX;

pub(crate) struct Shop<'f> {
    pub(crate) frames: &'f Frames<Cpus>,
    memory: &'f Memory,
    /// The tag of each frame's goods.
    owners: Vec<AtomicU64>,
    shelves: Vec<Mutex<Option<Goods>>>,
    serial: AtomicU64,
    allocations: AtomicU64,
    busy: AtomicU64,
    exhausted: AtomicU64,
}

struct Goods {
    tag: u64,
    movable: bool,
    frames: Vec<u64>,
}

/// Counts of operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) allocations: u64,
    /// Allocations that failed with `Busy`.
    #[allow(dead_code, reason = "told")]
    busy: u64,
    pub(crate) exhausted: u64,
}

/// The reason why a frame cannot be migrated now.
pub(crate) enum Stays {
    Pinned,
    ForNow,
}

impl<'f> Shop<'f> {
    pub(crate) fn new(frames: &'f Frames<Cpus>, memory: &'f Memory) -> Shop<'f> {
        let owner =
            |frame| AtomicU64::new(if frame < BOOT_SECTIONS * SECTION { FREE } else { ABSENT });
        for frame in BOOT_SECTIONS * SECTION..SIZE {
            memory.word(frame).store(ABSENT, Ordering::Relaxed);
        }
        Shop {
            frames,
            memory,
            owners: (0..SIZE).map(owner).collect(),
            shelves: (0..SHELVES).map(|_| Mutex::new(None)).collect(),
            serial: AtomicU64::new(1),
            allocations: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            exhausted: AtomicU64::new(0),
        }
    }

    pub(crate) fn done(&self) -> Done {
        Done {
            allocations: self.allocations.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
            exhausted: self.exhausted.load(Ordering::Relaxed),
        }
    }

    /// Does one step of a worker: fills an empty shelf, or frees all or a part of its goods.
    pub(crate) fn trade(&self, rng: &mut Rng, roomy: bool) {
        let at = rng.usize(..SHELVES);
        let Ok(mut shelf) = self.shelves[at].try_lock() else { return };
        match &mut *shelf {
            None if roomy && at >= ROOMY_SHELVES => {}
            None => *shelf = self.buy(rng, at, roomy),
            Some(goods) if !roomy && rng.u8(..4) == 0 => {
                let first = rng.usize(..goods.frames.len());
                let part = goods.frames.split_off(first);
                self.sell(goods.tag, &part);
                if goods.frames.is_empty() {
                    *shelf = None;
                }
            }
            Some(goods) => {
                self.sell(goods.tag, &goods.frames);
                *shelf = None;
            }
        }
    }

    fn buy(&self, rng: &mut Rng, at: usize, roomy: bool) -> Option<Goods> {
        let movable = rng.u8(..4) != 0;
        let frames = match rng.u8(..16) {
            0..9 => 1,
            9..13 => rng.u64(1..=WORD),
            13 => BLOCK,
            14 => rng.u64(1..=3 * BLOCK),
            _ => rng.u64(BLOCK..=2 * SECTION),
        };
        let frames = if roomy { frames.min(ROOMY_LONGEST) } else { frames };
        let request = AllocRequest::frames(frames);
        let request = if movable { request.movable() } else { request };
        let exact = rng.u8(..8) == 0;
        let request = if exact { request.at(pfn(rng.u64(..SIZE - frames))) } else { request };
        let got = match self.frames.take_raw(request) {
            Ok(got) => got,
            Err(AllocError::Busy) => {
                self.busy.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Err(AllocError::NotFree(_)) if exact => return None,
            Err(AllocError::OutOfMemory) if !exact => {
                // Boot memory alone has twice the frames that all goods of a roomy round take.
                assert!(!roomy || frames > 1, "out of memory in a roomy round");
                self.exhausted.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Err(error) => panic!("{request:?}: {error}"),
        };
        self.allocations.fetch_add(1, Ordering::Relaxed);
        assert_eq!(got.frames(), frames);
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let goods =
            Goods { tag: serial << 16 | at as u64, movable, frames: numbers(got).collect() };
        goods.frames.iter().for_each(|&frame| self.own(frame, goods.tag));
        Some(goods)
    }

    /// Frees frames, neighbouring ones together.
    fn sell(&self, tag: u64, frames: &[u64]) {
        frames.iter().for_each(|&frame| self.disown(frame, tag));
        for run in runs(frames) {
            self.frames.give_raw(run).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Frees the goods that exceed the limit of a roomy round. Called while all threads rest.
    pub(crate) fn clear_out(&self) {
        for (at, shelf) in self.shelves.iter().enumerate() {
            let mut shelf = shelf.lock().expect("nobody failed");
            let fits = |goods: &mut Goods| goods.frames.len() as u64 <= ROOMY_LONGEST;
            if at >= ROOMY_SHELVES || !shelf.as_mut().is_none_or(fits) {
                shelf.take().iter().for_each(|goods| self.sell(goods.tag, &goods.frames));
            }
        }
    }

    fn own(&self, frame: u64, tag: u64) {
        let before = self.owners[frame as usize].swap(tag, Ordering::AcqRel);
        assert_eq!(before, FREE, "frame {frame:#x} was handed out to {tag:#x}");
        self.memory.word(frame).store(tag, Ordering::Relaxed);
    }

    fn disown(&self, frame: u64, tag: u64) {
        let written = self.memory.word(frame).load(Ordering::Relaxed);
        let owner = self.owners[frame as usize].swap(FREE, Ordering::AcqRel);
        assert_eq!((owner, written), (tag, tag), "frame {frame:#x} changed hands");
    }

    /// Records that the host has taken the frame's memory.
    pub(crate) fn spoil(&self, frame: u64) {
        self.memory.word(frame).store(SPOILT, Ordering::Relaxed);
    }

    /// Migrates one frame of a thread's goods.
    pub(crate) fn relocate(&self, frame: u64) -> Result<(), Stays> {
        let tag = self.owners[frame as usize].load(Ordering::Acquire);
        // The frame's owner may be about to write its tag, or may have just removed it.
        if tag == FREE {
            return Err(Stays::ForNow);
        }
        let shelf = &self.shelves[(tag & 0xffff) as usize];
        let Ok(mut shelf) = shelf.try_lock() else { return Err(Stays::ForNow) };
        let goods = shelf.as_mut().filter(|goods| goods.tag == tag).ok_or(Stays::ForNow)?;
        if !goods.movable {
            return Err(Stays::Pinned);
        }
        let at = goods.frames.iter().position(|&have| have == frame).ok_or(Stays::ForNow)?;
        let new =
            self.frames.take_raw(AllocRequest::frames(1).movable()).map_err(|_| Stays::ForNow)?;
        let new = new.start().number();
        self.own(new, tag);
        goods.frames[at] = new;
        self.sell(tag, &[frame]);
        Ok(())
    }

    /// Records that memory in `range` was added or removed.
    pub(crate) fn set_there(&self, range: PfnRange, there: bool) {
        let (before, after) = if there { (ABSENT, FREE) } else { (FREE, ABSENT) };
        for frame in numbers(range) {
            if self.is_kept(frame) {
                continue;
            }
            let was = self.owners[frame as usize].swap(after, Ordering::AcqRel);
            assert_eq!(was, before, "frame {frame:#x} at the edge");
            let word = self.memory.word(frame);
            if there {
                assert_eq!(word.load(Ordering::Relaxed), ABSENT, "frame {frame:#x} was touched");
            } else {
                word.store(ABSENT, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether the frame holds intact descriptors.
    fn is_kept(&self, frame: u64) -> bool {
        let is_kept = self.owners[frame as usize].load(Ordering::Acquire) == KEPT;
        let word = self.memory.word(frame).load(Ordering::Relaxed);
        assert!(!is_kept || word == KEPT, "the descriptors at {frame:#x} have gone");
        is_kept
    }

    /// Records that a frame of new memory holds descriptors.
    pub(crate) fn keep(&self, kept: PfnRange) {
        numbers(kept).for_each(|frame| self.own(frame, KEPT));
    }

    /// Records that memory was removed with the descriptors that it held.
    pub(crate) fn keep_no_more(&self, gone: PfnRange) {
        for frame in numbers(gone).filter(|&frame| self.is_kept(frame)) {
            self.disown(frame, KEPT);
            self.set_there(range(frame, 1), false);
        }
    }

    /// Checks that each owner has exactly the frames with its tag. Returns the number of frames in
    /// use. Called while all threads rest.
    pub(crate) fn check_goods(&self) -> u64 {
        let mut count = 0;
        for shelf in &self.shelves {
            let shelf = shelf.lock().expect("nobody failed");
            for (goods, &frame) in shelf.iter().flat_map(|g| g.frames.iter().map(move |f| (g, f))) {
                let owner = self.owners[frame as usize].load(Ordering::Acquire);
                let written = self.memory.word(frame).load(Ordering::Relaxed);
                assert_eq!((owner, written), (goods.tag, goods.tag), "frame {frame:#x}");
                count += 1;
            }
        }
        let owner = |frame: u64| self.owners[frame as usize].load(Ordering::Acquire);
        let is_owned =
            |frame: &u64| !self.is_kept(*frame) && ![FREE, ABSENT].contains(&owner(*frame));
        assert_eq!((0..SIZE).filter(is_owned).count() as u64, count);
        count
    }

    pub(crate) fn assert_unowned(&self, frame: PfnRange) {
        for frame in numbers(frame) {
            assert_eq!(self.owners[frame as usize].load(Ordering::Acquire), FREE, "{frame:#x}");
        }
    }
}
