//! Implements the subjects that take several frames from the engine at once, through a magazine or
//! by calls for many frames. Also implements the limit: the least cost of a pair of atomic
//! operations.

use crate::bench::frames::access::Access;
use crate::bench::frames::allocator::{Allocator, ThreadState};
use crate::bench::frames::case::Case;
use crate::bench::frames::length::Length;
use crate::hosted::ThreadCpus;
use hotmem::{AllocRequest, Frames, Pfn};
use hotmem_port::{CpuMagazine, Magazine};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of frames in a magazine and in a batch.
const BATCH_FRAMES: usize = 64;
/// A request for one movable frame.
const ONE_FRAME: AllocRequest = AllocRequest::frames(1).movable();

/// Returns why magazines cannot do a case.
pub(in crate::bench) fn magazine_cannot(case: &Case) -> Option<&'static str> {
    if case.length != Length::FRAME {
        return Some("it holds single frames");
    }
    match case.access {
        _ if case.place.is_restricted() => Some("its frames are of any node and zone"),
        Access::Pair | Access::Bulk | Access::Random | Access::Interrupts | Access::RemoteFree => {
            None
        }
        _ => Some("it holds single frames"),
    }
}

/// Returns why batches cannot do a case.
pub(in crate::bench) fn batches_cannot(case: &Case) -> Option<&'static str> {
    let is_bulk = case.access == Access::Bulk && case.length == Length::FRAME;
    (!is_bulk).then_some("a batch has many single frames")
}

/// Returns why the limit has no figure for a case.
pub(in crate::bench) fn limit_cannot(case: &Case) -> Option<&'static str> {
    let is_pair = case.access == Access::Pair && case.length == Length::FRAME;
    (!is_pair).then_some("two exchanges are a pair of frames")
}

/// The engine, which each thread uses through a state of type `S`.
pub(in crate::bench) struct PerThread<'f, S> {
    frames: &'f Frames<ThreadCpus>,
    new_thread_state: fn(&'f Frames<ThreadCpus>) -> S,
}

impl<'f> PerThread<'f, Magazine<'f, ThreadCpus, BATCH_FRAMES>> {
    /// Makes a subject in which each thread has a magazine.
    pub(in crate::bench) fn magazines(frames: &'f Frames<ThreadCpus>) -> Self {
        PerThread { frames, new_thread_state: |frames| Magazine::new(frames, ONE_FRAME) }
    }
}

impl<'f> PerThread<'f, CpuMagazine<'f, ThreadCpus, BATCH_FRAMES>> {
    /// Makes a subject in which each thread is a CPU that has a magazine.
    pub(in crate::bench) fn cpu_magazines(frames: &'f Frames<ThreadCpus>) -> Self {
        PerThread {
            frames,
            // SAFETY: only one thread uses each magazine, and no call interrupts another.
            new_thread_state: |frames| unsafe { CpuMagazine::new(frames, ONE_FRAME) },
        }
    }
}

impl<'f> PerThread<'f, ThreadBatches<'f>> {
    /// Makes a subject in which each thread requests many frames by one call.
    pub(in crate::bench) fn batches(frames: &'f Frames<ThreadCpus>) -> Self {
        PerThread {
            frames,
            new_thread_state: |frames| ThreadBatches { frames, batch: [Pfn::ZERO; BATCH_FRAMES] },
        }
    }
}

/// The limit: each thread changes a word that no other thread uses.
pub(in crate::bench) struct Limit;

impl<S: ThreadState> Allocator for PerThread<'_, S> {
    type ThreadState<'a>
        = S
    where
        Self: 'a;

    fn thread_state(&self) -> S {
        (self.new_thread_state)(self.frames)
    }

    fn alloc(&self, length: Length) -> Option<u64> {
        Allocator::alloc(self.frames, length)
    }

    fn free(&self, frame: u64, length: Length) {
        Allocator::free(self.frames, frame, length);
    }

    fn allocate_all(&self, part: Length) {
        self.frames.allocate_all(part);
    }
}

impl ThreadState for Magazine<'_, ThreadCpus, BATCH_FRAMES> {
    #[inline]
    fn alloc(&mut self, _: Length) -> Option<u64> {
        Magazine::alloc(self).map(Pfn::number).ok()
    }

    #[inline]
    fn free(&mut self, frame: u64, _: Length) {
        if let Some(frame) = Pfn::new(frame) {
            // SAFETY: the bench frees only frames that it has allocated, and each once.
            unsafe { Magazine::free(self, frame) };
        }
    }
}

impl ThreadState for CpuMagazine<'_, ThreadCpus, BATCH_FRAMES> {
    #[inline]
    fn alloc(&mut self, _: Length) -> Option<u64> {
        CpuMagazine::alloc(self).map(Pfn::number).ok()
    }

    #[inline]
    fn free(&mut self, frame: u64, _: Length) {
        if let Some(frame) = Pfn::new(frame) {
            // SAFETY: the bench frees only frames that it has allocated, and each once.
            unsafe { CpuMagazine::free(self, frame) };
        }
    }
}

/// The engine, and the frames that a thread allocates or frees by one call.
pub(in crate::bench) struct ThreadBatches<'f> {
    frames: &'f Frames<ThreadCpus>,
    batch: [Pfn; BATCH_FRAMES],
}

impl ThreadState for ThreadBatches<'_> {
    fn alloc(&mut self, length: Length) -> Option<u64> {
        Allocator::alloc(self.frames, length)
    }

    fn free(&mut self, frame: u64, length: Length) {
        Allocator::free(self.frames, frame, length);
    }

    fn take(&mut self, _: Length, count: u64, held: &mut Vec<u64>) {
        let mut frames_left = count;
        while frames_left > 0 {
            let len = usize::try_from(frames_left).unwrap_or(BATCH_FRAMES).min(BATCH_FRAMES);
            let allocated = self.frames.alloc_many(ONE_FRAME, &mut self.batch[..len]).unwrap_or(0);
            held.extend(self.batch[..allocated].iter().map(|frame| frame.number()));
            frames_left -= allocated as u64;
        }
    }

    fn free_all(&mut self, _: Length, held: &mut Vec<u64>) {
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

    fn alloc(&self, _: Length) -> Option<u64> {
        None
    }

    fn free(&self, _: u64, _: Length) {}

    fn allocate_all(&self, _: Length) {}
}

impl ThreadState for AtomicU64 {
    #[inline]
    fn alloc(&mut self, _: Length) -> Option<u64> {
        exchange(self, 0, 1)
    }

    #[inline]
    fn free(&mut self, frame: u64, _: Length) {
        exchange(self, 1, frame);
    }
}

/// Replaces `old` by `new` with an atomic compare-exchange.
#[inline]
fn exchange(word: &AtomicU64, old: u64, new: u64) -> Option<u64> {
    word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).ok()
}
