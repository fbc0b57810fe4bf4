//! The subjects `before` and `before-no-lookup`: LMBs are added and removed one by one, as Linux does.

use super::claims::Claims;
use crate::dlpar::Partition;
use anyhow::{Context, Result, bail};
use hotmem::{AddRequest, Budget, NodeId, OnlineType};
use hotmem_dlpar::{Change, Connectors, DrcIndex, FLAG_ASSIGNED, Lmb, MAX_LIST_LEN};
use std::{fs::File, io::Write};

/// Adds and removes memory LMB by LMB.
pub(super) struct Before {
    lmbs: Vec<Lmb>,
    /// Whether the table is searched for each LMB to learn its node.
    pub(super) looks_up: bool,
    /// The number of LMBs that searches have read.
    pub(super) looked_at: u64,
    claims: Claims,
    log: File,
}

impl Before {
    pub(super) fn new(partition: &Partition<'_>, looks_up: bool) -> Result<Before> {
        let lmbs: Vec<_> = partition.table().lmbs().collect();
        let mut claims = Claims::default();
        let there = lmbs.iter().filter(|lmb| lmb.flags & FLAG_ASSIGNED != 0);
        // Claims are made from the top, so that the set-up does not walk the list.
        for lmb in there.rev() {
            claims.insert(lmb.range)?;
        }
        let log = File::options().append(true).open("/dev/null").context("opening /dev/null")?;
        Ok(Before { lmbs, looks_up, looked_at: 0, claims, log })
    }

    pub(super) fn change(
        &mut self,
        change: Change,
        count: u32,
        partition: &mut Partition<'_>,
    ) -> Result<()> {
        let wanted = if change == Change::Add { 0 } else { FLAG_ASSIGNED };
        let mut left = count;
        for nth in 0..self.lmbs.len() {
            let lmb = self.lmbs[nth];
            if left == 0 {
                break;
            }
            if lmb.flags & FLAG_ASSIGNED != wanted {
                continue;
            }
            match change {
                Change::Add => self.add(&lmb, partition)?,
                Change::Remove => self.remove(&lmb, partition)?,
            }
            self.lmbs[nth].flags ^= FLAG_ASSIGNED;
            left -= 1;
        }
        let (dlpar, machine) = partition.machine();
        check(machine.connectors.update(dlpar.table().dynamic_memory(), None))
    }

    fn add(&mut self, lmb: &Lmb, partition: &mut Partition<'_>) -> Result<()> {
        let index = lmb.drc_index.context("a connector")?;
        let (_, machine) = partition.machine();
        let (status, state) = machine.connectors.entity_sense(index);
        check(status)?;
        if state != 2 {
            bail!("connector {index} is in state {state}");
        }
        check(machine.connectors.set_allocation(index, true))?;
        check(machine.connectors.set_isolation(index, false))?;
        check(machine.connectors.configure(index, &mut [0; MAX_LIST_LEN]).0)?;
        let node = self.node_of(lmb)?;
        self.claims.insert(lmb.range)?;
        machine.hotplug.add(AddRequest { node: Some(node), ..lmb.range.into() })?;
        machine.hotplug.online(lmb.range, OnlineType::Movable, machine.hooks)?;
        self.say(lmb, index, node.0, "added")
    }

    fn remove(&mut self, lmb: &Lmb, partition: &mut Partition<'_>) -> Result<()> {
        let index = lmb.drc_index.context("a connector")?;
        let (_, machine) = partition.machine();
        let mut offline = machine.hotplug.offline(lmb.range)?;
        match offline.poll(machine.hotplug, machine.hooks, Budget::UNLIMITED) {
            hotmem::Progress::Ready(_) => {}
            stuck => bail!("free memory does not go offline: {stuck:?}"),
        }
        machine.hotplug.remove(lmb.range)?;
        let node = self.node_of(lmb)?;
        self.claims.remove(lmb.range)?;
        let (status, state) = machine.connectors.entity_sense(index);
        check(status)?;
        if state != 1 {
            bail!("connector {index} is in state {state}");
        }
        check(machine.connectors.set_isolation(index, true))?;
        check(machine.connectors.set_allocation(index, false))?;
        self.say(lmb, index, node.0, "removed")
    }

    /// Returns the node of an LMB. The two subjects differ only here.
    fn node_of(&mut self, lmb: &Lmb) -> Result<NodeId> {
        if !self.looks_up {
            return Ok(lmb.node);
        }
        let address = lmb.range.start().phys_addr();
        let found = self.lmbs.iter().position(|lmb| {
            lmb.range.start().phys_addr() <= address && address < lmb.range.end().phys_addr()
        });
        let found = found.context("the LMB at this address")?;
        self.looked_at += found as u64 + 1;
        Ok(self.lmbs[found].node)
    }

    fn say(&mut self, lmb: &Lmb, index: DrcIndex, node: u32, what: &str) -> Result<()> {
        let address = lmb.range.start();
        let index = index.0;
        let line = format!("memory at {address} (drc index {index:x}, node {node}) was {what}\n");
        self.log.write_all(line.as_bytes()).context("writing a line")
    }
}

/// Returns an error unless the hypervisor's status means success.
pub(super) fn check(status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { bail!("status {status}") }
}
