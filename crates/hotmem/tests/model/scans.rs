//! Compares scans of zones with queries of every pageblock.

use crate::lifecycle::NODES;
use crate::world::{Frame, Machine, SIZE};
use hotmem::Zone;
use hotmem_testkit::{BLOCK, numbers, range};
use std::collections::BTreeMap;

impl Machine<'_> {
    /// Checks that each pageblock of a zone is scanned once, with its frames in use, and no other
    /// memory is.
    pub(crate) fn check_scans(&self) {
        for node in NODES {
            for zone in Zone::ALL {
                let mut scanned = BTreeMap::new();
                self.hotplug.online_runs(node, zone, |run| {
                    self.hotplug.occupancy(run, |block, used| {
                        assert!(run.covers(block) && block.frames() == BLOCK);
                        assert_eq!(scanned.insert(block.start().number(), used), None);
                    });
                });
                let online = (0..SIZE).step_by(BLOCK as usize).filter(|&at| {
                    let block = self.world.block_of(at);
                    let is_there = block.online && block.movable == (zone == Zone::Movable);
                    is_there && self.world.node_of(at) == Some(node)
                });
                assert!(online.eq(scanned.keys().copied()), "{node:?} {zone:?}");
                self.check_occupancy(&scanned);
            }
        }
    }

    /// Pageblocks that a token holds may be drained, and count as free then.
    fn check_occupancy(&self, scanned: &BTreeMap<u64, u64>) {
        for (&at, &seen) in scanned.iter().filter(|&(&at, _)| !self.world.block_of(at).is_held()) {
            let frames = numbers(range(at, BLOCK));
            let used = frames.filter(|&frame| self.world.frame[frame as usize] != Frame::Free);
            assert_eq!(seen, used.count() as u64, "{at:#x}");
        }
    }
}
