//! Builds the machine, and runs the measured steps. Each step adds or removes blocks in its own
//! order, or scans the zone.

use super::queried_zone::QueriedZone;
use crate::{bench::subject::Subject, hosted::Hosted};
use anyhow::{Context, Result, bail};
use hotmem::{Announce, Bytes, NodeId, OnlineType, Pfn, PfnRange, Zone, geometry::SECTION_FRAMES};

/// Memory is plugged and unplugged in blocks of this many frames (128 MiB).
pub(super) const BLOCK: u64 = SECTION_FRAMES as u64;

/// The devices of a machine: their number, and the size and the node of their memory.
#[derive(Clone, Copy)]
pub(super) struct MachineShape {
    pub(super) devices: u64,
    pub(super) device_size: Bytes,
    pub(super) node: DeviceNode,
}

/// The node of the devices' memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceNode {
    /// A separate node.
    Separate,
    /// The node of the boot memory, which is all below 4 GiB.
    OfBootMemory,
}

/// The measured steps, in this order. If memory stays offline, only the first two are measured,
/// because memory is in a zone only while it is online.
pub(super) const STEPS: [&str; 6] =
    ["plug", "unplug", "scan", "plug-gaps", "unplug-middle", "unplug-ends"];

/// Runs the steps. Returns the seconds and the probes of each of [`STEPS`].
pub(super) fn measure(
    shape: MachineShape,
    kind: OnlineType,
    subject: Subject,
) -> Result<Vec<(f64, u64)>> {
    let hotplug_size = Bytes(shape.device_size.0.saturating_mul(shape.devices));
    let machine = shape.node.machine(hotplug_size)?;
    let mut hotplug = machine.boot_without_returning_memory()?;
    // The engine checks for each removed block that this much memory stays free.
    hotplug.settings.min_free_frames = Bytes::mib(1).frames();
    let node = shape.node.id();
    for device in machine.hotplug_range().chunks(shape.device_size.frames()) {
        hotplug.announce(Announce { node, ..device.into() })?;
    }
    let zone = if kind == OnlineType::Movable { Zone::Movable } else { Zone::Kernel };
    let mut queried_zone = QueriedZone::new(subject, node, zone);
    let blocks: Vec<_> = machine.hotplug_range().chunks(BLOCK).collect();
    let downwards: Vec<_> = blocks.iter().rev().copied().collect();

    let plug = queried_zone
        .time(&mut hotplug, |queried_zone, hotplug| queried_zone.plug(hotplug, kind, &blocks))?;
    if kind == OnlineType::Offline {
        let unplug = queried_zone.time(&mut hotplug, |_, hotplug| {
            downwards.iter().try_for_each(|&block| Ok(hotplug.remove(block)?))
        })?;
        return Ok(vec![plug, unplug]);
    }
    queried_zone.check_answer(true)?;
    let mut used = 0;
    let scan = queried_zone.time(&mut hotplug, |queried_zone, hotplug| {
        used = queried_zone.count_used_frames(hotplug);
        Ok(())
    })?;
    if used != 0 {
        bail!("{used} frames are in use though nothing was allocated");
    }
    let unplug = queried_zone
        .time(&mut hotplug, |queried_zone, hotplug| queried_zone.unplug(hotplug, &downwards))?;
    let gaps = with_gaps(&blocks);
    let plug_gaps = queried_zone
        .time(&mut hotplug, |queried_zone, hotplug| queried_zone.plug(hotplug, kind, &gaps))?;
    queried_zone.check_answer(true)?;
    let order = from_the_middle(&blocks);
    let unplug_middle = queried_zone
        .time(&mut hotplug, |queried_zone, hotplug| queried_zone.unplug(hotplug, &order))?;
    queried_zone.plug(&mut hotplug, kind, &blocks)?;
    let order = from_the_ends(&blocks);
    let unplug_ends = queried_zone
        .time(&mut hotplug, |queried_zone, hotplug| queried_zone.unplug(hotplug, &order))?;
    Ok(vec![plug, unplug, scan, plug_gaps, unplug_middle, unplug_ends])
}

impl DeviceNode {
    /// Builds the machine with space for the devices' memory.
    pub(super) fn machine(self, hotplug_size: Bytes) -> Result<Hosted> {
        let builder = Hosted::builder().hotplug_size(hotplug_size);
        let builder = match self {
            DeviceNode::Separate => builder.boot_memory(Bytes::gib(1)),
            DeviceNode::OfBootMemory => {
                let low_end = Pfn::containing(Bytes::gib(4).0).context("4 GiB")?;
                builder.boot_memory(Bytes::gib(2)).low_end(low_end)
            }
        };
        Ok(builder.build()?)
    }

    /// Returns the node's identifier.
    pub(super) fn id(self) -> NodeId {
        NodeId(u32::from(self == DeviceNode::Separate))
    }
}

/// Returns every second block, then the others.
pub(super) fn with_gaps(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let every_second = |first: usize| blocks.iter().skip(first).step_by(2).copied();
    every_second(0).chain(every_second(1)).collect()
}

/// Returns the middle block, then its neighbours above and below in turn.
pub(super) fn from_the_middle(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let (below, from_middle) = blocks.split_at(blocks.len() / 2);
    in_turn(from_middle.iter().copied(), below.iter().rev().copied())
}

/// Returns the middle block, then the last and the first of the remaining blocks in turn.
pub(super) fn from_the_ends(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let (below, from_middle) = blocks.split_at(blocks.len() / 2);
    let (middle, above) = from_middle.split_at(from_middle.len().min(1));
    let ends = in_turn(above.iter().rev().copied(), below.iter().copied());
    middle.iter().copied().chain(ends).collect()
}

/// Returns the items of both iterators in turn.
fn in_turn(
    mut first: impl Iterator<Item = PfnRange>,
    mut second: impl Iterator<Item = PfnRange>,
) -> Vec<PfnRange> {
    let mut all = Vec::new();
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            return all;
        }
        all.extend(pair.into_iter().flatten());
    }
}
