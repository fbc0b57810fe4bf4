//! Keeps one unit isolated while the driver waits, so that the unit empties.
//!
//! A unit that is in use goes back to the allocator when it cannot be removed. A kernel that
//! allocates and frees all the time may then allocate from the unit again before the next try, each
//! time. So one of these units stays isolated until the next try, a lower one each time.

use hotmem::{Budget, Hooks, Hotplug, Known, Mapping, Offline, Pfn, PfnRange};
use hotmem::{Platform, Progress, State};

/// The unit that is isolated while the driver waits.
pub(super) struct Emptying<'f, P> {
    request: Option<Offline<'f, P>>,
    /// The start of the last unit that was isolated.
    below: Pfn,
}

impl<'f, P: Platform> Emptying<'f, P> {
    pub(super) const fn new() -> Emptying<'f, P> {
        Emptying { request: None, below: Pfn::LIMIT }
    }

    /// Isolates a unit of `region` that is online: the next one below the last, or the highest one.
    /// Returns the unit if it is empty: it is then offline.
    pub(super) fn begin<M: Mapping>(
        &mut self,
        (region, unit): (PfnRange, u64),
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        budget: Budget,
    ) -> Option<PfnRange> {
        let below = region.split_at(self.below).0;
        let mut places = [below, region].into_iter();
        let next = places.find_map(|within| highest_online(within, unit, hotplug));
        self.below = next.map_or(Pfn::LIMIT, PfnRange::start);
        let mut request = hotplug.offline(next?).ok()?;
        match request.poll(hotplug, hooks, budget) {
            Progress::Ready(range) => Some(range),
            _ => {
                self.request = Some(request);
                None
            }
        }
    }

    /// Tries again to take the unit offline. It is [ready](Progress::Ready) if it has become empty;
    /// otherwise it goes back to the allocator.
    pub(super) fn end<M: Mapping>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        budget: Budget,
    ) -> Progress<PfnRange> {
        let Some(request) = &mut self.request else { return Progress::Idle };
        let progress = request.poll(hotplug, hooks, budget);
        match progress {
            Progress::Working => {}
            Progress::Ready(_) => self.request = None,
            _ => self.cancel(hotplug, hooks),
        }
        progress
    }

    /// Gives the unit back to the allocator.
    pub(super) fn cancel<M: Mapping>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) {
        if let Some(request) = self.request.take() {
            // It began on this machine, as `HotplugMemory::with` has checked.
            request.cancel(hotplug, hooks).known();
        }
    }
}

/// Returns the highest unit of a range that is online.
fn highest_online<P: Platform, M: Mapping>(
    within: PfnRange,
    unit: u64,
    hotplug: &Hotplug<'_, P, M>,
) -> Option<PfnRange> {
    let mut highest = None;
    let mut rest = within.align_inward(unit);
    while !rest.is_empty() {
        let (run, state) = hotplug.state_at(rest.start(), rest.end());
        let units = run.align_inward(unit);
        if matches!(state, State::Online | State::OnlineMovable) && !units.is_empty() {
            highest = units.chunks(unit).next_back();
        }
        if run.is_empty() {
            break;
        }
        rest = rest.split_at(run.end()).1;
    }
    highest
}
