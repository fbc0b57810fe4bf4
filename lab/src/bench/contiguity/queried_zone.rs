//! Adds and removes blocks of a zone, and queries after each block whether the zone is contiguous.
//! Hotmem reads the answer from its count; the baseline walks the zone.

use crate::{bench::subject::Subject, hosted::HostedHotplug};
use anyhow::{Result, bail};
use hotmem::{
    Budget, NoHooks, NodeId, OnlineType, PfnRange, Progress, State, Zone,
    geometry::PAGEBLOCK_FRAMES,
};
use std::time::Instant;

/// A zone whose contiguity a subject queries.
pub(super) struct QueriedZone {
    subject: Subject,
    node: NodeId,
    zone: Zone,
    /// The number of pageblocks that the baseline has read.
    pageblocks_read: u64,
    /// The answer to the last query: whether the zone is contiguous.
    last_answer: bool,
}

impl QueriedZone {
    pub(super) fn new(subject: Subject, node: NodeId, zone: Zone) -> QueriedZone {
        QueriedZone { subject, node, zone, pageblocks_read: 0, last_answer: false }
    }

    /// Runs a step. Returns its time in seconds and its number of probes (see `mod.rs`).
    pub(super) fn time<'f>(
        &mut self,
        hotplug: &mut HostedHotplug<'f>,
        step: impl FnOnce(&mut QueriedZone, &mut HostedHotplug<'f>) -> Result<()>,
    ) -> Result<(f64, u64)> {
        let (walked_before, probes_before) = (self.pageblocks_read, hotplug.probes());
        let start = Instant::now();
        step(self, hotplug)?;
        let seconds = start.elapsed().as_secs_f64();
        let probes = match self.subject {
            Subject::Hotmem => hotplug.probes() - probes_before,
            Subject::Baseline => self.pageblocks_read - walked_before,
        };
        Ok((seconds, probes))
    }

    /// Adds blocks one by one, and queries the zone's contiguity after each.
    pub(super) fn plug(
        &mut self,
        hotplug: &mut HostedHotplug<'_>,
        kind: OnlineType,
        blocks: &[PfnRange],
    ) -> Result<()> {
        for &block in blocks {
            hotplug.add(block)?;
            hotplug.online(block, kind, &mut NoHooks)?;
            if kind != OnlineType::Offline {
                self.query(hotplug);
            }
        }
        Ok(())
    }

    /// Removes blocks one by one, and queries the zone's contiguity after each.
    pub(super) fn unplug(
        &mut self,
        hotplug: &mut HostedHotplug<'_>,
        blocks: &[PfnRange],
    ) -> Result<()> {
        for &block in blocks {
            let walks = self.subject == Subject::Baseline;
            let spanned = walks.then(|| hotplug.zone(self.node, self.zone).spanned);
            let mut offline = hotplug.offline(block)?;
            match offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
                Progress::Ready(_) => {}
                other => bail!("a free block cannot be brought offline: {other:?}"),
            }
            if let Some(spanned) = spanned {
                self.read_to_shrink(hotplug, spanned, block);
            }
            self.query(hotplug);
            hotplug.remove(block)?;
        }
        Ok(())
    }

    /// Checks the answer to the last query.
    ///
    /// # Errors
    /// The answer was not `is_contiguous`.
    pub(super) fn check_answer(&self, is_contiguous: bool) -> Result<()> {
        if self.last_answer != is_contiguous {
            bail!(
                "the subject's answer to whether the zone is contiguous is wrong: {}",
                self.last_answer
            );
        }
        Ok(())
    }

    /// Queries whether the zone is contiguous.
    fn query(&mut self, hotplug: &HostedHotplug<'_>) {
        let zone = hotplug.zone(self.node, self.zone);
        self.last_answer = match self.subject {
            Subject::Hotmem => zone.contiguous,
            Subject::Baseline => self.walk(hotplug, zone.spanned),
        };
    }

    /// Reads the state of a pageblock, and counts the read. Returns whether the pageblock is online
    /// in the zone.
    fn read_is_online(&mut self, hotplug: &HostedHotplug<'_>, block: PfnRange) -> bool {
        self.pageblocks_read += 1;
        hotplug.state_at(block.start(), block.end()).1 == State::from(self.zone)
    }

    /// Counts the frames in use in the zone, pageblock by pageblock.
    pub(super) fn count_used_frames(&mut self, hotplug: &HostedHotplug<'_>) -> u64 {
        let mut used = 0;
        let mut add = |_: PfnRange, frames: u64| used += frames;
        let spanned = hotplug.zone(self.node, self.zone).spanned;
        match self.subject {
            // The runs also cover low memory, which is not in the span.
            Subject::Hotmem => hotplug.online_runs(self.node, self.zone, |run| {
                if spanned.covers(run) {
                    hotplug.occupancy(run, &mut add);
                }
            }),
            Subject::Baseline => self.walk_runs(hotplug, |run| hotplug.occupancy(run, &mut add)),
        }
        used
    }

    /// Passes the runs of the zone to `visit`. Finds them by checking whether each pageblock of the
    /// span is in the zone.
    fn walk_runs(&mut self, hotplug: &HostedHotplug<'_>, mut visit: impl FnMut(PfnRange)) {
        let mut run = PfnRange::EMPTY;
        let spanned = hotplug.zone(self.node, self.zone).spanned;
        for block in spanned.chunks(PAGEBLOCK_FRAMES as u64) {
            if !self.read_is_online(hotplug, block) {
                visit(std::mem::replace(&mut run, PfnRange::EMPTY));
            } else if run.is_empty() {
                run = block;
            } else {
                run = PfnRange::new(run.start(), block.end()).unwrap_or(block);
            }
        }
        visit(run);
    }

    /// Returns whether every pageblock of the span is online in the zone.
    fn walk(&mut self, hotplug: &HostedHotplug<'_>, spanned: PfnRange) -> bool {
        !spanned.is_empty()
            && spanned
                .chunks(PAGEBLOCK_FRAMES as u64)
                .all(|block| self.read_is_online(hotplug, block))
    }

    /// Does the reads by which the baseline shrinks the span after `removed` went offline. If
    /// `removed` was at an end of the span, searches inwards for the next pageblock of the zone.
    fn read_to_shrink(
        &mut self,
        hotplug: &HostedHotplug<'_>,
        spanned: PfnRange,
        removed: PfnRange,
    ) {
        let (below, from_removed) = spanned.split_at(removed.start());
        let (_, above) = from_removed.split_at(removed.end());
        let mut is_online = |&block: &PfnRange| self.read_is_online(hotplug, block);
        if below.is_empty() {
            let _ = above.chunks(PAGEBLOCK_FRAMES as u64).find(&mut is_online);
        } else if above.is_empty() {
            let _ = below.chunks(PAGEBLOCK_FRAMES as u64).rev().find(&mut is_online);
        }
    }
}
