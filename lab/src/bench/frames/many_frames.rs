//! Implements the subjects that take several frames from the engine at once, through a magazine or
//! by calls for many frames. Also implements the limit: the least cost of a pair of atomic
//! operations.

use super::subject::{Allocator, ThreadState};
use crate::hosted::ThreadCpus;
use hotmem::{AllocRequest, Frames, Pfn};
use hotmem_port::{CpuMagazine, Magazine};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of frames in a magazine and in a batch.
const BATCH_FRAMES: usize = 64;
/// A request for one movable frame.
const ONE_FRAME: AllocRequest = AllocRequest::frames(1).movable();

/// The engine, which each thread uses through a state of type `S`.
pub(super) struct PerThread<'f, S> {
    frames: &'f Frames<ThreadCpus>,
    new_thread_state: fn(&'f Frames<ThreadCpus>) -> S,
}

impl<'f> PerThread<'f, Magazine<'f, ThreadCpus, BATCH_FRAMES>> {
    /// Makes a subject in which each thread has a magazine.
    pub(super) fn magazines(frames: &'f Frames<ThreadCpus>) -> Self {
        PerThread { frames, new_thread_state: |frames| Magazine::new(frames, ONE_FRAME) }
    }
}

impl<'f> PerThread<'f, CpuMagazine<'f, ThreadCpus, BATCH_FRAMES>> {
    /// Makes a subject in which each thread is a CPU that has a magazine.
    pub(super) fn cpu_magazines(frames: &'f Frames<ThreadCpus>) -> Self {
        PerThread {
            frames,
            // SAFETY: only one thread uses each magazine, and no call interrupts another.
            new_thread_state: |frames| unsafe { CpuMagazine::new(frames, ONE_FRAME) },
        }
    }
}

impl<'f> PerThread<'f, ThreadBatches<'f>> {
    /// Makes a subject in which each thread requests many frames by one call.
    pub(super) fn batches(frames: &'f Frames<ThreadCpus>) -> Self {
        PerThread {
            frames,
            new_thread_state: |frames| ThreadBatches { frames, batch: [Pfn::ZERO; BATCH_FRAMES] },
        }
    }
}

/// The limit: each thread changes a word that no other thread uses.
pub(super) struct Limit;

impl<S: ThreadState> Allocator for PerThread<'_, S> {
    type ThreadState<'a>
        = S
    where
        Self: 'a;

    fn thread_state(&self) -> S {
        (self.new_thread_state)(self.frames)
    }

    fn alloc(&self, order: u32) -> Option<u64> {
        Allocator::alloc(self.frames, order)
    }

    fn free(&self, frame: u64, order: u32) {
        Allocator::free(self.frames, frame, order);
    }

    fn allocate_all(&self) {
        self.frames.allocate_all();
    }
}

impl ThreadState for Magazine<'_, ThreadCpus, BATCH_FRAMES> {
    #[inline]
    fn alloc(&mut self, _: u32) -> Option<u64> {
        Magazine::alloc(self).map(Pfn::number).ok()
    }

    #[inline]
    fn free(&mut self, frame: u64, _: u32) {
        if let Some(frame) = Pfn::new(frame) {
            // SAFETY: the bench frees only frames that it has allocated, and each once.
            unsafe { Magazine::free(self, frame) };
        }
    }
}

impl ThreadState for CpuMagazine<'_, ThreadCpus, BATCH_FRAMES> {
    #[inline]
    fn alloc(&mut self, _: u32) -> Option<u64> {
        CpuMagazine::alloc(self).map(Pfn::number).ok()
    }

    #[inline]
    fn free(&mut self, frame: u64, _: u32) {
        if let Some(frame) = Pfn::new(frame) {
            // SAFETY: the bench frees only frames that it has allocated, and each once.
            unsafe { CpuMagazine::free(self, frame) };
        }
    }
}

/// The engine, and the frames that a thread allocates or frees by one call.
pub(super) struct ThreadBatches<'f> {
    frames: &'f Frames<ThreadCpus>,
    batch: [Pfn; BATCH_FRAMES],
}

impl ThreadState for ThreadBatches<'_> {
    fn alloc(&mut self, order: u32) -> Option<u64> {
        Allocator::alloc(self.frames, order)
    }

    fn free(&mut self, frame: u64, order: u32) {
        Allocator::free(self.frames, frame, order);
    }

    fn take(&mut self, _: u32, count: u64, held: &mut Vec<u64>) {
        let mut frames_left = count;
        while frames_left > 0 {
            let len = usize::try_from(frames_left).unwrap_or(BATCH_FRAMES).min(BATCH_FRAMES);
            let allocated = self.frames.alloc_many(ONE_FRAME, &mut self.batch[..len]).unwrap_or(0);
            held.extend(self.batch[..allocated].iter().map(|frame| frame.number()));
            frames_left -= allocated as u64;
        }
    }

    fn free_all(&mut self, _: u32, held: &mut Vec<u64>) {
        for numbers in held.chunks(BATCH_FRAMES) {
            let frames = self.batch.iter_mut().zip(numbers);
            frames.for_each(|(frame, &number)| *frame = Pfn::new(number).unwrap_or(Pfn::ZERO));
            // SAFETY: the bench frees only frames that it has allocated, and each once.
            let freed = unsafe { self.frames.free_many(&self.batch[..numbers.len()]) };
            assert_eq!(freed, Ok(()));
        }
        held.clear();
    }
}

impl Allocator for Limit {
    type ThreadState<'a> = AtomicU64;

    fn thread_state(&self) -> AtomicU64 {
        AtomicU64::new(0)
    }

    fn alloc(&self, _: u32) -> Option<u64> {
        None
    }

    fn free(&self, _: u64, _: u32) {}

    fn allocate_all(&self) {}
}

impl ThreadState for AtomicU64 {
    #[inline]
    fn alloc(&mut self, _: u32) -> Option<u64> {
        exchange(self, 0, 1)
    }

    #[inline]
    fn free(&mut self, frame: u64, _: u32) {
        exchange(self, 1, frame);
    }
}

/// Replaces `old` by `new` with an atomic compare-exchange.
#[inline]
fn exchange(word: &AtomicU64, old: u64, new: u64) -> Option<u64> {
    word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).ok()
}
