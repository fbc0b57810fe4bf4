//! A zone whose contiguity is queried after each block, for both subjects.

use crate::{bench::subject::Subject, hosted::HostedHotplug};
use anyhow::{Result, bail};
use hotmem::{
    Budget, NoHooks, NodeId, OnlineType, PfnRange, Progress, State, Zone,
    geometry::PAGEBLOCK_FRAMES,
};
use std::time::Instant;

/// A zone whose contiguity is measured.
pub(super) struct Asked {
    subject: Subject,
    node: NodeId,
    zone: Zone,
    /// Pageblocks that `before` has read.
    walked: u64,
    last: bool,
}

impl Asked {
    pub(super) fn new(subject: Subject, node: NodeId, zone: Zone) -> Asked {
        Asked { subject, node, zone, walked: 0, last: false }
    }

    /// Returns the seconds and the probes of a step.
    pub(super) fn time<'f>(
        &mut self,
        hotplug: &mut HostedHotplug<'f>,
        step: impl FnOnce(&mut Asked, &mut HostedHotplug<'f>) -> Result<()>,
    ) -> Result<(f64, u64)> {
        let (walked, looked_at) = (self.walked, hotplug.probes());
        let start = Instant::now();
        step(self, hotplug)?;
        let seconds = start.elapsed().as_secs_f64();
        let probes = match self.subject {
            Subject::Hotmem => hotplug.probes() - looked_at,
            Subject::Before => self.walked - walked,
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
                self.ask(hotplug);
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
            let walks = self.subject == Subject::Before;
            let spanned = walks.then(|| hotplug.zone(self.node, self.zone).spanned);
            let mut offline = hotplug.offline(block)?;
            match offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
                Progress::Ready(_) => {}
                stuck => bail!("a free block does not go offline: {stuck:?}"),
            }
            if let Some(spanned) = spanned {
                self.shrink(hotplug, spanned, block);
            }
            self.ask(hotplug);
            hotplug.remove(block)?;
        }
        Ok(())
    }

    /// Checks the last answer.
    pub(super) fn expect(&self, contiguous: bool) -> Result<()> {
        if self.last != contiguous {
            bail!("the zone is said to be contiguous: {}", self.last);
        }
        Ok(())
    }

    fn ask(&mut self, hotplug: &HostedHotplug<'_>) {
        let zone = hotplug.zone(self.node, self.zone);
        self.last = match self.subject {
            Subject::Hotmem => zone.contiguous,
            Subject::Before => self.walk(hotplug, zone.spanned),
        };
    }

    /// Returns whether a pageblock is online in the zone.
    fn is_there(&mut self, hotplug: &HostedHotplug<'_>, block: PfnRange) -> bool {
        self.walked += 1;
        hotplug.state_at(block.start(), block.end()).1 == State::from(self.zone)
    }

    /// Returns the frames in use in the zone, pageblock by pageblock.
    pub(super) fn scan(&mut self, hotplug: &HostedHotplug<'_>) -> u64 {
        let mut used = 0;
        let mut add = |_: PfnRange, frames: u64| used += frames;
        let spanned = hotplug.zone(self.node, self.zone).spanned;
        match self.subject {
            // Low memory is scanned too.
            Subject::Hotmem => hotplug.online_runs(self.node, self.zone, |run| {
                if spanned.covers(run) {
                    hotplug.occupancy(run, &mut add);
                }
            }),
            Subject::Before => self.walk_runs(hotplug, |run| hotplug.occupancy(run, &mut add)),
        }
        used
    }

    /// Finds the runs of a zone by checking for every pageblock of its span whether it is in the
    /// zone.
    fn walk_runs(&mut self, hotplug: &HostedHotplug<'_>, mut each: impl FnMut(PfnRange)) {
        let mut run = PfnRange::EMPTY;
        let spanned = hotplug.zone(self.node, self.zone).spanned;
        for block in spanned.chunks(PAGEBLOCK_FRAMES as u64) {
            if !self.is_there(hotplug, block) {
                each(std::mem::replace(&mut run, PfnRange::EMPTY));
            } else if run.is_empty() {
                run = block;
            } else {
                run = PfnRange::new(run.start(), block.end()).unwrap_or(block);
            }
        }
        each(run);
    }

    /// Returns whether every pageblock of the span is online in the zone.
    fn walk(&mut self, hotplug: &HostedHotplug<'_>, spanned: PfnRange) -> bool {
        !spanned.is_empty()
            && spanned.chunks(PAGEBLOCK_FRAMES as u64).all(|block| self.is_there(hotplug, block))
    }

    /// Shrinks the span after `gone` was removed. If `gone` was at an end of the span, searches
    /// inwards for the next pageblock of the zone.
    fn shrink(&mut self, hotplug: &HostedHotplug<'_>, spanned: PfnRange, gone: PfnRange) {
        let (below, rest) = spanned.split_at(gone.start());
        let (_, above) = rest.split_at(gone.end());
        let mut is_there = |&block: &PfnRange| self.is_there(hotplug, block);
        if below.is_empty() {
            let _ = above.chunks(PAGEBLOCK_FRAMES as u64).find(&mut is_there);
        } else if above.is_empty() {
            let _ = below.chunks(PAGEBLOCK_FRAMES as u64).rev().find(&mut is_there);
        }
    }
}
