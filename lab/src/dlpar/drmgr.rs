//! `hotmem drmgr`, which makes the requests of `drmgr -c mem` to a hosted partition.

use super::{Description, PartitionStorage};
use crate::{
    lsmem::{JsonListing, Listing},
    out, progress, size, table,
};
use anyhow::{Context, Result, bail};
use hotmem::{Budget, Bytes, OnlineType};
use hotmem_dlpar::{Change, DrcIndex, LmbSelection, PollState, Request, Summary, Version};
use serde::Serialize;
use std::{ops::ControlFlow, path::PathBuf, thread, time::Duration, time::Instant};

/// Arguments of `hotmem drmgr`: those of drmgr for memory, and a description of the partition.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("change").required(true).args(["add", "remove"])))]
#[command(group(clap::ArgGroup::new("selection").required(true).multiple(true).args(["quantity", "index"])))]
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
    /// The number of LMBs, starting at the lowest one, or at the one that `-s` names
    #[arg(short, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    quantity: Option<u32>,
    /// The DRC index of the LMB, or of the first LMB
    #[arg(short = 's', value_name = "INDEX", value_parser = parse_index)]
    index: Option<DrcIndex>,
    /// Print a line for each LMB
    #[arg(short, long, conflicts_with = "json")]
    debug: bool,
    /// Print JSON (docs/command.md)
    #[arg(long)]
    json: bool,
    /// The partition's flattened device tree
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lmbs", "lmb_size", "nodes", "assigned"])]
    dtb: Option<PathBuf>,
    /// The number of LMBs that the partition can have
    #[arg(long, value_name = "N", default_value_t = 126_976)]
    lmbs: u32,
    /// The size of an LMB
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    lmb_size: Bytes,
    /// The number of nodes, among which the LMBs are divided equally
    #[arg(long, value_name = "N", default_value_t = 8)]
    nodes: u32,
    /// LMBs that are assigned at the start [default: none with -a, all with -r]
    #[arg(long, value_name = "N")]
    assigned: Option<u32>,
    /// Describe each LMB by its own entry, as version 1 of the device tree's property does
    #[arg(long)]
    v1: bool,
}

fn parse_count(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(count) => u32::try_from(count)
            .ok()
            .filter(|&count| count > 0)
            .ok_or_else(|| format!("a count is from 1 to {}", u32::MAX)),
        Err(_) => Err("a count is digits".into()),
    }
}

fn parse_index(text: &str) -> Result<DrcIndex, String> {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let index = hex.map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16));
    index.map(DrcIndex).map_err(|_| "a DRC index is 32 bits, such as 0x80000010".into())
}

/// The number of LMBs that are handled between two updates of the progress bar.
const LMBS_PER_UPDATE: u64 = 4096;
/// The time limit of a request, after which it is undone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Builds the partition, carries out the request and prints the partition's memory.
///
/// # Errors
/// The first error.
pub fn run(args: &Args) -> Result<()> {
    let selection = match (args.index, args.quantity) {
        (Some(first), Some(count)) => LmbSelection::Range { first, count },
        (Some(index), None) => LmbSelection::Index(index),
        (None, Some(count)) => LmbSelection::Count(count),
        (None, None) => bail!("neither a count nor a DRC index"),
    };
    let change = if args.add { Change::Add } else { Change::Remove };
    let mut storage = PartitionStorage::new(describe(args, change)?)?;
    let mut partition = storage.start(OnlineType::Movable)?;
    log::set_max_level(if args.debug { log::LevelFilter::Debug } else { log::LevelFilter::Warn });
    // This fails only if an earlier call has set the same logger.
    let _ = log::set_logger(&LmbLogger);

    let pageblocks =
        partition.table().lmb_size().frames() / hotmem::geometry::PAGEBLOCK_FRAMES as u64;
    let request = Request::new(change, selection).online_as(OnlineType::Movable);
    let bar = progress::bar(0);
    let start = Instant::now();
    let budget = Budget { pageblocks: LMBS_PER_UPDATE.saturating_mul(pageblocks) };
    let (dlpar, mut platform) = partition.machine();
    let result = dlpar.carry_out(request, &mut platform, budget, |state| {
        bar.set_length(state.wanted_lmbs.into());
        bar.set_position(state.taken_lmbs.into());
        wait(state, start.elapsed())
    });
    let time = start.elapsed();
    bar.finish_and_clear();
    let block_size = partition.table().lmb_size().bytes().clamp(Bytes::mib(128), Bytes::gib(2));
    let Summary { lmbs, ranges, skipped, misplaced, .. } = result?;
    let size = Bytes(u64::from(lmbs) * partition.table().lmb_size().bytes().0);
    let listing = Listing::of(&partition.hotplug, block_size, false);
    if args.json {
        let (size, seconds) = (size.0, time.as_secs_f64());
        let partition = listing.as_json();
        return out::write_json(&JsonOutcome {
            lmbs,
            size,
            ranges,
            seconds,
            skipped,
            misplaced,
            partition,
        });
    }
    let outcome = if args.add { "added and online" } else { "removed" };
    let [lmbs, ranges] = [(lmbs, "LMB"), (ranges, "range")].map(counted);
    let (size, time) = (size::short(size), table::time(time));
    say!("{lmbs}, {size}, {outcome} in {ranges} and {time}")?;
    say!("{skipped} skipped, {misplaced} on another node than theirs\n")?;
    Ok(out::write(format_args!("{listing}"))?)
}

/// What a request did, and the memory after it, for JSON. Sizes are in bytes.
#[derive(Serialize)]
struct JsonOutcome {
    lmbs: u32,
    size: u64,
    ranges: u32,
    seconds: f64,
    skipped: u32,
    misplaced: u32,
    partition: JsonListing,
}

/// Returns a number with its unit, in the singular or the plural.
fn counted((count, unit): (u32, &str)) -> String {
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Waits for the pause before the next poll of the request. Gives the request up if its time limit
/// would end during the pause.
fn wait(PollState { pause, .. }: PollState, elapsed: Duration) -> ControlFlow<()> {
    if pause.is_zero() {
        return ControlFlow::Continue(());
    }
    if elapsed + pause > PATIENCE {
        return ControlFlow::Break(());
    }
    thread::sleep(pause);
    ControlFlow::Continue(())
}

fn describe(args: &Args, change: Change) -> Result<Description> {
    if let Some(path) = &args.dtb {
        let blob =
            std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        return Description::from_tree(&blob).with_context(|| path.display().to_string());
    }
    let assigned = match (args.assigned, change) {
        (Some(assigned), _) => assigned,
        (None, Change::Add) => 0,
        (None, Change::Remove) => args.lmbs,
    };
    let version = if args.v1 { Version::V1 } else { Version::V2 };
    Ok(Description::new(version, args.lmbs, args.lmb_size, args.nodes, assigned)?)
}

/// A logger that writes the lines about LMBs to standard output. It leaves out the line about the
/// request, at level info, because the command prints the result of the request itself.
struct LmbLogger;

impl log::Log for LmbLogger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("hotmem") && metadata.level() != log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // If this write fails, the write of the summary fails too, and its error is returned.
            let _ = say!("{}", record.args());
        }
    }

    fn flush(&self) {}
}
