//! Holds the frames that a request has allocated for page tables and descriptors, and that the
//! mapping has not taken yet.

use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, Frames};
use crate::platform::Platform;

/// Frames for page tables and descriptors. Dropping this gives the frames back that were not taken.
pub(super) struct SpareFrames<'f, P: Platform> {
    frames: &'f Frames<P>,
    list: FrameList,
}

/// A list of allocated frames: one run, or several if no such run was free. If it is dropped, the
/// frames stay allocated.
#[derive(Debug)]
pub(super) struct FrameList {
    /// The run that the next frame is taken from.
    run: PfnRange,
    /// The other runs: a linked list, empty as long as one run suffices.
    other_runs: Link,
}

impl FrameList {
    pub(super) const EMPTY: FrameList = FrameList { run: PfnRange::EMPTY, other_runs: END };

    pub(super) fn is_empty(&self) -> bool {
        self.run.is_empty() && self.other_runs == END
    }
}

/// A link to a run: the number of its first frame + 1, or 0 for the end of the list; and the number
/// of its frames. The link to the next run is at the start of the run.
type Link = [u64; 2];

const END: Link = [0, 0];

impl<'f, P: Platform> SpareFrames<'f, P> {
    /// Allocates this many frames, or none. If `in_boot_memory`, prefers boot memory.
    ///
    /// # Errors
    /// The error of the allocation of all frames in one run, if neither free kernel memory nor the
    /// table reserve has as many. The failed call changed nothing.
    pub(super) fn allocate(
        frames: &'f Frames<P>,
        count: u64,
        in_boot_memory: bool,
    ) -> Result<SpareFrames<'f, P>, AllocError> {
        let mut spare = SpareFrames::of(frames, FrameList::EMPTY);
        let (mut missing, mut len) = (count, count);
        while missing != 0 {
            len = len.min(missing);
            let error = match frames.call().allocate_for_tables(len, in_boot_memory) {
                Ok(run) => {
                    spare.push(run);
                    missing -= run.frames();
                    continue;
                }
                Err(error) => error,
            };
            // Check the amount of free memory first, so that a refused request does not divide a
            // pageblock.
            if len == count && !frames.call().has_memory_for_tables(count) {
                return Err(error);
            }
            if len > 1 {
                len /= 2;
                continue;
            }
            let frame = frames.call().take_from_table_reserve().ok_or(error)?;
            spare.push(PfnRange::with_len(frame, 1).ok_or(error)?);
            missing -= 1;
        }
        Ok(spare)
    }

    /// Returns the guard of a list, whose frames belong to `frames`.
    pub(super) fn of(frames: &'f Frames<P>, list: FrameList) -> SpareFrames<'f, P> {
        SpareFrames { frames, list }
    }

    /// Returns the frames as a list, which keeps them allocated.
    pub(super) fn into_list(mut self) -> FrameList {
        core::mem::replace(&mut self.list, FrameList::EMPTY)
    }

    /// Takes a frame.
    pub(super) fn take(&mut self) -> Option<Pfn> {
        if self.list.run.is_empty() {
            self.list.run = self.pop()?;
        }
        let frame = self.list.run.start();
        self.list.run = self.list.run.split_at(frame.checked_add(1)?).1;
        Some(frame)
    }

    /// Returns all runs, in the order in which their frames are taken.
    #[cfg(feature = "internals")]
    pub(super) fn runs(&self) -> impl Iterator<Item = PfnRange> {
        let mut others = self.list.other_runs;
        let others = core::iter::from_fn(move || {
            let (run, next) = self.follow(others)?;
            others = next;
            Some(run)
        });
        core::iter::once(self.list.run).chain(others).filter(|run| !run.is_empty())
    }

    /// Adds a run, which is allocated. The mapping will take it or give it back, so it counts as
    /// allocated by a caller from now on.
    fn push(&mut self, run: PfnRange) {
        self.frames.count_allocated(run.frames());
        if self.list.run.is_empty() {
            self.list.run = run;
            return;
        }
        // SAFETY: the frames of `run` are allocated for `self`, so they are mapped and nobody else
        // uses them; a frame is aligned to 8 bytes.
        unsafe {
            self.frames.direct_map().pointer(run.start()).cast::<Link>().write(self.list.other_runs)
        };
        self.list.other_runs = [run.start().number() + 1, run.frames()];
    }

    /// Removes the last run from the list.
    fn pop(&mut self) -> Option<PfnRange> {
        let (run, next) = self.follow(self.list.other_runs)?;
        self.list.other_runs = next;
        Some(run)
    }

    /// Returns the run that a link of this list leads to, and its link to the next run.
    fn follow(&self, [start, len]: Link) -> Option<(PfnRange, Link)> {
        let run = PfnRange::with_len(Pfn::new(start.checked_sub(1)?)?, len)?;
        // SAFETY: `push` has written the link at the start of `run`, which `self` owns.
        let next = unsafe { self.frames.direct_map().pointer(run.start()).cast::<Link>().read() };
        Some((run, next))
    }
}

impl<P: Platform> Drop for SpareFrames<'_, P> {
    fn drop(&mut self) {
        let mut next = Some(self.list.run).filter(|run| !run.is_empty()).or_else(|| self.pop());
        while let Some(run) = next {
            self.frames.count_freed(run.frames());
            self.frames.call().free_tables(run);
            next = self.pop();
        }
    }
}
