//! Measures one case in this process. Does not access allocated frames.

use super::access::Access;
use super::adapters::{
    bitmap::{BITMAP_1T, BITMAP_64G, Bitmap},
    buddy_slab::BuddySlab,
    buddy_system::Buddy,
    hotmem::{self, InLowMemory, OnNodes},
    many_frames::{Limit, PerThread},
};
use super::allocator::{Allocator, index};
use super::case::Case;
use super::place::Place;
use super::run::Run;
use super::subject::Subject;
use super::traffic::{self, cpu_time, nanoseconds};
use crate::hosted::ThreadCpus;
use ::hotmem::{Frames, geometry::FRAME_SIZE};
use anyhow::{Result, ensure};
use bitmap_allocator::{BitAlloc, BitAlloc16M};

impl Case {
    /// Returns the nanoseconds of CPU time of an operation, or of the whole start.
    pub(super) fn measure(&self, run: Run) -> Result<f64> {
        let frames = index(self.size.0 / FRAME_SIZE);
        match self.subject {
            Subject::Hotmem if self.access == Access::Init => hotmem::boot(self.size, thread_time),
            Subject::Hotmem
            | Subject::HotmemMagazine
            | Subject::HotmemCpuMagazine
            | Subject::HotmemBatches => {
                let machine = hotmem::machine(self)?;
                hotmem::plug(self, &machine, thread_time, |frames, first| {
                    self.measure_engine(run, frames, first)
                })
            }
            Subject::Limit => traffic::measure(&Limit, 0, self, run),
            Subject::BuddySystemAllocator => self.measure_peer(run, || Ok(Buddy::new(frames))),
            Subject::BuddySlabAllocator if self.place == Place::Low => {
                self.measure_peer(run, || BuddySlab::<true>::new(frames))
            }
            Subject::BuddySlabAllocator => {
                self.measure_peer(run, || BuddySlab::<false>::new(frames))
            }
            Subject::BitmapAllocator if frames <= BitAlloc16M::CAP => {
                self.measure_peer(run, || Ok(Bitmap::new(&BITMAP_64G, frames)))
            }
            Subject::BitmapAllocator => {
                self.measure_peer(run, || Ok(Bitmap::new(&BITMAP_1T, frames)))
            }
            Subject::Llfree => {
                ensure!(false, "another program measures LLFree");
                Ok(0.0)
            }
        }
    }

    /// Measures an allocator of memory that begins with frame 0.
    pub(super) fn measure_peer<A: Allocator>(
        &self,
        run: Run,
        new: impl FnOnce() -> Result<A>,
    ) -> Result<f64> {
        let started = cpu_time();
        let allocator = new()?;
        let init = cpu_time() - started;
        if self.access.is_start() {
            return Ok(nanoseconds(init));
        }
        traffic::measure(&allocator, 0, self, run)
    }

    /// Measures the engine, whose memory is plugged. `first` is the first frame of that memory.
    fn measure_engine(&self, run: Run, frames: &Frames<ThreadCpus>, first: u64) -> Result<f64> {
        if let Some(nodes) = self.place.nodes() {
            return traffic::measure(&OnNodes { frames, nodes }, first, self, run);
        }
        if self.place == Place::Low {
            return traffic::measure(&InLowMemory::new(frames, first)?, first, self, run);
        }
        match self.subject {
            Subject::HotmemMagazine => {
                traffic::measure(&PerThread::magazines(frames), first, self, run)
            }
            Subject::HotmemCpuMagazine => {
                traffic::measure(&PerThread::cpu_magazines(frames), first, self, run)
            }
            Subject::HotmemBatches => {
                traffic::measure(&PerThread::batches(frames), first, self, run)
            }
            _ => traffic::measure(frames, first, self, run),
        }
    }
}

/// Returns the nanoseconds of CPU time that the calling thread has used.
fn thread_time() -> f64 {
    nanoseconds(cpu_time())
}
