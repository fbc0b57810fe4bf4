//! Runs one case of `hotmem bench frames` on LLFree, with a reservation for each CPU. `hotmem` starts
//! this program as it starts itself.

use anyhow::{Result, anyhow};
use hotmem_lab::bench::frames::{Allocator, Length, run_peer};
use hotmem_lab::hosted::ThreadCpus;
use llfree::{Alloc, Classing, FrameId, Init, LLFree, MetaData, Request};
use std::thread::available_parallelism;

/// LLFree, and the function that makes its requests.
struct Peer<F> {
    allocator: LLFree<'static>,
    request: F,
}

fn main() -> Result<()> {
    run_peer(std::env::args(), |frames| {
        // Each CPU has a reservation of small frames and one of huge frames.
        let (classing, request) = Classing::simple(available_parallelism()?.get());
        let metadata = MetaData::alloc(&LLFree::metadata_size(&classing, frames));
        let allocator = LLFree::new(frames, Init::FreeAll, &classing, metadata);
        let allocator = allocator.map_err(|error| anyhow!("LLFree: {error:?}"))?;
        Ok(Peer { allocator, request })
    })
}

impl<F: Fn(usize, usize) -> Request + Sync> Peer<F> {
    /// Returns the request of the calling thread for a length.
    #[inline(always)]
    fn request(&self, length: Length) -> Request {
        (self.request)(length.order() as usize, ThreadCpus::current())
    }
}

impl<F: Fn(usize, usize) -> Request + Sync> Allocator for Peer<F> {
    type ThreadState<'a>
        = &'a Self
    where
        F: 'a;

    fn thread_state(&self) -> &Self {
        self
    }

    #[inline(always)]
    fn alloc(&self, length: Length) -> Option<u64> {
        let frame = self.allocator.get(None, self.request(length)).ok();
        frame.map(|(FrameId(frame), _)| frame as u64)
    }

    #[inline(always)]
    fn free(&self, frame: u64, length: Length) {
        let frame = FrameId(usize::try_from(frame).expect("the host has 64 bits"));
        let freed = self.allocator.put(frame, self.request(length));
        assert!(freed.is_ok(), "LLFree does not take back a frame: {freed:?}");
    }

    fn allocate_all(&self, _: Length) {
        for length in [Length::HUGE_PAGE, Length::FRAME] {
            while self.alloc(length).is_some() {}
        }
    }
}
