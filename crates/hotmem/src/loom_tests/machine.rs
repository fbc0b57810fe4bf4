//! A whole machine of a few frames, made anew for each execution of a model.

use super::boxes::Boxes;
use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, Frames, FreeError};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK};
use crate::hooks::NoHooks;
use crate::hotplug::{Hotplug, OnlineType};
use crate::mapping::AlwaysMapped;
use crate::platform::{DirectMap, Platform};
use crate::sync::{Ordering, begin_thread, settled};
use crate::words::{BitmapFrame, SectionRef};
use loom::thread;
use std::cell::Cell;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;
use std::{boxed::Box, vec, vec::Vec};

/// Frames in a pageblock.
pub(super) const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;
/// Frames in a section.
pub(super) const SECTION: u64 = SECTION_FRAMES as u64;

loom::thread_local! { static CPU: Cell<usize> = Cell::new(0); }

/// Each thread of a model says which CPU it runs on.
pub(super) struct Threads;

impl Platform for Threads {
    fn cpu(&self) -> usize {
        CPU.with(Cell::get)
    }
}

/// The machine, and who holds what of it.
pub(super) struct Machine {
    frames: Frames<Threads>,
    _words: Boxes,
    memory: Box<[BitmapFrame]>,
    /// A bit per frame: somebody holds it. Not one of loom's, so that it orders nothing.
    held: settled::AtomicU64,
    threads: settled::AtomicUsize,
    /// Frames of RAM.
    len: u64,
}

/// Frames that somebody holds.
#[must_use]
#[derive(Debug)]
pub(super) struct Held(PfnRange);

impl Held {
    pub(super) fn range(&self) -> PfnRange {
        self.0
    }
}

impl Deref for Machine {
    type Target = Frames<Threads>;
    fn deref(&self) -> &Frames<Threads> {
        &self.frames
    }
}

pub(super) fn range(start: u64, frames: u64) -> PfnRange {
    Pfn::new(start).and_then(|start| PfnRange::with_len(start, frames)).unwrap()
}

impl Machine {
    /// `sections` sections of kernel memory, all free. Their bitmaps lie beyond them.
    pub(super) fn new(sections: usize) -> Arc<Machine> {
        let machine = Machine::without_bitmaps(sections);
        (0..sections).for_each(|index| machine.give_bitmaps_from_outside(index));
        machine
    }

    /// The words of section `index`.
    pub(super) fn section(&self, index: usize) -> SectionRef<'_> {
        self.words().section_of(Pfn::new(index as u64 * SECTION).unwrap()).unwrap()
    }

    /// The same, and there will be a reporter.
    pub(super) fn with_reporter(sections: usize) -> Arc<Machine> {
        let machine = Machine::new(sections);
        machine.wakeup().model();
        machine
    }

    /// The bitmaps of a section take nothing of its memory.
    pub(super) fn give_bitmaps_from_outside(&self, index: usize) {
        self.set_bitmaps(self.section(index), 0, Pfn::new(self.len + index as u64).unwrap());
    }

    /// The same, hotplugged, and the first split of a section must find memory for its bitmaps.
    pub(super) fn without_bitmaps(sections: usize) -> Arc<Machine> {
        Machine::with_memory(sections, false)
    }

    /// The same in boot memory.
    pub(super) fn boot_without_bitmaps(sections: usize) -> Arc<Machine> {
        Machine::with_memory(sections, true)
    }

    fn with_memory(sections: usize, is_boot: bool) -> Arc<Machine> {
        let len = sections as u64 * SECTION;
        let memory = (0..len + sections as u64).map(|_| BitmapFrame::new());
        let memory: Box<[BitmapFrame]> = memory.collect();
        let frames = Frames::new(Threads);
        // A frame of the model is a `BitmapFrame`, and `memory` has one for each.
        frames.set_direct_map(DirectMap::from_base(memory.as_ptr().cast_mut().cast()));
        let mut words = Boxes::default();
        frames.words().announce_model(range(0, len), is_boot, &mut words, Boxes::keep);
        let held = settled::AtomicU64::new(0);
        let threads = settled::AtomicUsize::new(1);
        let machine = Arc::new(Machine { frames, _words: words, memory, held, threads, len });
        for index in 0..sections {
            machine.section(index).present.store(SECTION_MASK, Ordering::Relaxed);
        }
        machine.online(range(0, len), OnlineType::Kernel);
        machine
    }

    /// The control path of the machine.
    pub(super) fn hotplug(&self) -> Hotplug<'_, Threads> {
        // SAFETY: all of the memory is there, and nothing is added.
        let mapping = unsafe { AlwaysMapped::new(null_mut(), PfnRange::EMPTY) };
        Hotplug::without_memory(&self.frames, mapping)
    }

    /// Puts memory that is present online.
    pub(super) fn online(&self, range: PfnRange, kind: OnlineType) {
        let mut hotplug = self.hotplug();
        hotplug.online(range, kind, &mut NoHooks).unwrap();
    }

    /// Takes memory offline that nobody uses, if it can be had now.
    pub(super) fn take_offline(&self, range: PfnRange) -> bool {
        let Ok(token) = self.isolate(range) else { return false };
        let left = token.leave().map_err(|(token, _)| token.release());
        left.map(|range| self.let_go(range)).is_ok()
    }

    /// Runs `work` as another thread, on CPU `cpu`.
    pub(super) fn on_cpu<T: 'static>(
        self: &Arc<Self>,
        cpu: usize,
        work: impl FnOnce(&Machine) -> T + 'static,
    ) -> thread::JoinHandle<T> {
        let machine = self.clone();
        let number = self.threads.fetch_add(1, Ordering::Relaxed);
        thread::spawn(move || {
            begin_thread(number);
            CPU.with(|number| number.set(cpu));
            work(&machine)
        })
    }

    /// Does something as CPU `cpu` before the other threads are there.
    pub(super) fn as_cpu<T>(&self, cpu: usize, work: impl FnOnce(&Machine) -> T) -> T {
        let before = CPU.with(|number| number.replace(cpu));
        let done = work(self);
        CPU.with(|number| number.set(before));
        done
    }

    /// Allocates and writes to every frame.
    pub(super) fn try_alloc(&self, request: AllocRequest) -> Result<Held, AllocError> {
        Ok(self.take_over(self.frames.alloc_range(request)?))
    }

    /// Notes that `range` is held, and writes to every frame.
    fn take_over(&self, range: PfnRange) -> Held {
        assert!(range.end().number() <= self.len, "{range} is no memory");
        let tags = tags(range);
        let before = self.held.fetch_or(tags, Ordering::Relaxed);
        assert_eq!(before & tags, 0, "{range} was handed out twice");
        self.overwrite(range);
        Held(range)
    }

    /// Allocates what must be there.
    pub(super) fn alloc(&self, request: AllocRequest) -> Held {
        self.try_alloc(request).unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    /// Allocates what must be there, though others may have it in hand for a moment.
    pub(super) fn alloc_unless_busy(&self, request: AllocRequest) -> Option<Held> {
        let held = self.try_alloc(request);
        held.map_err(|error| assert_eq!(error, AllocError::Busy, "{request:?}")).ok()
    }

    /// Allocates `n` single frames.
    pub(super) fn singles<const N: usize>(&self) -> [Held; N] {
        std::array::from_fn(|_| self.alloc(AllocRequest::frames(1)))
    }

    /// Allocates up to `n` single frames by one call, and writes to every one.
    pub(super) fn alloc_many(&self, request: AllocRequest, n: usize) -> Vec<Held> {
        let mut frames = vec![Pfn::ZERO; n];
        let filled = self.frames.alloc_many(request, &mut frames).unwrap();
        let frames = frames.into_iter().take(filled).map(|frame| range(frame.number(), 1));
        frames.map(|frame| self.take_over(frame)).collect()
    }

    /// Writes to every frame once more and frees them by one call.
    pub(super) fn free_many(&self, held: impl IntoIterator<Item = Held>) {
        let frames = held.into_iter().map(|Held(frame)| {
            self.overwrite(frame);
            self.held.fetch_and(!tags(frame), Ordering::Relaxed);
            frame.start()
        });
        let frames: Vec<Pfn> = frames.collect();
        self.frames.free_frames(&frames).unwrap();
    }

    /// Writes to every frame once more and frees them.
    pub(super) fn free(&self, held: Held) {
        self.overwrite(held.0);
        self.held.fetch_and(!tags(held.0), Ordering::Relaxed);
        self.frames.free_range(held.0).unwrap();
    }

    /// Frees without being asked whether it is held.
    pub(super) fn try_free(&self, range: PfnRange) -> Result<(), FreeError> {
        self.frames.free_range(range)
    }

    /// Somebody has freed it already.
    pub(super) fn forget(&self, held: Held) {
        self.held.fetch_and(!tags(held.0), Ordering::Relaxed);
    }

    /// Takes a part off what is held.
    pub(super) fn split(&self, held: Held, frames: u64) -> (Held, Held) {
        let (low, high) = held.0.split_at(held.0.start().checked_add(frames).unwrap());
        (Held(low), Held(high))
    }

    /// Nobody holds anything: all of it can be had in pageblocks, and in frames.
    pub(super) fn check_empty(&self) {
        assert_eq!(self.held.load(Ordering::Relaxed), 0, "the scenario still holds something");
        self.validate();
        let blocks =
            (0..self.len / BLOCK).map(|_| self.alloc(AllocRequest::frames(BLOCK).movable()));
        blocks.collect::<Vec<_>>().into_iter().for_each(|held| self.free(held));
        self.check();
    }

    pub(super) fn validate(&self) {
        // SAFETY: models call this when nothing is in flight.
        if let Err(fault) = unsafe { self.frames.validate() } {
            panic!("{fault}");
        }
    }

    pub(super) fn overwrite(&self, range: PfnRange) {
        for pfn in range.start().number()..range.end().number() {
            self.memory[usize::try_from(pfn).unwrap()].overwrite();
        }
    }

    /// Nothing is in flight: everything agrees, nothing is lost, and everything free can be
    /// allocated and freed again.
    pub(super) fn check(&self) {
        self.validate();
        let mut rest = Vec::new();
        loop {
            match self.try_alloc(AllocRequest::frames(1).movable()) {
                Ok(held) => rest.push(held),
                Err(AllocError::OutOfMemory) => break,
                Err(error) => panic!("nothing is in flight: {error}"),
            }
        }
        let bitmaps = self
            .words()
            .sections()
            .flat_map(|section| self.frames_of_bitmaps(section))
            .filter(|(frame, ..)| frame.number() < self.len);
        let in_use = u64::from(self.held.load(Ordering::Relaxed).count_ones());
        assert_eq!(in_use + bitmaps.count() as u64, self.len, "frames are lost");
        rest.into_iter().for_each(|held| self.free(held));
        self.validate();
    }
}

fn tags(range: PfnRange) -> u64 {
    (range.start().number()..range.end().number()).fold(0, |tags, pfn| tags | 1 << pfn)
}
