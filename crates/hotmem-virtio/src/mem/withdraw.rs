//! Removes the memory of a device that is gone.

use super::hotplug::BoundMemory;
use super::memory::{Memory, Obstacle, Run, Unplug};
use super::remaining::Remaining;
use hotmem::geometry::{FRAME_SHIFT, PAGEBLOCK_FRAMES};
use hotmem::{Bytes, Hooks, Map, PfnRange, Platform, Progress};

impl<P: Platform, M: Map, H: Hooks> BoundMemory<'_, '_, P, M, H> {
    /// Continues the removal of all memory of the device.
    pub(super) fn withdraw(&mut self) -> Progress<(), Remaining> {
        // Nobody plugs or unplugs the memory in transition any more.
        self.memory.addition = None;
        self.memory.added_range = PfnRange::EMPTY;
        while let Some(removal) = self.take_removal() {
            self.hotplug.commit_remove(removal);
        }
        let region = self.memory.region.range;
        let mut frames = self.plugged_frames(region);
        while frames > 0 {
            let unit = PAGEBLOCK_FRAMES as u64;
            match self.prepare_unplug(Unplug { region, total: frames, max_frames: frames, unit }) {
                Ok(range) => {
                    self.unplugged(range);
                    frames -= range.frames();
                }
                Err(Obstacle::Working) => return Progress::Working,
                Err(Obstacle::Later(reason) | Obstacle::Never(reason)) => {
                    // Let the kernel use what remains.
                    self.stop_shrinking();
                    return Progress::Pending(Remaining {
                        size: Bytes(frames << FRAME_SHIFT),
                        reason,
                    });
                }
            }
        }
        self.stop_shrinking();
        let known = self.hotplug.regions().find(|&(_, range)| range == region && !range.is_empty());
        if let Some((id, _)) = known
            && let Err(error) = self.hotplug.withdraw(id)
        {
            return Progress::Pending(Remaining { size: Bytes::ZERO, reason: error.into() });
        }
        self.memory.region = PfnRange::EMPTY.into();
        Progress::Ready(())
    }

    /// Returns the number of frames of the region that are present.
    fn plugged_frames(&self, region: PfnRange) -> u64 {
        let (mut rest, mut frames) = (region, 0);
        while !rest.is_empty() {
            let Run { range, plugged } = self.run_at(rest.start(), rest);
            frames += if plugged { range.frames() } else { 0 };
            if range.is_empty() {
                break;
            }
            rest = rest.split_at(range.end()).1;
        }
        frames
    }
}
