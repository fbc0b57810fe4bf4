//! `hotmem bench contiguity`: what each plugged block costs when a zone must say whether it is
//! contiguous.
//!
//! A hosted machine, metadata only. Memory comes and goes in blocks of 128 MiB, and after each the
//! zone is asked. The subject `before` differs in nothing but how the answer is found: it walks
//! the zone's span pageblock by pageblock, as Linux did, and stops at the first that is not the
//! zone's. When all is there, the zone is scanned for how much of each pageblock is in use: `hotmem`
//! trusts its contiguity, `before` asks of each pageblock whether it is there, as Linux does in a
//! zone that is not contiguous. The memory lies on a node of its own, as a zone of hot-added memory
//! does in a guest whose boot memory is all below 4 GiB.

use super::{
    record::{self, Metric, Record, Sample},
    subject::Subject,
};
use crate::{guest::Policy, hosted::Hosted, hosted::Threads, progress, size};
use anyhow::{Context, Result, bail};
use hotmem::{
    Announce, Budget, Bytes, Hotplug, NoHooks, NodeId, OnlineType, PfnRange, Progress, State, Zone,
    geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES},
};
use std::{path::PathBuf, time::Instant};

/// Arguments of `hotmem bench contiguity`.
#[derive(clap::Args)]
pub struct Args {
    /// How much memory is plugged, scanned and unplugged; beside these always 2 and 4 devices of
    /// 128G
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse,
          default_value = "64G,256G,512G,4T,64T")]
    sizes: Vec<Bytes>,
    /// The largest size for the subject `before`, whose cost grows with the square
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "512G")]
    before_up_to: Bytes,
    /// What memory comes online for
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
/// What grows with the size, and how: the exponents of [`TIME`] and of [`PROBES`].
const GROWTH: [(Metric, Metric); 2] =
    [(TIME, ("growth_exponent", "count")), (PROBES, ("probes_growth_exponent", "count"))];

/// Memory is plugged and unplugged in blocks of this many frames (128 MiB).
const BLOCK: u64 = SECTION_FRAMES as u64;

/// What a policy of document 000's tables brings memory online for, in a zone that grows from
/// nothing.
fn kind_of(policy: Policy) -> OnlineType {
    match policy {
        Policy::Offline => OnlineType::Offline,
        Policy::Online | Policy::OnlineKernel => OnlineType::Kernel,
        Policy::OnlineMovable => OnlineType::Movable,
    }
}

/// So many devices of so much memory on the far node.
#[derive(Clone, Copy)]
struct Shape {
    devices: u64,
    each: Bytes,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let vm = args.sizes.iter().map(|&size| (size::short(size), Shape { devices: 1, each: size }));
    let cxl = [2, 4]
        .map(|devices| (format!("cxl-{devices}x128G"), Shape { devices, each: Bytes::gib(128) }));
    let shapes: Vec<_> = vm.chain(cxl).collect();
    let mut sample = Sample::new("contiguity");
    let steps = shapes.len() * args.policies.len() * args.runs as usize;
    let progress = progress::bar(steps as u64);
    for (name, shape) in &shapes {
        for &policy in &args.policies {
            for run in 0..args.runs {
                // In turns, neither always the first.
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
    record::print(&records);
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

/// What is measured, in this order; a scan only where something is online.
const STEPS: [&str; 3] = ["plug", "unplug", "scan"];

/// Plugs, scans and unplugs all of it; seconds and probes of each of [`STEPS`].
fn measure(shape: Shape, kind: OnlineType, subject: Subject) -> Result<Vec<(f64, u64)>> {
    let room = Bytes(shape.each.0.saturating_mul(shape.devices));
    let machine = Hosted::builder().boot_memory(Bytes::gib(1)).room(room).build()?;
    let mut hotplug = machine.boot()?;
    // So that whether enough stays is asked for every block that goes.
    hotplug.set_floor(Bytes::mib(1).frames());
    let node = NodeId::new(1).context("two nodes")?;
    for device in machine.room().chunks(shape.each.frames()) {
        hotplug.announce(Announce::range(device).on_node(node))?;
    }
    let zone = if kind == OnlineType::Movable { Zone::Movable } else { Zone::Kernel };
    let mut asked = Asked { subject, node, zone, probes: 0, last: false };

    let start = Instant::now();
    for block in machine.room().chunks(BLOCK) {
        hotplug.add(block, &mut NoHooks)?;
        hotplug.online(block, kind, &mut NoHooks)?;
        if kind != OnlineType::Offline {
            asked.ask(&hotplug);
        }
    }
    let plug = (start.elapsed().as_secs_f64(), asked.probes);
    if kind != OnlineType::Offline && !asked.last {
        bail!("the zone is not contiguous though all of it is online");
    }

    asked.probes = 0;
    let start = Instant::now();
    let used = asked.scan(&hotplug);
    let scan = (start.elapsed().as_secs_f64(), asked.probes);
    if used != 0 {
        bail!("{used} frames are in use though nothing was allocated");
    }

    asked.probes = 0;
    let start = Instant::now();
    for block in machine.room().chunks(BLOCK).rev() {
        if kind != OnlineType::Offline {
            let mut offline = hotplug.offline(block)?;
            match offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED) {
                Progress::Done(_) => asked.ask(&hotplug),
                stuck => bail!("a free block does not go offline: {stuck:?}"),
            }
        }
        hotplug.remove(block, &mut NoHooks)?;
    }
    let unplug = (start.elapsed().as_secs_f64(), asked.probes);
    let online = (kind != OnlineType::Offline).then_some(scan);
    Ok([plug, unplug].into_iter().chain(online).collect())
}

/// A zone that is asked whether it is contiguous.
struct Asked {
    subject: Subject,
    node: NodeId,
    zone: Zone,
    probes: u64,
    last: bool,
}

impl Asked {
    fn ask(&mut self, hotplug: &Hotplug<'_, Threads>) {
        let zone = hotplug.zone(self.node, self.zone);
        self.last = match self.subject {
            Subject::Hotmem => {
                self.probes += 1;
                zone.is_contiguous()
            }
            Subject::Before => self.walk(hotplug, zone.spanned),
        };
    }

    /// The frames in use in the zone, pageblock by pageblock.
    fn scan(&mut self, hotplug: &Hotplug<'_, Threads>) -> u64 {
        let mut used = 0;
        let mut add = |_: PfnRange, frames: u64| used += frames;
        match self.subject {
            Subject::Hotmem => hotplug.online_runs(self.node, self.zone, |run| {
                self.probes += 1;
                hotplug.occupancy(run, &mut add);
            }),
            Subject::Before => self.walk_runs(hotplug, |run| hotplug.occupancy(run, &mut add)),
        }
        used
    }

    /// The runs of a zone, by asking of every pageblock of its span whether it is the zone's.
    fn walk_runs(&mut self, hotplug: &Hotplug<'_, Threads>, mut each: impl FnMut(PfnRange)) {
        let mut run = PfnRange::EMPTY;
        let spanned = hotplug.zone(self.node, self.zone).spanned;
        for block in spanned.chunks(PAGEBLOCK_FRAMES as u64) {
            self.probes += 1;
            if hotplug.state_at(block.start(), block.end()).1 != State::from(self.zone) {
                each(std::mem::replace(&mut run, PfnRange::EMPTY));
            } else if run.is_empty() {
                run = block;
            } else {
                run = PfnRange::new(run.start(), block.end()).unwrap_or(block);
            }
        }
        each(run);
    }

    /// Whether every pageblock of the span is online in the zone.
    fn walk(&mut self, hotplug: &Hotplug<'_, Threads>, spanned: PfnRange) -> bool {
        let wanted = State::from(self.zone);
        !spanned.is_empty()
            && spanned.chunks(PAGEBLOCK_FRAMES as u64).all(|block| {
                self.probes += 1;
                hotplug.state_at(block.start(), block.end()).1 == wanted
            })
    }
}

/// How time and probes grow with size: the slope of the line through the medians, both logarithmic;
/// 1 is proportional, 2 the square. Where nobody asks there are no probes to grow.
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

/// Least squares.
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
mod tests {
    use super::*;

    #[test]
    fn both_subjects_give_the_same_answers_and_only_one_walks() {
        for kind in [OnlineType::Offline, OnlineType::Kernel, OnlineType::Movable] {
            let shape = Shape { devices: 2, each: Bytes::gib(1) };
            let before = measure(shape, kind, Subject::Before).unwrap();
            let hotmem = measure(shape, kind, Subject::Hotmem).unwrap();
            let [(_, walked), (_, asked)] = [before[1], hotmem[1]];
            let online = kind != OnlineType::Offline;
            let scans = [&before, &hotmem].map(|done| done.get(2).map(|scan| scan.1));
            assert_eq!(scans, if online { [Some(1024), Some(1)] } else { [None; 2] });
            assert_eq!(asked, if online { 16 } else { 0 });
            // 15 blocks are left after the first, and so on: 64 pageblocks each.
            assert_eq!(walked, if online { (0..16).sum::<u64>() * 64 } else { 0 });
        }
    }

    #[test]
    fn both_subjects_scan_the_same() {
        let machine = Hosted::builder().boot_memory(Bytes::gib(1)).room(Bytes::gib(1)).build();
        let machine = machine.unwrap();
        let mut hotplug = machine.boot().unwrap();
        let (node, zone) = (NodeId::ZERO, Zone::Movable);
        hotplug.announce(machine.room()).unwrap();
        hotplug.add(machine.room(), &mut NoHooks).unwrap();
        hotplug.online(machine.room(), OnlineType::Movable, &mut NoHooks).unwrap();
        let frames = machine.frames();
        let mut used = 0;
        for len in [1, 3, 512, 700, 64] {
            used += frames.alloc(hotmem::Want::frames(len).movable()).unwrap().frames();
        }
        for hole in [false, true] {
            if hole {
                let first = machine.room().chunks(BLOCK).rev().nth(2).unwrap();
                let mut offline = hotplug.offline(first).unwrap();
                offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
            }
            assert_eq!(hotplug.zone(node, zone).is_contiguous(), !hole);
            let scan =
                |subject| Asked { subject, node, zone, probes: 0, last: false }.scan(&hotplug);
            assert_eq!((scan(Subject::Hotmem), scan(Subject::Before)), (used, used));
        }
    }

    #[test]
    fn the_slope_of_a_square_is_two() {
        let points = [1.0_f64, 2.0, 4.0].map(|x| (x.ln(), (x * x).ln()));
        assert!((slope(&points) - 2.0).abs() < 1e-9);
    }
}
