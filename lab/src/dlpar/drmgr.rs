//! `hotmem drmgr`: makes the requests of `drmgr -c mem` to a hosted partition.

use super::{Description, Parts};
use crate::{lsmem::Listing, progress, size, table};
use anyhow::{Context, Result, bail};
use hotmem::{Budget, Bytes, OnlineType};
use hotmem_dlpar::{Between, Change, DrcIndex, Next, Request, Summary, Version, Which};
use std::{path::PathBuf, thread, time::Duration, time::Instant};

/// Arguments of `hotmem drmgr`: drmgr's own arguments for memory.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("change").required(true).args(["add", "remove"])))]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true).args(["quantity", "index"])))]
pub struct Args {
    /// The kind of resource: memory
    #[arg(short = 'c', value_name = "TYPE", value_parser = ["mem"])]
    connector: String,
    /// Add LMBs
    #[arg(short)]
    add: bool,
    /// Remove LMBs
    #[arg(short)]
    remove: bool,
    /// How many LMBs: from the lowest up, or from the one with the index
    #[arg(short, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    quantity: Option<u32>,
    /// The DRC index of the LMB, or of the first
    #[arg(short = 's', value_name = "INDEX", value_parser = index)]
    index: Option<DrcIndex>,
    /// Print a line for each LMB
    #[arg(short, long)]
    debug: bool,
    /// The machine, as a flattened device tree
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lmbs", "lmb_size", "nodes", "assigned"])]
    dtb: Option<PathBuf>,
    /// The machine, as the number of LMBs that it can have
    #[arg(long, value_name = "N", default_value_t = 126_976)]
    lmbs: u32,
    /// The size of an LMB
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    lmb_size: Bytes,
    /// The number of nodes, each of which has an equal part of the LMBs
    #[arg(long, value_name = "N", default_value_t = 8)]
    nodes: u32,
    /// LMBs that are assigned at the start [default: none with -a, all with -r]
    #[arg(long, value_name = "N")]
    assigned: Option<u32>,
    /// List LMBs one by one in the device tree, as version 1 of the property does
    #[arg(long)]
    v1: bool,
}

fn count(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(count) => u32::try_from(count)
            .ok()
            .filter(|&count| count > 0)
            .ok_or_else(|| format!("a count is from 1 to {}", u32::MAX)),
        Err(_) => Err("a count is digits".into()),
    }
}

fn index(text: &str) -> Result<DrcIndex, String> {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let index = hex.map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16));
    index.map(DrcIndex).map_err(|_| "a DRC index is 32 bits, such as 0x80000010".into())
}

/// The LMBs that are handled between two updates of the progress bar.
const AT_ONCE: u64 = 4096;
/// A request that makes no progress for this long is undone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Builds the machine, carries out the request and prints the machine's memory.
///
/// # Errors
/// The first error.
pub fn run(args: &Args) -> Result<()> {
    let which = match (args.index, args.quantity) {
        (Some(first), Some(count)) => Which::Range { first, count },
        (Some(index), None) => Which::Index(index),
        (None, Some(count)) => Which::Count(count),
        (None, None) => bail!("neither a count nor a DRC index"),
    };
    let change = if args.add { Change::Add } else { Change::Remove };
    let mut parts = Parts::new(describe(args, change)?)?;
    let mut partition = parts.start(OnlineType::Movable)?;
    log::set_max_level(if args.debug { log::LevelFilter::Debug } else { log::LevelFilter::Info });
    // This fails only if a logger is set already, which is then `Lines` too.
    let _ = log::set_logger(&Lines);

    let pageblocks =
        partition.table().lmb_size().frames() / hotmem::geometry::PAGEBLOCK_FRAMES as u64;
    let request = Request::new(change, which).online_as(OnlineType::Movable);
    let bar = progress::bar(0);
    let start = Instant::now();
    let budget = Budget { pageblocks: AT_ONCE.saturating_mul(pageblocks) };
    let (dlpar, mut machine) = partition.machine();
    let result = dlpar.carry_out(request, &mut machine, budget, |between| {
        bar.set_length(between.wanted.into());
        bar.set_position(between.done.into());
        wait(between, start.elapsed())
    });
    let took = start.elapsed();
    bar.finish_and_clear();
    let block = partition.table().lmb_size().bytes().clamp(Bytes::mib(128), Bytes::gib(2));
    let Summary { lmbs, .. } = result?;
    let all = Bytes(u64::from(lmbs) * partition.table().lmb_size().bytes().0);
    let done = if args.add { "added and online" } else { "removed" };
    say!("{lmbs} LMBs, {}, {done} in {}\n", size::about(all), table::time(took))?;
    crate::out::write(format_args!("{}", Listing::of(&partition.hotplug, block, false)))?;
    Ok(())
}

/// Waits for as long as the request asks, and gives up after [`PATIENCE`].
fn wait(Between { pause, .. }: Between, elapsed: Duration) -> Next {
    if pause.is_zero() {
        return Next::GoOn;
    }
    if elapsed + pause > PATIENCE {
        return Next::GiveUp;
    }
    thread::sleep(pause);
    Next::GoOn
}

fn describe(args: &Args, change: Change) -> Result<Description> {
    if let Some(path) = &args.dtb {
        let blob = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        return Description::of_tree(&blob).with_context(|| path.display().to_string());
    }
    let assigned = match (args.assigned, change) {
        (Some(assigned), _) => assigned,
        (None, Change::Add) => 0,
        (None, Change::Remove) => args.lmbs,
    };
    let version = if args.v1 { Version::V1 } else { Version::V2 };
    Ok(Description::new(version, args.lmbs, args.lmb_size, args.nodes, assigned)?)
}

/// A logger that writes to standard output.
struct Lines;

impl log::Log for Lines {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("hotmem")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // If writing fails now, a later write fails too and returns the error.
            let _ = say!("{}", record.args());
        }
    }

    fn flush(&self) {}
}
