//! Counts how often the zone of a device's memory is contiguous, by a query after each change.

use hotmem::{Hotplug, Map, NodeId, Pfn, PfnRange, Platform, State, ZoneInfo, ZonePart};
use hotmem_guest::event::ZoneReport;

/// A zone, and the results of the queries.
pub(crate) struct ZoneWatch {
    node: NodeId,
    zone_part: ZonePart,
    queries: u64,
    contiguous_answers: u64,
}

impl ZoneWatch {
    /// Returns the zone in which `range` is online, or `None` if it is offline. Low memory ends at
    /// `low_end`.
    pub(crate) fn of_range<P: Platform, M: Map>(
        range: PfnRange,
        low_end: Pfn,
        engine: &Hotplug<'_, P, M>,
    ) -> Option<ZoneWatch> {
        let part = match engine.state_at(range.start(), range.end()).1 {
            State::OnlineMovable => ZonePart::Movable,
            State::Online if range.start() < low_end => ZonePart::Low,
            State::Online => ZonePart::Normal,
            _ => return None,
        };
        let node = engine.frames().node_of(range.start())?;
        Some(ZoneWatch { node, zone_part: part, queries: 0, contiguous_answers: 0 })
    }

    /// Returns whether `other` watches the same zone.
    pub(crate) fn is_same(&self, other: &ZoneWatch) -> bool {
        (self.node, self.zone_part) == (other.node, other.zone_part)
    }

    /// Queries whether the zone is contiguous, if any of its memory is online.
    pub(crate) fn query<P: Platform, M: Map>(&mut self, engine: &Hotplug<'_, P, M>) {
        let info = self.info(engine);
        if info.online != 0 {
            self.queries += 1;
            self.contiguous_answers += u64::from(info.contiguous);
        }
    }

    /// Returns the results since the last report, if there were any.
    pub(crate) fn report<P: Platform, M: Map>(
        &mut self,
        engine: &Hotplug<'_, P, M>,
    ) -> Option<ZoneReport> {
        let asked = core::mem::take(&mut self.queries);
        let contiguous = core::mem::take(&mut self.contiguous_answers);
        let info = self.info(engine);
        (asked != 0).then_some(ZoneReport { name: name(self.zone_part), info, asked, contiguous })
    }

    fn info<P: Platform, M: Map>(&self, engine: &Hotplug<'_, P, M>) -> ZoneInfo {
        engine.zone(self.node, self.zone_part)
    }
}

const fn name(part: ZonePart) -> &'static str {
    match part {
        ZonePart::Low => "low",
        ZonePart::Normal => "kernel",
        ZonePart::Movable => "movable",
    }
}
