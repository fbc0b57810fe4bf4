//! `hotmem bench dlpar`: measures adding and removing LMBs, for several numbers of LMBs and several
//! positions in the table.
//!
//! The partition is hosted, and nothing accesses its memory. The hypervisor is simulated and
//! answers at once. A request writes the whole property at its end. The bench does not count memory
//! that is reserved when the partition starts.
//!
//! The subject `hotmem-random-requests` adds the LMBs in random order, by one request for each. Its
//! platform needs no property, like QEMU's. Otherwise writing the whole property 126 976 times
//! would dominate the time.
//!
//! The subject `before` works as Linux's pseries code did before "hot-add: skip redundant LMB
//! lookup". It uses the same hypervisor and the same engine as `hotmem`. It adds or removes the
//! LMBs one by one. For each LMB it inserts the range into a linear list, searches the table
//! from the start for the LMB's node, and writes a line to the log. The subject `before-no-lookup`
//! works as after that patch: it takes the node from the LMB without a search, and is the same code
//! otherwise. So the difference of these two is the gain of the patch. The difference of
//! `before-no-lookup` and `hotmem` is the additional gain of `hotmem`.
//!
//! The case `pseries-64G` runs a guest on QEMU's pseries machine, with QEMU's firmware.

mod one_by_one;
mod pseries;
mod requests;
mod resources;
#[cfg(feature = "report")]
pub(crate) mod section;

use self::one_by_one::{OneByOne, check};
use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::{
    dlpar::{Description, Partition, PartitionStorage},
    progress,
    resident::resident_here,
};
use anyhow::{Context, Result, bail};
use hotmem::{AddRequest, Bytes, NodeId, OnlineType};
use hotmem_dlpar::{
    Change, Connectors, Lmb, LmbSelection, MAX_LIST_LEN, Machine, Request, Version,
};
use pseries::TIME_PER_LMB;
use requests::LMB_SIZE;
use std::{
    num::NonZeroU32,
    path::PathBuf,
    time::{Duration, Instant},
};

/// The name of the bench in its records.
const NAME: &str = "dlpar";

/// Arguments of `hotmem bench dlpar`.
#[derive(clap::Args)]
pub struct Args {
    /// The number of runs for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Runs of each subject that changes LMBs one by one; 0: none. A run may take a minute
    #[arg(long, default_value_t = 1)]
    before_runs: u32,
    /// The number of LMBs that one poll of a request handles. If their data fit the caches, the
    /// poll reads and writes less memory
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    at_once: u32,
    /// Runs of Linux on the pseries machine, if its packages are installed; 0: none
    #[arg(long, default_value_t = 1)]
    linux_runs: u32,
    /// The time limit of a step of Linux, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Run only the cases whose names begin with this text
    #[arg(long, value_name = "CASE", default_value = "")]
    cases: String,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const TIME: Metric = ("time", "s");
/// The resident memory that the machine needs.
const RESIDENT_MEMORY: Metric = ("memory_held", "MiB");
/// The number of LMBs that searches for nodes have read.
const LMBS_READ: Metric = ("lmbs_read", "count");

const NODES: u32 = 8;

/// The subjects of the bench.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// Changes LMBs one by one, with a search for each LMB's node.
    OneByOne,
    /// Changes LMBs one by one, without the search.
    NoLookUp,
    /// Changes all LMBs by one request of `hotmem-dlpar`.
    Hotmem,
    /// Changes LMBs in random order, by one request of `hotmem-dlpar` for each.
    RandomRequests,
    /// Adds LMBs one by one in random order by the engine alone.
    RandomOrder,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::OneByOne => "before",
            Subject::NoLookUp => "before-no-lookup",
            Subject::Hotmem => "hotmem",
            Subject::RandomRequests => "hotmem-random-requests",
            Subject::RandomOrder => "hotmem-random-order",
        }
    }
}

/// A case adds or removes LMBs of a table.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    change: Change,
    /// The number of LMBs that are added or removed.
    lmbs: u32,
    /// The number of LMBs in the table.
    table_lmbs: u32,
    /// The number of LMBs at the start of the table that are assigned before the change.
    assigned_lmbs: u32,
    /// Whether the subjects that change LMBs one by one are measured too.
    has_one_by_one: bool,
    nodes: Nodes,
}

/// The distribution of nodes over the LMBs.
#[derive(Clone, Copy)]
enum Nodes {
    /// The table is divided into equal parts, one for each node, and the property names the nodes.
    InTable,
    /// Consecutive LMBs are on the nodes 0, 1, 2, … in turn, and only their connectors name the
    /// nodes.
    InTurn(NonZeroU32),
}

const CASES: [Case; 8] = [
    case("4096-of-126976/first", Change::Add, 4096, 126_976, 0),
    case("4096-of-126976/last", Change::Add, 4096, 126_976, 126_976 - 4096),
    case("126000-of-126976/add", Change::Add, 126_000, 126_976, 0),
    case("126000-of-126976/remove", Change::Remove, 126_000, 126_976, 126_000),
    whole_table("126976-all/regular", Nodes::InTable),
    whole_table(
        "126976-all/4-nodes-in-turn",
        Nodes::InTurn(NonZeroU32::new(4).expect("4 is not 0")),
    ),
    whole_table(
        "126976-all/255-nodes-in-turn",
        Nodes::InTurn(NonZeroU32::new(255).expect("255 is not 0")),
    ),
    Case { has_one_by_one: false, ..case("1000000/add", Change::Add, 1_000_000, 1_000_000, 0) },
];

const fn case(
    name: &'static str,
    change: Change,
    lmbs: u32,
    table_lmbs: u32,
    assigned_lmbs: u32,
) -> Case {
    Case {
        name,
        change,
        lmbs,
        table_lmbs,
        assigned_lmbs,
        has_one_by_one: true,
        nodes: Nodes::InTable,
    }
}

/// Returns a case that adds all LMBs of a table.
const fn whole_table(name: &'static str, nodes: Nodes) -> Case {
    Case { has_one_by_one: false, nodes, ..case(name, Change::Add, 126_976, 126_976, 0) }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| Ok(record::print(records)?);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    let cases = CASES.into_iter().filter(|case| case.name.starts_with(&args.cases));
    let cases: Vec<_> = cases.collect();
    let on_pseries = pseries::CASE.starts_with(&args.cases);
    if cases.is_empty() && !on_pseries {
        bail!("no case begins with `{}`", args.cases);
    }
    let hosted = cases.len() as u64 * u64::from(args.runs.max(args.before_runs));
    let on_qemu = u64::from(on_pseries) * u64::from(args.runs.max(args.linux_runs));
    let progress = progress::bar(hosted + on_qemu);
    for case in cases {
        for nth in 0..args.runs.max(args.before_runs) {
            let one_by_one = nth < args.before_runs && case.has_one_by_one;
            let subjects = [
                one_by_one.then_some(Subject::OneByOne),
                one_by_one.then_some(Subject::NoLookUp),
                (nth < args.runs).then_some(Subject::Hotmem),
                (nth < args.runs && case.adds_whole_table()).then_some(Subject::RandomRequests),
                (nth < args.runs && case.adds_whole_table()).then_some(Subject::RandomOrder),
            ];
            for subject in subjects.into_iter().flatten() {
                let measured = measure(case, subject, args.at_once)
                    .with_context(|| format!("{} of {}", case.name, subject.name()))?;
                let per_lmb = measured.seconds / f64::from(case.lmbs);
                sample.add(case.name, subject.name(), TIME, measured.seconds);
                sample.add(case.name, subject.name(), TIME_PER_LMB, per_lmb);
                sample.add(case.name, subject.name(), RESIDENT_MEMORY, measured.resident_mib);
                if let Some(lmbs) = measured.lmbs_read {
                    #[allow(clippy::cast_precision_loss, reason = "for people")]
                    sample.add(case.name, subject.name(), LMBS_READ, lmbs as f64);
                }
            }
            progress.inc(1);
        }
    }
    if on_pseries {
        let limit = Duration::from_secs(args.limit.into());
        pseries::measure(sample, args.runs, args.linux_runs, limit, &progress)
            .context(pseries::CASE)?;
    }
    progress.finish_and_clear();
    Ok(())
}

impl Case {
    /// Returns whether the case adds all LMBs of a table of less than a million, so that subjects
    /// can add them in any order.
    fn adds_whole_table(&self) -> bool {
        self.lmbs == self.table_lmbs && !self.has_one_by_one && self.table_lmbs < 1_000_000
    }
}

/// The costs of a case.
struct RequestCosts {
    seconds: f64,
    /// The resident memory of the machine in this process, in MiB.
    resident_mib: f64,
    /// The number of LMBs that searches have read, if the subject searches for LMBs.
    lmbs_read: Option<u64>,
}

/// Builds a machine, and measures the change of the case.
fn measure(case: Case, subject: Subject, at_once: u32) -> Result<RequestCosts> {
    let resident_before = resident_here()?;
    let Case { table_lmbs, assigned_lmbs, lmbs, change, .. } = case;
    let description = match case.nodes {
        Nodes::InTable => {
            Description::new(Version::V2, table_lmbs, LMB_SIZE, NODES, assigned_lmbs)?
        }
        Nodes::InTurn(nodes) => {
            Description::new(Version::V2, table_lmbs, LMB_SIZE, 1, assigned_lmbs)?
                .with_nodes_of_connectors(nodes)
        }
    };
    let mut storage = PartitionStorage::new(description)?;
    let mut partition = storage.start(OnlineType::Movable)?;
    let (seconds, lmbs_read) = match subject {
        Subject::Hotmem => {
            let (dlpar, mut machine) = partition.machine();
            let request = Request::new(change, LmbSelection::Count(lmbs));
            let start = Instant::now();
            requests::carry_out(request, dlpar, &mut machine, at_once)?;
            (start.elapsed().as_secs_f64(), None)
        }
        Subject::RandomRequests => {
            let connectors = partition.table().lmbs().map(|lmb| lmb.drc_index);
            let mut connectors: Vec<_> =
                connectors.collect::<Option<_>>().context("an LMB has no connector")?;
            fastrand::Rng::with_seed(1).shuffle(&mut connectors);
            let (dlpar, Machine { hotplug, hooks, connectors: hypervisor }) = partition.machine();
            let hypervisor = &mut requests::WithoutProperty(hypervisor);
            let mut machine = Machine { hotplug, hooks, connectors: hypervisor };
            let start = Instant::now();
            for &connector in &connectors {
                let request = Request::new(change, LmbSelection::Index(connector));
                requests::carry_out(request, dlpar, &mut machine, at_once)?;
            }
            (start.elapsed().as_secs_f64(), None)
        }
        Subject::RandomOrder => {
            let mut lmbs: Vec<_> = partition.table().lmbs().collect();
            fastrand::Rng::with_seed(1).shuffle(&mut lmbs);
            let start = Instant::now();
            lmbs.iter().try_for_each(|lmb| add_by_engine(lmb, &mut partition))?;
            (start.elapsed().as_secs_f64(), None)
        }
        Subject::OneByOne | Subject::NoLookUp => {
            let mut one_by_one = OneByOne::new(&partition, subject == Subject::OneByOne)?;
            let start = Instant::now();
            one_by_one.change(change, lmbs, &mut partition)?;
            (
                start.elapsed().as_secs_f64(),
                one_by_one.searches_node.then_some(one_by_one.lmbs_read),
            )
        }
    };
    let resident_mib =
        (resident_here()?.0.saturating_sub(resident_before.0)) as f64 / Bytes::mib(1).0 as f64;
    let expected = match change {
        Change::Add => assigned_lmbs + lmbs,
        Change::Remove => assigned_lmbs - lmbs,
    };
    let online = partition.hotplug.frames().counts().movable;
    if online != u64::from(expected) * LMB_SIZE.frames() {
        bail!("{online} frames are online at the end, which is not the memory of {expected} LMBs");
    }
    if change == Change::Add && assigned_lmbs == 0 {
        check_nodes(case, &partition)?;
    }
    Ok(RequestCosts { seconds, resident_mib, lmbs_read })
}

/// Acquires one LMB, and brings its memory online on the node that its connector names. Uses no
/// request of `hotmem-dlpar`.
fn add_by_engine(lmb: &Lmb, partition: &mut Partition<'_>) -> Result<()> {
    let index = lmb.drc_index.context("the LMB has no connector")?;
    let (_, machine) = partition.machine();
    check(machine.connectors.set_allocation(index, true))?;
    check(machine.connectors.set_isolation(index, false))?;
    let mut list = [0; MAX_LIST_LEN];
    let (status, len) = machine.connectors.configure(index, &mut list);
    check(status)?;
    // The list ends with the node.
    let named_node = len.and_then(|len| list.get(len.checked_sub(1)?));
    let node = named_node.map_or(lmb.node, |&node| Some(NodeId(node)));
    machine.hotplug.add(AddRequest { node, ..lmb.range.into() })?;
    machine.hotplug.online(lmb.range, OnlineType::Movable, machine.hooks)?;
    Ok(())
}

/// Checks that the first and the last frame of each added LMB are on the expected node.
fn check_nodes(case: Case, partition: &Partition<'_>) -> Result<()> {
    let frames = partition.hotplug.frames();
    let lmbs_per_node = case.table_lmbs.div_ceil(NODES).max(1);
    for (nth, lmb) in (0..case.lmbs).zip(partition.table().lmbs()) {
        let expected = NodeId(match case.nodes {
            Nodes::InTable => nth / lmbs_per_node,
            Nodes::InTurn(nodes) => nth % nodes,
        });
        let last = lmb.range.chunks(1).next_back().context("an LMB has no frames")?.start();
        let ends = [lmb.range.start(), last];
        for frame in ends {
            let found = frames.node_of(frame);
            if found != Some(expected) {
                bail!("LMB {nth} is on {found:?} instead of {expected:?}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_subjects_change_the_requested_number_of_lmbs() {
        let changes = [(Change::Add, 40, 100), (Change::Remove, 70, 100), (Change::Add, 60, 0)];
        for (change, lmbs, assigned) in changes {
            let case = case("", change, lmbs, 200, assigned);
            for subject in [Subject::OneByOne, Subject::NoLookUp, Subject::Hotmem] {
                let measured = measure(case, subject, 16).unwrap();
                assert!(measured.seconds > 0.0 && measured.resident_mib >= 0.0);
                let first = if change == Change::Add { assigned } else { 0 };
                let lmbs_read = match subject {
                    // A search reads the table up to the LMB.
                    Subject::OneByOne => {
                        Some((first..first + lmbs).map(|nth| u64::from(nth) + 1).sum())
                    }
                    _ => None,
                };
                assert_eq!(measured.lmbs_read, lmbs_read);
            }
        }
    }

    #[test]
    fn lmbs_added_in_any_order_are_on_the_nodes_that_their_connectors_name() {
        for nodes in [Nodes::InTable, Nodes::InTurn(NonZeroU32::new(3).unwrap())] {
            let case = Case { nodes, ..case("", Change::Add, 90, 90, 0) };
            for subject in [Subject::Hotmem, Subject::RandomRequests, Subject::RandomOrder] {
                assert!(measure(case, subject, 16).unwrap().seconds > 0.0);
            }
        }
    }
}
