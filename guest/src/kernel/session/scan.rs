//! Scans all memory for frames in use, as a compactor does.

use super::Session;
use crate::kernel::memory::FRAMES;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Bytes, Zone};
use hotmem_guest::event::Event;

impl Session {
    /// Scans every zone, and compares the number of frames in use with the allocator's counts. No
    /// CPU may allocate or free meanwhile.
    pub(super) fn scan(&mut self) {
        let started = self.clock.now_us();
        let hotplug = &self.engine.hotplug;
        let (mut runs, mut blocks, mut used) = (0, 0, 0);
        for node in hotplug.nodes() {
            for zone in Zone::ALL {
                hotplug.online_runs(node, zone, |run| {
                    runs += 1;
                    hotplug.occupancy(run, |_, frames| {
                        blocks += 1;
                        used += frames;
                    });
                });
            }
        }
        let us = self.clock.now_us().saturating_sub(started);
        let found = Bytes(used * FRAME_SIZE);
        self.report.event(&Event::Scanned { runs, blocks, used: found, us });
        let counts = FRAMES.counts();
        // The scan counts poisoned frames as used. It counts an isolated frame as free or as used,
        // as the frame's bit says.
        let (min, max) = (counts.used, counts.used + counts.poisoned + counts.isolated);
        if (min..=max).contains(&used) {
            self.report.ok(format_args!("scan: {found} in use"));
        } else {
            let counted = Bytes(min * FRAME_SIZE);
            self.report.not_ok(format_args!("scan: {found} in use, and {counted} counted"));
        }
    }
}
