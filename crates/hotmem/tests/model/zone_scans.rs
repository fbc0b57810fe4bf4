//! Compares scans of zones with a walk over the model's pageblocks.

use crate::lifecycle::NODES;
use crate::machine::Machine;
use crate::model::{FrameState, SIZE};
use hotmem::Zone;
use hotmem_testkit::{PAGEBLOCK, numbers, range};
use std::collections::BTreeMap;

impl Machine<'_> {
    /// Checks that a scan of a zone visits each of its pageblocks once, with the right number of
    /// frames in use, and no other memory.
    pub(crate) fn check_scans(&self) {
        for node in NODES {
            for zone in Zone::ALL {
                let mut scanned = BTreeMap::new();
                self.hotplug.online_runs(node, zone, |run| {
                    self.hotplug.occupancy(run, |block, used| {
                        assert!(run.covers(block) && block.frames() == PAGEBLOCK);
                        assert_eq!(scanned.insert(block.start().number(), used), None);
                    });
                });
                let online = (0..SIZE).step_by(PAGEBLOCK as usize).filter(|&at| {
                    let block = self.model.block_of(at);
                    let is_in_zone = block.online && block.movable == (zone == Zone::Movable);
                    is_in_zone && self.model.node_of(at) == Some(node)
                });
                assert!(online.eq(scanned.keys().copied()), "{node:?} {zone:?}");
                self.check_occupancy(&scanned);
            }
        }
    }

    /// Checks the numbers of frames in use. Skips isolated pageblocks: if they are drained, the
    /// scan counts them as free.
    fn check_occupancy(&self, scanned: &BTreeMap<u64, u64>) {
        for (&at, &used) in scanned.iter().filter(|&(&at, _)| !self.model.block_of(at).is_held()) {
            let frames = numbers(range(at, PAGEBLOCK));
            let state = |frame: &u64| self.model.frame_states[*frame as usize];
            let expected =
                frames.filter(|frame| !matches!(state(frame), FrameState::Free | FrameState::Hole));
            assert_eq!(used, expected.count() as u64, "{at:#x}");
        }
    }
}
