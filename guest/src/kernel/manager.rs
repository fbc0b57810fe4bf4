//! The kernel's memory manager as the virtio-mem driver sees it: the engine, and what is under way
//! between a request and the device's answer.

use super::hooks::KernelHooks;
use super::memory::FRAMES;
use hotmem::{
    AddError, Addition, AnnounceError, Blocker, Budget, Bytes, Hotplug, OneCpu, OnlineType, Pfn,
    PfnRange, Removal, Shrink, Shrunk, State, Why,
};
use hotmem_guest::direct_map::DIRECT_MAP_BYTES;
use hotmem_virtio::mem::{Memory, Obstacle, Run, Unplug};

/// What one call does at most, in pageblocks of 2 MiB: the device is looked at in between.
const BUDGET: Budget = Budget::pageblocks(4096);

/// The engine, and the one range that is between two states.
pub(crate) struct Manager {
    pub(crate) hooks: KernelHooks,
    hotplug: Hotplug<'static, OneCpu>,
    online: OnlineType,
    /// What the driver plugs in multiples of, in frames.
    unit: u64,
    coming: Option<Addition<'static, OneCpu>>,
    shrinking: Option<Shrinking>,
    going: Option<Removal>,
    /// Bytes that describe memory and were written since they were last asked for.
    written: Bytes,
}

/// A shrink that may have more to give.
struct Shrinking {
    shrink: Shrink<'static, OneCpu>,
    region: PfnRange,
    unit: u64,
    left: u64,
}

impl Manager {
    pub(crate) fn new(
        hotplug: Hotplug<'static, OneCpu>,
        hooks: KernelHooks,
        online: OnlineType,
        unit: u64,
    ) -> Self {
        Manager {
            hooks,
            hotplug,
            online,
            unit,
            coming: None,
            shrinking: None,
            going: None,
            written: Bytes::ZERO,
        }
    }

    /// How many bytes were written to describe memory since the last call.
    pub(crate) fn take_written(&mut self) -> Bytes {
        core::mem::take(&mut self.written) + core::mem::take(&mut self.hooks.tables_written)
    }

    /// The highest run of `region` that is present but not online, at most `max_frames` of it.
    fn highest_offline(&self, region: PfnRange, max_frames: u64) -> Option<PfnRange> {
        let mut highest = None;
        let mut rest = region;
        while !rest.is_empty() {
            let (run, state) = self.hotplug.state_at(rest.start(), rest.end());
            if state == State::Offline {
                let frames = run.frames().min(max_frames) / self.unit * self.unit;
                highest = Pfn::new(run.end().number() - frames).map(|at| run.split_at(at).1);
            }
            rest = rest.split_at(run.end()).1;
        }
        highest
    }

    fn poll_shrink(&mut self, wanted: Unplug) -> Result<PfnRange, Obstacle> {
        let Unplug { region, surplus, at_once, unit } = wanted;
        let same = |s: &Shrinking| s.region == region && s.unit == unit && s.left == surplus;
        if !self.shrinking.as_ref().is_some_and(same) {
            self.cancel();
        }
        let shrinking = self.shrinking.get_or_insert_with(|| Shrinking {
            shrink: Shrink::new(region, surplus, unit, at_once),
            region,
            unit,
            left: surplus,
        });
        match shrinking.shrink.poll(&mut self.hotplug, &mut self.hooks, BUDGET) {
            Shrunk::Working => Err(Obstacle::Working),
            Shrunk::Ready(removal) => {
                let range = removal.range();
                shrinking.left = shrinking.left.saturating_sub(range.frames());
                if shrinking.left == 0 {
                    self.cancel();
                }
                self.going = Some(removal);
                Ok(range)
            }
            Shrunk::Done { blocker, .. } => {
                self.shrinking = None;
                Err(blocker.map_or(Obstacle::Never("no more memory is online there"), obstacle))
            }
        }
    }
}

impl Memory for Manager {
    fn announce(&mut self, region: PfnRange, _: Option<u16>) -> Result<(), Obstacle> {
        if region.end().phys_addr() > DIRECT_MAP_BYTES {
            return Err(Obstacle::Never("it lies beyond the direct map"));
        }
        let before = FRAMES.metadata_reserved();
        match self.hotplug.announce(region) {
            Ok(_) => {
                self.written = self.written + (FRAMES.metadata_reserved() - before);
                Ok(())
            }
            Err(AnnounceError::Overlaps(other)) if other == region => Ok(()),
            Err(AnnounceError::Overlaps(_)) => Err(Obstacle::Never("it overlaps other memory")),
            Err(AnnounceError::NoMetadata(_)) => Err(Obstacle::Later("no memory for its words")),
            Err(_) => Err(Obstacle::Never("the engine does not take it")),
        }
    }

    fn run_at(&self, from: Pfn, within: PfnRange) -> Run {
        let plugged_at = |from| {
            let (run, state) = self.hotplug.state_at(from, within.end());
            let plugged = matches!(state, State::Offline | State::Online | State::OnlineMovable);
            (run, plugged)
        };
        let (mut range, plugged) = plugged_at(from);
        while range.end() < within.end() {
            let (next, also) = plugged_at(range.end());
            if also != plugged || next.is_empty() {
                break;
            }
            range = PfnRange::new(from, next.end()).unwrap_or(range);
        }
        Run { range, plugged }
    }

    fn prepare_plug(&mut self, mut range: PfnRange, _unit: u64) -> Result<PfnRange, Obstacle> {
        loop {
            match self.hotplug.prepare_add(range, &mut self.hooks) {
                Ok(addition) => {
                    self.coming = Some(addition);
                    return Ok(range);
                }
                Err(AddError::NoTables { .. }) if range.frames() > self.unit => {
                    let half = range.frames() / 2 / self.unit * self.unit;
                    let middle = range.start().checked_add(half.max(self.unit));
                    range = range.split_at(middle.unwrap_or(range.end())).0;
                }
                Err(AddError::NoTables { .. }) => {
                    return Err(Obstacle::Later("no memory for page tables"));
                }
                Err(AddError::Present(_)) => return Err(Obstacle::Never("it is there already")),
                Err(_) => return Err(Obstacle::Never("the engine does not take it")),
            }
        }
    }

    fn plugged(&mut self, range: PfnRange) {
        let Some(addition) = self.coming.take() else { return };
        self.hotplug.commit_add(addition, &mut self.hooks);
        // Present and offline since a moment ago, so this cannot fail.
        let _ = self.hotplug.online(range, self.online);
        let sections = range.sections().count() as u64;
        self.written = self.written + Bytes(sections * ONLINE_BYTES);
    }

    fn plug_refused(&mut self, _: PfnRange) {
        self.coming = None;
    }

    fn prepare_unplug(&mut self, wanted: Unplug) -> Result<PfnRange, Obstacle> {
        if self.online == OnlineType::Offline
            && let Some(range) = self.highest_offline(wanted.region, wanted.at_once)
            && let Ok(removal) = self.hotplug.prepare_remove(range, &mut self.hooks)
        {
            self.going = Some(removal);
            return Ok(range);
        }
        self.poll_shrink(wanted)
    }

    fn unplugged(&mut self, _: PfnRange) {
        if let Some(removal) = self.going.take() {
            self.hotplug.commit_remove(removal, &mut self.hooks);
        }
    }

    fn unplug_refused(&mut self, _: PfnRange) {
        if let Some(removal) = self.going.take() {
            self.hotplug.abandon_remove(removal, &mut self.hooks);
        }
        // The shrink has left this range behind; the next one starts at the top again.
        self.cancel();
    }

    fn cancel(&mut self) {
        if let Some(shrinking) = self.shrinking.take() {
            shrinking.shrink.cancel(&mut self.hotplug, &mut self.hooks);
        }
    }
}

/// What [`Hotplug::online`] writes for a section, at most.
const ONLINE_BYTES: u64 = 40;

/// A shrink gives up after this, but the workload may free or the kernel move what was in the way.
fn obstacle(blocker: Blocker) -> Obstacle {
    match blocker.why {
        Why::Pinned(why) | Why::Veto(why) => Obstacle::Later(why),
        Why::Retry => Obstacle::Later("it holds frames that could not be moved"),
        Why::NoRoom { .. } => Obstacle::Later("no room elsewhere for what lives there"),
        Why::Metadata => Obstacle::Later("metadata of other memory lies there"),
        Why::Busy | Why::HeldByAnother => Obstacle::Later("it is changing hands"),
        Why::NotOnline => Obstacle::Later("it is not online"),
    }
}
