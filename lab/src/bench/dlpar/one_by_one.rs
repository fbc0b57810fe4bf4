//! Implements the subjects `before` and `before-no-lookup`. They add and remove LMBs one by one, as
//! Linux does.

use super::resources::Resources;
use crate::dlpar::Partition;
use anyhow::{Context, Result, bail};
use hotmem::{AddRequest, Budget, NodeId, OnlineType};
use hotmem_dlpar::{Change, Connectors, DrcIndex, FLAG_ASSIGNED, Lmb, MAX_LIST_LEN};
use std::{fs::File, io::Write};

/// The states of a connector that `entity_sense` returns: an LMB belongs to the partition, or the
/// connector's LMB may be acquired.
const PRESENT: i32 = 1;
const UNUSABLE: i32 = 2;

/// Adds and removes memory LMB by LMB.
pub(super) struct OneByOne {
    lmbs: Vec<Lmb>,
    /// Whether the subject searches the table for the node of each LMB.
    pub(super) searches_node: bool,
    /// The number of LMBs that searches have read.
    pub(super) lmbs_read: u64,
    resources: Resources,
    log: File,
}

impl OneByOne {
    /// Reads the table, and inserts the ranges of the assigned LMBs into the list of resources.
    pub(super) fn new(partition: &Partition<'_>, searches_node: bool) -> Result<OneByOne> {
        let lmbs: Vec<_> = partition.table().lmbs().collect();
        let mut resources = Resources::default();
        let assigned = lmbs.iter().filter(|lmb| lmb.flags & FLAG_ASSIGNED != 0);
        // Insert the highest range first, so that no insertion walks the list.
        for lmb in assigned.rev() {
            resources.insert(lmb.range)?;
        }
        let log = File::options().append(true).open("/dev/null").context("opening /dev/null")?;
        Ok(OneByOne { lmbs, searches_node, lmbs_read: 0, resources, log })
    }

    /// Adds or removes the first `count` LMBs that can be changed, and writes the property
    /// `ibm,dynamic-memory` back to the device tree.
    pub(super) fn change(
        &mut self,
        change: Change,
        count: u32,
        partition: &mut Partition<'_>,
    ) -> Result<()> {
        let flags_before = if change == Change::Add { 0 } else { FLAG_ASSIGNED };
        let mut remaining = count;
        for nth in 0..self.lmbs.len() {
            let lmb = self.lmbs[nth];
            if remaining == 0 {
                break;
            }
            if lmb.flags & FLAG_ASSIGNED != flags_before {
                continue;
            }
            match change {
                Change::Add => self.add(&lmb, partition)?,
                Change::Remove => self.remove(&lmb, partition)?,
            }
            self.lmbs[nth].flags ^= FLAG_ASSIGNED;
            remaining -= 1;
        }
        let (dlpar, machine) = partition.machine();
        check(machine.connectors.update(dlpar.table().dynamic_memory(), None))
    }

    /// Adds one LMB.
    fn add(&mut self, lmb: &Lmb, partition: &mut Partition<'_>) -> Result<()> {
        let index = lmb.drc_index.context("the LMB has no connector")?;
        let (_, machine) = partition.machine();
        let (status, state) = machine.connectors.entity_sense(index);
        check(status)?;
        if state != UNUSABLE {
            bail!("connector {index} is in state {state}");
        }
        check(machine.connectors.set_allocation(index, true))?;
        check(machine.connectors.set_isolation(index, false))?;
        check(machine.connectors.configure(index, &mut [0; MAX_LIST_LEN]).0)?;
        let node = self.node_of(lmb)?;
        self.resources.insert(lmb.range)?;
        machine.hotplug.add(AddRequest { node: Some(node), ..lmb.range.into() })?;
        machine.hotplug.online(lmb.range, OnlineType::Movable, machine.hooks)?;
        self.write_log(lmb, index, node.0, "added")
    }

    /// Removes one LMB.
    fn remove(&mut self, lmb: &Lmb, partition: &mut Partition<'_>) -> Result<()> {
        let index = lmb.drc_index.context("the LMB has no connector")?;
        let (_, machine) = partition.machine();
        let mut offline = machine.hotplug.offline(lmb.range)?;
        match offline.poll(machine.hotplug, machine.hooks, Budget::UNLIMITED) {
            hotmem::Progress::Ready(_) => {}
            progress => bail!("free memory cannot be brought offline: {progress:?}"),
        }
        machine.hotplug.remove(lmb.range)?;
        let node = self.node_of(lmb)?;
        self.resources.remove(lmb.range)?;
        let (status, state) = machine.connectors.entity_sense(index);
        check(status)?;
        if state != PRESENT {
            bail!("connector {index} is in state {state}");
        }
        check(machine.connectors.set_isolation(index, true))?;
        check(machine.connectors.set_allocation(index, false))?;
        self.write_log(lmb, index, node.0, "removed")
    }

    /// Returns the node of an LMB. The two subjects differ only here.
    fn node_of(&mut self, lmb: &Lmb) -> Result<NodeId> {
        if !self.searches_node {
            return lmb.node.context("the LMB has no node");
        }
        let address = lmb.range.start().phys_addr();
        let found = self.lmbs.iter().position(|lmb| {
            lmb.range.start().phys_addr() <= address && address < lmb.range.end().phys_addr()
        });
        let found = found.context("no LMB contains the address")?;
        self.lmbs_read += found as u64 + 1;
        self.lmbs[found].node.context("the LMB has no node")
    }

    /// Writes a line about a changed LMB to the log.
    fn write_log(&mut self, lmb: &Lmb, index: DrcIndex, node: u32, action: &str) -> Result<()> {
        let address = lmb.range.start();
        let index = index.0;
        let line = format!("memory at {address} (drc index {index:x}, node {node}) was {action}\n");
        self.log.write_all(line.as_bytes()).context("writing a line to the log")
    }
}

/// Returns an error unless the hypervisor's status means success.
pub(super) fn check(status: i32) -> Result<()> {
    if status == 0 {
        Ok(())
    } else {
        bail!("a call of the hypervisor returned the status {status}")
    }
}
