//! `hotmem bench dlpar`: what LMBs cost, by their number and by where they are in the table.
//!
//! A hosted partition, metadata only: nothing touches the memory that comes. The hypervisor is in
//! memory and answers at once, the property is written as a whole, and what is reserved when the
//! partition starts is not part of a request.
//!
//! The subject `before` works as Linux's pseries code did before "hot-add: skip redundant LMB lookup":
//! with the same hypervisor and the same engine, it adds or removes each LMB by itself, claims its
//! range in a linear list, looks for it by its address from the start of the table to learn its
//! node, and writes a line to the log. The subject `before-no-lookup` is that patch: it takes the
//! node from the LMB that it has in its hand, and is the same code otherwise. So the gain of the
//! patch is the difference of these two; what else `hotmem` gains is that of `before-no-lookup`
//! and `hotmem`.
//!
//! One case is another's firmware: `pseries-64G` is a guest on QEMU's pseries machine.

mod pseries;

use super::record::{self, Metric, Sample};
use crate::{
    dlpar::{Description, Partition, Parts},
    progress,
    resident::resident_here,
};
use anyhow::{Context, Result, bail};
use hotmem::{Budget, Bytes, NodeId, OnlineType, PfnRange, geometry::PAGEBLOCK_FRAMES};
use hotmem_dlpar::{
    Change, Connectors, DrcIndex, FLAG_ASSIGNED, LONGEST_LIST, Lmb, Progress, Request, Version,
    Which,
};
use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Arguments of `hotmem bench dlpar`.
#[derive(clap::Args)]
pub struct Args {
    /// Runs for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Runs of each of the subjects that work LMB by LMB, some of which take a minute; 0: none
    #[arg(long, default_value_t = 1)]
    before_runs: u32,
    /// LMBs that one poll of a request works on; fewer passes reach memory if they stay in a cache
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    at_once: u32,
    /// Runs of Linux on the pseries machine, if its packages are there; 0: none
    #[arg(long, default_value_t = 1)]
    linux_runs: u32,
    /// How long that Linux may take for a step
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Only the cases whose names begin like this
    #[arg(long, value_name = "CASE", default_value = "")]
    cases: String,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const TIME: Metric = ("time", "s");
const TIME_PER_LMB: Metric = ("time_per_lmb", "s");
const HELD: Metric = ("memory_held", "MiB");
/// LMBs that were looked at to learn the nodes of others.
const LOOKED_AT: Metric = ("looked_at", "count");

const LMB_SIZE: Bytes = Bytes::mib(256);
const NODES: u32 = 8;

/// Whose figures they are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// LMB by LMB, each looked for.
    Before,
    /// The same without the look-up.
    NoLookUp,
    /// A request.
    Hotmem,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Before => "before",
            Subject::NoLookUp => "before-no-lookup",
            Subject::Hotmem => "hotmem",
        }
    }
}

/// So many LMBs come or go in a table of so many, of which the first are there.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    change: Change,
    lmbs: u32,
    table: u32,
    assigned: u32,
    before: bool,
}

const CASES: [Case; 5] = [
    case("4096-of-126976/first", Change::Add, 4096, 126_976, 0),
    case("4096-of-126976/last", Change::Add, 4096, 126_976, 126_976 - 4096),
    case("126000-of-126976/add", Change::Add, 126_000, 126_976, 0),
    case("126000-of-126976/remove", Change::Remove, 126_000, 126_976, 126_000),
    Case { before: false, ..case("1000000/add", Change::Add, 1_000_000, 1_000_000, 0) },
];

const fn case(name: &'static str, change: Change, lmbs: u32, table: u32, assigned: u32) -> Case {
    Case { name, change, lmbs, table, assigned, before: true }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let cases = CASES.into_iter().filter(|case| case.name.starts_with(&args.cases));
    let cases: Vec<_> = cases.collect();
    let on_pseries = pseries::CASE.starts_with(&args.cases);
    if cases.is_empty() && !on_pseries {
        bail!("no case begins with `{}`", args.cases);
    }
    let mut sample = Sample::new("dlpar");
    let hosted = cases.len() as u64 * u64::from(args.runs.max(args.before_runs));
    let on_qemu = u64::from(on_pseries) * u64::from(args.runs.max(args.linux_runs));
    let progress = progress::bar(hosted + on_qemu);
    for case in cases {
        for nth in 0..args.runs.max(args.before_runs) {
            let one_by_one = nth < args.before_runs && case.before;
            let subjects = [
                one_by_one.then_some(Subject::Before),
                one_by_one.then_some(Subject::NoLookUp),
                (nth < args.runs).then_some(Subject::Hotmem),
            ];
            for subject in subjects.into_iter().flatten() {
                let measured = measure(case, subject, args.at_once)
                    .with_context(|| format!("{} of {}", case.name, subject.name()))?;
                let per_lmb = measured.seconds / f64::from(case.lmbs);
                sample.add(case.name, subject.name(), TIME, measured.seconds);
                sample.add(case.name, subject.name(), TIME_PER_LMB, per_lmb);
                sample.add(case.name, subject.name(), HELD, measured.held);
                if let Some(lmbs) = measured.looked_at {
                    #[allow(clippy::cast_precision_loss, reason = "for people")]
                    sample.add(case.name, subject.name(), LOOKED_AT, lmbs as f64);
                }
            }
            progress.inc(1);
        }
    }
    if on_pseries {
        let limit = Duration::from_secs(args.limit.into());
        pseries::measure(&mut sample, args.runs, args.linux_runs, limit, &progress)
            .context(pseries::CASE)?;
    }
    progress.finish_and_clear();
    let records = sample.records();
    record::print(&records)?;
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

struct Measured {
    seconds: f64,
    /// Real memory of this process that came with the machine, in MiB.
    held: f64,
    /// Counted where LMBs are looked for at all.
    looked_at: Option<u64>,
}

/// Builds a machine and changes it.
fn measure(case: Case, subject: Subject, at_once: u32) -> Result<Measured> {
    let without = resident_here()?;
    let Case { table, assigned, lmbs, change, .. } = case;
    let description = Description::new(Version::V2, table, LMB_SIZE, NODES, assigned)?;
    let mut parts = Parts::new(description)?;
    let mut partition = parts.start(OnlineType::Movable)?;
    let (seconds, looked_at) = match subject {
        Subject::Hotmem => {
            let request = Request::new(change, Which::Count(lmbs));
            let (dlpar, mut machine) = partition.machine();
            let pageblocks = LMB_SIZE.frames() / PAGEBLOCK_FRAMES as u64 * u64::from(at_once);
            let start = Instant::now();
            dlpar.begin(request.online_as(OnlineType::Movable))?;
            let done = loop {
                match dlpar.poll(&mut machine, Budget::pageblocks(pageblocks)) {
                    Progress::Working => {}
                    done => break done,
                }
            };
            let seconds = start.elapsed().as_secs_f64();
            if !matches!(done, Progress::Done(Ok(_))) {
                bail!("{done:?}");
            }
            (seconds, None)
        }
        Subject::Before | Subject::NoLookUp => {
            let mut before = Before::new(&partition, subject == Subject::Before)?;
            let start = Instant::now();
            before.change(change, lmbs, &mut partition)?;
            (start.elapsed().as_secs_f64(), before.looks_up.then_some(before.looked_at))
        }
    };
    let held = (resident_here()?.0.saturating_sub(without.0)) as f64 / Bytes::mib(1).0 as f64;
    let expected = match change {
        Change::Add => assigned + lmbs,
        Change::Remove => assigned - lmbs,
    };
    let online = partition.hotplug.frames().counts().movable;
    if online != u64::from(expected) * LMB_SIZE.frames() {
        bail!("{online} frames are online at the end");
    }
    Ok(Measured { seconds, held, looked_at })
}

/// LMB by LMB.
struct Before {
    lmbs: Vec<Lmb>,
    /// Whether an LMB that is in hand is looked for to learn its node.
    looks_up: bool,
    looked_at: u64,
    claims: Claims,
    log: File,
}

impl Before {
    fn new(partition: &Partition<'_>, looks_up: bool) -> Result<Before> {
        let lmbs: Vec<_> = partition.table().lmbs().collect();
        let mut claims = Claims::default();
        let there = lmbs.iter().filter(|lmb| lmb.flags & FLAG_ASSIGNED != 0);
        // From the top, so that setting up does not look through the list.
        for lmb in there.rev() {
            claims.insert(lmb.range)?;
        }
        let log = File::options().append(true).open("/dev/null").context("opening /dev/null")?;
        Ok(Before { lmbs, looks_up, looked_at: 0, claims, log })
    }

    fn change(&mut self, change: Change, count: u32, partition: &mut Partition<'_>) -> Result<()> {
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
        check(machine.connectors.configure(index, &mut [0; LONGEST_LIST]).0)?;
        let node = self.node_of(lmb)?;
        self.claims.insert(lmb.range)?;
        machine.hotplug.add(lmb.range)?;
        machine.hotplug.online(lmb.range, OnlineType::Movable, machine.hooks)?;
        self.say(lmb, index, node.number(), "added")
    }

    fn remove(&mut self, lmb: &Lmb, partition: &mut Partition<'_>) -> Result<()> {
        let index = lmb.drc_index.context("a connector")?;
        let (_, machine) = partition.machine();
        let mut offline = machine.hotplug.offline(lmb.range)?;
        match offline.poll(machine.hotplug, machine.hooks, Budget::UNLIMITED) {
            hotmem::Progress::Done(_) => {}
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
        self.say(lmb, index, node.number(), "removed")
    }

    /// The node of an LMB: all that the two subjects differ in.
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

fn check(status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { bail!("status {status}") }
}

/// A claim for each range: a list in the order of addresses, walked from its start.
#[derive(Default)]
struct Claims {
    claims: Vec<Claim>,
    first: Option<u32>,
    unused: Option<u32>,
}

#[derive(Clone, Copy)]
struct Claim {
    range: PfnRange,
    next: Option<u32>,
}

impl Claims {
    fn at(&self, claim: u32) -> &Claim {
        &self.claims[claim as usize]
    }

    /// The link that leads to the first claim that ends above `range`'s start.
    fn find(&self, range: PfnRange) -> (Option<u32>, Option<u32>) {
        let (mut before, mut next) = (None, self.first);
        while let Some(claim) = next {
            if self.at(claim).range.end() > range.start() {
                break;
            }
            (before, next) = (next, self.at(claim).next);
        }
        (before, next)
    }

    fn link(&mut self, before: Option<u32>, to: Option<u32>) {
        match before {
            Some(before) => self.claims[before as usize].next = to,
            None => self.first = to,
        }
    }

    fn insert(&mut self, range: PfnRange) -> Result<()> {
        let (before, next) = self.find(range);
        if next.is_some_and(|next| self.at(next).range.overlaps(range)) {
            bail!("{range} is claimed already");
        }
        let claim = Claim { range, next };
        let at = match self.unused.take() {
            Some(unused) => {
                self.unused = self.at(unused).next;
                self.claims[unused as usize] = claim;
                unused
            }
            None => {
                self.claims.push(claim);
                u32::try_from(self.claims.len() - 1)?
            }
        };
        self.link(before, Some(at));
        Ok(())
    }

    fn remove(&mut self, range: PfnRange) -> Result<()> {
        let (before, found) = self.find(range);
        let found = found.filter(|&found| self.at(found).range == range).context("a claim")?;
        self.link(before, self.at(found).next);
        self.claims[found as usize].next = self.unused.replace(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All do the same to a small machine, and say how long it took.
    #[test]
    fn all_subjects_change_the_same_lmbs() {
        for (change, lmbs, assigned) in [(Change::Add, 40, 100), (Change::Remove, 70, 100)] {
            let case = case("", change, lmbs, 200, assigned);
            for subject in [Subject::Before, Subject::NoLookUp, Subject::Hotmem] {
                let measured = measure(case, subject, 16).unwrap();
                assert!(measured.seconds > 0.0 && measured.held >= 0.0);
                let first = if change == Change::Add { assigned } else { 0 };
                let looked_at = match subject {
                    Subject::Before => {
                        Some((first..first + lmbs).map(|nth| u64::from(nth) + 1).sum())
                    }
                    Subject::NoLookUp | Subject::Hotmem => None,
                };
                assert_eq!(measured.looked_at, looked_at);
            }
        }
    }

    #[test]
    fn claims_are_kept_in_order() {
        let range = |nth: u64| PfnRange::from_bytes(nth * LMB_SIZE.0, LMB_SIZE).unwrap();
        let mut claims = Claims::default();
        for nth in [5, 3, 9, 0] {
            claims.insert(range(nth)).unwrap();
        }
        assert!(claims.insert(range(3)).is_err());
        claims.remove(range(3)).unwrap();
        assert!(claims.remove(range(3)).is_err());
        claims.insert(range(4)).unwrap();
        let mut found = Vec::new();
        let mut next = claims.first;
        while let Some(claim) = next {
            found.push(claims.at(claim).range.start().phys_addr() / LMB_SIZE.0);
            next = claims.at(claim).next;
        }
        assert_eq!(found, [0, 4, 5, 9]);
        assert_eq!(claims.claims.len(), 4);
    }
}
