//! The measured steps: the order in which blocks are added and removed, and the machine.

use super::asked::Asked;
use crate::{bench::subject::Subject, hosted::Hosted};
use anyhow::{Context, Result, bail};
use hotmem::{Announce, Bytes, NodeId, OnlineType, Pfn, PfnRange, Zone, geometry::SECTION_FRAMES};

/// Memory is plugged and unplugged in blocks of this many frames (128 MiB).
pub(super) const BLOCK: u64 = SECTION_FRAMES as u64;

/// A number of devices, and the memory of each.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) devices: u64,
    pub(super) each: Bytes,
    pub(super) near: Near,
}

/// The node of the devices' memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Near {
    /// A separate node.
    Nothing,
    /// The node of the boot memory, which is all below 4 GiB.
    LowMemory,
}

/// The measured steps, in this order. If memory stays offline, there is no zone to query, and only
/// the first two are measured.
pub(super) const STEPS: [&str; 6] =
    ["plug", "unplug", "scan", "plug-gaps", "unplug-middle", "unplug-ends"];

/// The seconds and probes of each of [`STEPS`].
pub(super) fn measure(shape: Shape, kind: OnlineType, subject: Subject) -> Result<Vec<(f64, u64)>> {
    let room = Bytes(shape.each.0.saturating_mul(shape.devices));
    let machine = shape.near.machine(room)?;
    let mut hotplug = machine.boot_without_returning_memory()?;
    // The check that enough memory stays is made for each removed block.
    hotplug.settings.floor = Bytes::mib(1).frames();
    let node = shape.near.node();
    for device in machine.room().chunks(shape.each.frames()) {
        hotplug.announce(Announce { node, ..device.into() })?;
    }
    let zone = if kind == OnlineType::Movable { Zone::Movable } else { Zone::Kernel };
    let mut asked = Asked::new(subject, node, zone);
    let blocks: Vec<_> = machine.room().chunks(BLOCK).collect();
    let downwards: Vec<_> = blocks.iter().rev().copied().collect();

    let plug = asked.time(&mut hotplug, |asked, hotplug| asked.plug(hotplug, kind, &blocks))?;
    if kind == OnlineType::Offline {
        let unplug = asked.time(&mut hotplug, |_, hotplug| {
            downwards.iter().try_for_each(|&block| Ok(hotplug.remove(block)?))
        })?;
        return Ok(vec![plug, unplug]);
    }
    asked.expect(true)?;
    let mut used = 0;
    let scan = asked.time(&mut hotplug, |asked, hotplug| {
        used = asked.scan(hotplug);
        Ok(())
    })?;
    if used != 0 {
        bail!("{used} frames are in use though nothing was allocated");
    }
    let unplug = asked.time(&mut hotplug, |asked, hotplug| asked.unplug(hotplug, &downwards))?;
    let gaps = with_gaps(&blocks);
    let plug_gaps = asked.time(&mut hotplug, |asked, hotplug| asked.plug(hotplug, kind, &gaps))?;
    asked.expect(true)?;
    let order = from_the_middle(&blocks);
    let middle = asked.time(&mut hotplug, |asked, hotplug| asked.unplug(hotplug, &order))?;
    asked.plug(&mut hotplug, kind, &blocks)?;
    let order = from_the_ends(&blocks);
    let ends = asked.time(&mut hotplug, |asked, hotplug| asked.unplug(hotplug, &order))?;
    Ok(vec![plug, unplug, scan, plug_gaps, middle, ends])
}

impl Near {
    pub(super) fn machine(self, room: Bytes) -> Result<Hosted> {
        let builder = Hosted::builder().room(room);
        let builder = match self {
            Near::Nothing => builder.boot_memory(Bytes::gib(1)),
            Near::LowMemory => {
                let low_end = Pfn::containing(Bytes::gib(4).0).context("4 GiB")?;
                builder.boot_memory(Bytes::gib(2)).low_end(low_end)
            }
        };
        Ok(builder.build()?)
    }

    pub(super) fn node(self) -> NodeId {
        NodeId(u32::from(self == Near::Nothing))
    }
}

/// Returns every second block, then the others.
pub(super) fn with_gaps(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let from = |first: usize| blocks.iter().skip(first).step_by(2).copied();
    from(0).chain(from(1)).collect()
}

/// Returns the middle block, then its neighbours above and below in turn.
pub(super) fn from_the_middle(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let (below, from) = blocks.split_at(blocks.len() / 2);
    in_turn(from.iter().copied(), below.iter().rev().copied())
}

/// Returns the middle block, then the last and the first of the remaining blocks in turn.
pub(super) fn from_the_ends(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let (below, from) = blocks.split_at(blocks.len() / 2);
    let (middle, above) = from.split_at(from.len().min(1));
    let ends = in_turn(above.iter().rev().copied(), below.iter().copied());
    middle.iter().copied().chain(ends).collect()
}

fn in_turn(
    mut one: impl Iterator<Item = PfnRange>,
    mut other: impl Iterator<Item = PfnRange>,
) -> Vec<PfnRange> {
    let mut all = Vec::new();
    loop {
        let pair = [one.next(), other.next()];
        if pair == [None, None] {
            return all;
        }
        all.extend(pair.into_iter().flatten());
    }
}
