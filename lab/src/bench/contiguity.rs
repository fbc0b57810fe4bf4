//! `hotmem bench contiguity`: measures what each plugged block costs when a zone must know whether
//! it is contiguous.
//!
//! The machine is hosted, and nothing accesses its memory. The bench adds and removes memory in
//! blocks of 128 MiB, and after each block asks the zone whether it is contiguous. The zone grows
//! without a hole (`plug`) or every second block first (`plug-gaps`). It shrinks from the top down
//! (`unplug`), from the middle outwards (`unplug-middle`), or, after the block in the middle, from
//! its two ends in turn (`unplug-ends`). In the last case each removed block is an end of a zone
//! that is not contiguous.
//!
//! The subject `before` differs from `hotmem` only in how it finds the answer. As Linux does, it
//! walks the zone's span pageblock by pageblock and stops at the first that is not the zone's.
//! Where the removed block was an end of the span, it first walks inwards to the next pageblock of
//! the zone.
//!
//! A probe of `before` is a pageblock that it reads. The engine counts the probes of `hotmem`
//! (feature `probes`): each read of a zone's state, of a section's words or of a word of a tree,
//! both to update the answer when a block is added or removed and to give it.
//!
//! When all memory is added, the bench scans the zone for how much of each pageblock is in use
//! (`scan`). `hotmem` relies on the zone's contiguity. `before` checks of each pageblock whether it
//! is present, as Linux does in a zone that is not contiguous. The memory lies on a separate node,
//! as hot-added memory is in a separate zone in a guest whose boot memory is all below 4 GiB.
//!
//! In the cases `pc` the memory lies on the node of the boot memory, which is 2 GiB below 4 GiB and
//! is not in the zone that grows. This is the machine on which a linux-mm patch by Yuan Liu (March
//! 2026) measured the updates of `zone->contiguous`.

use super::{
    record::{self, Metric, Record, Sample},
    subject::Subject,
};
use crate::{guest::Policy, hosted::Hosted, hosted::HostedHotplug, progress, size};
use anyhow::{Context, Result, bail};
use hotmem::{
    Announce, Budget, Bytes, NoHooks, NodeId, OnlineType, Pfn, PfnRange, Progress, State, Zone,
    geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES},
};
use std::{path::PathBuf, time::Instant};

/// Arguments of `hotmem bench contiguity`.
#[derive(clap::Args)]
pub struct Args {
    /// How much memory is plugged, scanned and unplugged; the cases with 256G on a PC and with 2
    /// and 4 devices of 128G run too
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse,
          default_value = "64G,256G,512G,4T,64T")]
    sizes: Vec<Bytes>,
    /// Leave out the cases with 256G on a PC and with 2 and 4 devices
    #[arg(long)]
    only_sizes: bool,
    /// The largest size for the subject `before`, whose cost grows with the square
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512G")]
    before_up_to: Bytes,
    /// Policies by which memory is brought online
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "offline,online,online_movable"
    )]
    policies: Vec<Policy>,
    /// Runs for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const TIME: Metric = ("time", "s");
const PROBES: Metric = ("probes", "count");
/// The metrics that grow with the size, each with the metric of its exponent.
const GROWTH: [(Metric, Metric); 2] =
    [(TIME, ("growth_exponent", "count")), (PROBES, ("probes_growth_exponent", "count"))];

/// Memory is plugged and unplugged in blocks of this many frames (128 MiB).
const BLOCK: u64 = SECTION_FRAMES as u64;

/// Returns the type of online memory for a policy, in a zone that is empty before.
fn kind_of(policy: Policy) -> OnlineType {
    match policy {
        Policy::Offline => OnlineType::Offline,
        Policy::Online | Policy::OnlineKernel => OnlineType::Kernel,
        Policy::OnlineMovable => OnlineType::Movable,
    }
}

/// A number of devices, and the memory of each.
#[derive(Clone, Copy)]
struct Shape {
    devices: u64,
    each: Bytes,
    near: Near,
}

/// The node of the devices' memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Near {
    /// A separate node.
    Nothing,
    /// The node of the boot memory, which is all below 4 GiB.
    LowMemory,
}

pub(super) fn run(args: &Args) -> Result<()> {
    if let Some(odd) = args.sizes.iter().find(|size| size.0 == 0 || size.frames() % BLOCK != 0) {
        bail!("--sizes {odd}: plugs whole blocks of 128 MiB");
    }
    let far = |devices, each| Shape { devices, each, near: Near::Nothing };
    let vm = args.sizes.iter().map(|&size| (size::short(size), far(1, size)));
    let pc = Shape { near: Near::LowMemory, ..far(1, Bytes::gib(256)) };
    let cxl = [2, 4].map(|n| (format!("cxl-{n}x128G"), far(n, Bytes::gib(128))));
    let others = [("pc-256G".to_owned(), pc)].into_iter().chain(cxl);
    let others = others.filter(|_| !args.only_sizes);
    let shapes: Vec<_> = vm.chain(others).collect();
    let mut sample = Sample::new("contiguity");
    let steps = shapes.len() * args.policies.len() * args.runs as usize;
    let progress = progress::bar(steps as u64);
    for (name, shape) in &shapes {
        for &policy in &args.policies {
            for run in 0..args.runs {
                // The subjects take turns in being the first.
                let mut subjects = [Subject::Before, Subject::Hotmem];
                subjects.rotate_left(run as usize % 2);
                for subject in subjects {
                    let size = Bytes(shape.each.0.saturating_mul(shape.devices));
                    if subject == Subject::Before && size > args.before_up_to {
                        continue;
                    }
                    let done = measure(*shape, kind_of(policy), subject)
                        .with_context(|| format!("{name}/{policy} of {}", subject.name()))?;
                    for (step, (seconds, probes)) in STEPS.into_iter().zip(done) {
                        let case = format!("{name}/{policy}/{step}");
                        sample.add(&case, subject.name(), TIME, seconds);
                        #[allow(clippy::cast_precision_loss, reason = "for people")]
                        sample.add(&case, subject.name(), PROBES, probes as f64);
                    }
                }
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    let mut records = sample.records();
    let growth = growth(&records, args);
    records.extend(growth);
    record::print(&records)?;
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

/// The measured steps, in this order. Where memory stays offline there is no zone to ask, and only
/// the first two are measured.
const STEPS: [&str; 6] = ["plug", "unplug", "scan", "plug-gaps", "unplug-middle", "unplug-ends"];

/// The seconds and probes of each of [`STEPS`].
fn measure(shape: Shape, kind: OnlineType, subject: Subject) -> Result<Vec<(f64, u64)>> {
    let room = Bytes(shape.each.0.saturating_mul(shape.devices));
    let machine = shape.near.machine(room)?;
    let mut hotplug = machine.boot_keeping()?;
    // The check that enough memory stays is made for each removed block.
    hotplug.settings().floor = Bytes::mib(1).frames();
    let node = shape.near.node();
    for device in machine.room().chunks(shape.each.frames()) {
        hotplug.announce(Announce::range(device).on_node(node))?;
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
    fn machine(self, room: Bytes) -> Result<Hosted> {
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

    fn node(self) -> NodeId {
        NodeId::new(u32::from(self == Near::Nothing))
    }
}

/// Returns every second block, then the others.
fn with_gaps(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let from = |first: usize| blocks.iter().skip(first).step_by(2).copied();
    from(0).chain(from(1)).collect()
}

/// Returns the middle block, then its neighbours above and below in turn.
fn from_the_middle(blocks: &[PfnRange]) -> Vec<PfnRange> {
    let (below, from) = blocks.split_at(blocks.len() / 2);
    in_turn(from.iter().copied(), below.iter().rev().copied())
}

/// Returns the middle block, then the last and the first of the remaining blocks in turn.
fn from_the_ends(blocks: &[PfnRange]) -> Vec<PfnRange> {
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

/// A zone whose contiguity is measured.
struct Asked {
    subject: Subject,
    node: NodeId,
    zone: Zone,
    /// Pageblocks that `before` has read.
    walked: u64,
    last: bool,
}

impl Asked {
    fn new(subject: Subject, node: NodeId, zone: Zone) -> Asked {
        Asked { subject, node, zone, walked: 0, last: false }
    }

    /// The seconds and probes of a step.
    fn time<'f>(
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

    /// Adds blocks one by one, and after each asks whether the zone is contiguous.
    fn plug(
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

    /// Removes blocks one by one, and after each asks whether the zone is contiguous.
    fn unplug(&mut self, hotplug: &mut HostedHotplug<'_>, blocks: &[PfnRange]) -> Result<()> {
        for &block in blocks {
            let walks = self.subject == Subject::Before;
            let spanned = walks.then(|| hotplug.zone(self.node, self.zone).spanned);
            let mut offline = hotplug.offline(block)?;
            match offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
                Progress::Done(_) => {}
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

    /// The last answer.
    fn expect(&self, contiguous: bool) -> Result<()> {
        if self.last != contiguous {
            bail!("the zone is said to be contiguous: {}", self.last);
        }
        Ok(())
    }

    fn ask(&mut self, hotplug: &HostedHotplug<'_>) {
        let zone = hotplug.zone(self.node, self.zone);
        self.last = match self.subject {
            Subject::Hotmem => zone.is_contiguous(),
            Subject::Before => self.walk(hotplug, zone.spanned),
        };
    }

    /// Returns whether a pageblock is online in the zone.
    fn is_there(&mut self, hotplug: &HostedHotplug<'_>, block: PfnRange) -> bool {
        self.walked += 1;
        hotplug.state_at(block.start(), block.end()).1 == State::from(self.zone)
    }

    /// Returns the frames in use in the zone, pageblock by pageblock.
    fn scan(&mut self, hotplug: &HostedHotplug<'_>) -> u64 {
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

    /// Finds the runs of a zone by checking of every pageblock of its span whether it is in the
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

    /// Shrinks the span after `gone` was removed. Where `gone` was an end of the span, this
    /// searches inwards for the next pageblock of the zone.
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

/// Computes how time and probes grow with the size: the slope of the line through the logarithms of
/// the medians. 1 is linear, 2 is quadratic. Steps without a zone have no probes.
fn growth(records: &[Record], args: &Args) -> Vec<Record> {
    let mut sample = Sample::new("contiguity");
    let cases =
        args.policies.iter().flat_map(|policy| STEPS.map(|step| format!("{policy}/{step}")));
    for (case, subject) in cases.flat_map(|case| {
        [Subject::Before, Subject::Hotmem].map(|subject| (case.clone(), subject.name()))
    }) {
        for (metric, exponent) in GROWTH {
            let points = args.sizes.iter().filter_map(|&size| {
                let case = format!("{}/{case}", size::short(size));
                let is_it = |r: &&Record| r.case == case && r.subject == subject && r.is(metric);
                #[allow(clippy::cast_precision_loss, reason = "a logarithm of it")]
                let point = |r: &Record| ((size.0 as f64).ln(), r.median.ln());
                records.iter().find(is_it).filter(|r| r.median > 0.0).map(point)
            });
            let points: Vec<_> = points.collect();
            if points.len() >= 2 {
                sample.add(&case, subject, exponent, slope(&points));
            }
        }
    }
    sample.records()
}

/// Fits the line by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let n = points.len() as f64;
    let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let variance: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    covariance / variance
}

#[cfg(test)]
mod tests;
