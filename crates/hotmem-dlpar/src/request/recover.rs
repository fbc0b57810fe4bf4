//! Takes up what a [`Dlpar`](super::Dlpar) has left that was dropped while a request was open.

use super::Machine;
use super::region::region_at;
use crate::connectors::Connectors;
use crate::exchange;
use crate::outcome::Error;
use crate::table::{Group, Table};
use hotmem::{Hotplug, Map, OnlineType, PfnRange, Platform, State};

impl Table<'_> {
    /// Takes up what a [`Dlpar`](super::Dlpar) has left that was dropped while a request was open.
    /// Call this once for a new table, instead of [`adopt`](Self::adopt), and then bind the table to
    /// a new `Dlpar`. The device tree may be that of the start: the engine and the platform decide
    /// which LMBs the partition has.
    ///
    /// - Memory whose removal the platform was being told, an LMB or its neighbours, becomes absent.
    /// - An LMB whose memory is present counts as assigned. If it is offline, it is put online as
    ///   `online`. [`OnlineType::AsBefore`] restores the zones of memory that was taken offline.
    /// - An LMB whose memory is absent counts as not assigned. If the partition has or may have its
    ///   connector, a later addition acquires the connector again, and a later removal that names
    ///   the LMB releases it.
    ///
    /// The next request that adds or removes memory writes the LMBs to the device tree. Returns the
    /// number of LMBs that the partition has or may have without their memory.
    ///
    /// Cost: O(LMBs), one call of [`Connectors::entity_sense`] for each LMB whose memory is absent, and
    /// one of [`Connectors::configure`] if the partition has its connector.
    ///
    /// # Errors
    /// The first failure of the engine. All LMBs were handled nevertheless.
    pub fn recover<P: Platform, M: Map, C: Connectors + ?Sized>(
        &mut self,
        machine: &mut Machine<'_, '_, P, M, C>,
        online: OnlineType,
    ) -> Result<u32, Error> {
        let removed = self.finish_removals(machine.hotplug);
        let mut connectors = 0;
        let mut from = 0;
        while let Some(position) = self.next(from, |group| group.eligible) {
            from = position + 1;
            let lmb = self.lmb(position);
            let is_absent = is_absent(machine.hotplug, lmb.range);
            // QEMU would treat a call that configures a connector during its removal as the end of a
            // failed removal.
            let may_be_acquired = !self.is_connector_only(position);
            let connector_only = is_absent
                && lmb.drc_index.is_some_and(|index| {
                    exchange::may_have(machine.connectors, index, may_be_acquired)
                });
            connectors += u32::from(connector_only);
            self.assign(position, !is_absent);
            self.set_connector_only(position, connector_only);
        }
        let onlined = self.online_again(machine, online);
        removed.and(onlined).map(|()| connectors)
    }

    /// Makes the memory absent whose removal was dropped. Records that the partition may have the
    /// connectors of these LMBs.
    fn finish_removals<P: Platform, M: Map>(
        &mut self,
        hotplug: &mut Hotplug<'_, P, M>,
    ) -> Result<(), Error> {
        let (mut from, mut result) = (0, Ok(()));
        while let Some(position) = self.next(from, |group| group.eligible) {
            from = position + 1;
            let range = self.lmb(position).range;
            let Some(all) = region_at(hotplug, range.start()) else { continue };
            if let (run, State::Removing) = hotplug.state_at(range.start(), all.end()) {
                // A removal consists of neighbouring LMBs, whose descriptors go together.
                result = result.and(hotplug.remove(run).map_err(Error::Remove));
                while from < self.lmbs && run.covers(self.lmb(from).range) {
                    from += 1;
                }
                (position..from).for_each(|position| self.set_connector_only(position, true));
            }
        }
        result
    }

    /// Puts all offline memory online.
    fn online_again<P: Platform, M: Map, C: ?Sized>(
        &self,
        machine: &mut Machine<'_, '_, P, M, C>,
        online: OnlineType,
    ) -> Result<(), Error> {
        let (mut from, mut result) = (0, Ok(()));
        let mut limit = u32::MAX;
        let assigned = |group: &Group| group.assigned & group.eligible;
        while let Some(first) = self.next(from, assigned) {
            let stretch = self.stretch(first, assigned, limit);
            let announced = region_at(machine.hotplug, stretch.range.start())
                .map_or(stretch.range, |all| all.intersection(stretch.range));
            let (run, state) = machine.hotplug.state_at(announced.start(), announced.end());
            let lmbs = self.lmbs_in(run).max(1);
            from = first + lmbs;
            if state != State::Offline {
                continue;
            }
            match machine.hotplug.online(run, online, machine.hooks) {
                Ok(()) => limit = u32::MAX,
                // One of these LMBs was refused. Put the others online one by one.
                Err(_) if lmbs > 1 => (from, limit) = (first, 1),
                Err(error) => result = result.and(Err(Error::Online(error))),
            }
        }
        result
    }
}

/// Returns whether no part of `range` is present.
fn is_absent<P: Platform, M: Map>(hotplug: &Hotplug<'_, P, M>, range: PfnRange) -> bool {
    let mut rest = range;
    while !rest.is_empty() {
        let (run, state) = hotplug.state_at(rest.start(), rest.end());
        if !matches!(state, State::Absent | State::Unknown) {
            return false;
        }
        rest = rest.split_at(run.end()).1;
    }
    true
}
