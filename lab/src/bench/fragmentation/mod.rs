//! `hotmem bench fragmentation`: measures how much of the free memory stays in whole pageblocks
//! while memory with short and long lifetimes is allocated and freed.
//!
//! One thread acts as all CPUs in turn, so a seed gives the same figures each time. Each run has
//! another seed, so the runs show how much the figures depend on the seed.

mod mixed_lengths;
pub(super) mod pageblocks;
mod player;
pub(super) mod requests;
#[cfg(feature = "report")]
pub(crate) mod section;

use super::frames::{Allocator, Buddy};
use super::random::ORDERS;
use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::{
    hosted::{Hosted, ThreadCpus},
    progress, size,
};
use anyhow::{Context, Result, ensure};
use hotmem::{
    AllocRequest, Bytes, Frames, NoHooks, OnlineType,
    geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES},
};
use indicatif::ProgressBar;
use mixed_lengths::{Lengths, Packing};
use player::RequestPlayer;
use requests::{Requests, in_use};
use std::path::PathBuf;

/// The name of the bench in its records.
const NAME: &str = "fragmentation";

/// Arguments of `hotmem bench fragmentation`.
#[derive(clap::Args)]
pub struct Args {
    /// The size of the memory that each allocator manages
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4G")]
    size: Bytes,
    /// The number of CPUs that allocate and free; one thread acts as all of them
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,16",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: Vec<u16>,
    /// The number of operations after 90 % of the memory is in use. Each operation frees older
    /// memory to make space, and then allocates
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), default_value_t = 5_000_000)]
    operations: u64,
    /// Run 100 million operations
    #[arg(long, conflicts_with = "operations")]
    thorough: bool,
    /// The number of runs for each median; each run uses the next seed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The seed of the first run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The share of the free memory that lies in pageblocks without a frame in use.
const FREE_IN_WHOLE_PAGEBLOCKS: Metric = ("free_in_whole_pageblocks", "%");
/// The share of the requests of each order that failed.
const REFUSED: [Metric; ORDERS.len()] =
    [("refused_order_0", "%"), ("refused_order_3", "%"), ("refused_order_9", "%")];
/// The number of requests for runs of mixed lengths that failed.
const REFUSED_RUNS: Metric = ("refused", "count");
/// The number of pageblocks without a frame in use after these requests.
const WHOLE_PAGEBLOCKS: Metric = ("whole_pageblocks", "count");
/// The number of pageblocks that have no frame in use and that the allocator does not count as
/// free, because a CPU allocates from them.
const UNUSED_BUT_NOT_FREE: Metric = ("held_open", "count");

/// The measured allocators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Hotmem,
    Buddy,
}

impl Subject {
    const ALL: [Subject; 2] = [Subject::Hotmem, Subject::Buddy];

    fn name(self) -> &'static str {
        match self {
            Subject::Hotmem => "hotmem",
            Subject::Buddy => "buddy_system_allocator",
        }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| Ok(record::print(records)?);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    let frames = args.size.frames();
    // At most 90 % of the memory may be in use, and the largest request must fit into that.
    let min_size = Bytes::mib(64);
    ensure!(
        args.size >= min_size && frames.is_multiple_of(PAGEBLOCK_FRAMES as u64),
        "--size {} must be whole pageblocks of 2 MiB, and at least {min_size}",
        args.size
    );
    let operations = if args.thorough { 100_000_000 } else { args.operations };
    let measurements = args.cpus.len() as u64 * u64::from(args.runs) * Subject::ALL.len() as u64;
    let of_lengths = args.cpus.len() as u64 * u64::from(args.runs) * Lengths::ALL.len() as u64;
    let progress =
        progress::bar(measurements * check_points(operations).count() as u64 + of_lengths);
    for run in 0..args.runs {
        for &cpus in &args.cpus {
            for subject in Subject::ALL {
                let requests = Requests::new(args.seed + u64::from(run), cpus, in_use(frames));
                let case = case(args.size, cpus);
                progress.set_message(format!("{case}, {}", subject.name()));
                let results = subject.measure(args.size, requests, operations, &progress)?;
                for &(operations, share) in &results.whole_shares {
                    let case = format!("{case}/after-{operations}");
                    sample.add(&case, subject.name(), FREE_IN_WHOLE_PAGEBLOCKS, share);
                }
                if let Some(&(_, at_the_end)) = results.whole_shares.last() {
                    sample.add(&case, subject.name(), FREE_IN_WHOLE_PAGEBLOCKS, at_the_end);
                }
                for (metric, refused) in REFUSED.into_iter().zip(results.refused_shares) {
                    sample.add(&case, subject.name(), metric, refused);
                }
                if let Some(unused_but_not_free) = results.unused_but_not_free {
                    sample.add(
                        &case,
                        subject.name(),
                        UNUSED_BUT_NOT_FREE,
                        unused_but_not_free as f64,
                    );
                }
            }
            for lengths in Lengths::ALL {
                let case = format!("{}/{}", case(args.size, cpus), lengths.name());
                progress.set_message(case.clone());
                let seed = args.seed + u64::from(run);
                let packing = measure_packing(args.size, lengths, cpus, operations, seed)?;
                let name = Subject::Hotmem.name();
                sample.add(&case, name, REFUSED_RUNS, packing.refused as f64);
                sample.add(&case, name, WHOLE_PAGEBLOCKS, packing.whole_blocks as f64);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// Makes requests for runs of mixed lengths on a machine of `size`.
fn measure_packing(
    size: Bytes,
    lengths: Lengths,
    cpus: u16,
    operations: u64,
    seed: u64,
) -> Result<Packing> {
    let machine = machine(size)?;
    let memory = machine.hotplug_range();
    mixed_lengths::measure(machine.frames(), memory, lengths, cpus, operations, seed)
}

/// Returns the case's name: `4G/16cpus`.
fn case(size: Bytes, cpus: u16) -> String {
    format!("{}/{cpus}cpu{}", size::short(size), if cpus == 1 { "" } else { "s" })
}

/// Returns the numbers of operations after which the memory is examined. They are 1, 2 and 5 times
/// the powers of ten from 10 000 on, and `operations`.
fn check_points(operations: u64) -> impl Iterator<Item = u64> {
    let powers = (4..).map_while(|power| 10_u64.checked_pow(power));
    let check_points = powers.flat_map(|power| [1, 2, 5].map(|times| power.saturating_mul(times)));
    check_points.take_while(move |&check_point| check_point < operations).chain([operations])
}

/// The results of one run.
#[derive(PartialEq, Debug)]
struct RunResults {
    /// Numbers of operations, and the share of free memory in whole pageblocks after each, in
    /// percent.
    whole_shares: Vec<(u64, f64)>,
    /// The share of the requests of each order that failed, in percent.
    refused_shares: [f64; ORDERS.len()],
    /// The number of pageblocks that are [unused, but not free](UNUSED_BUT_NOT_FREE) at the end, if
    /// the subject counts free pageblocks.
    unused_but_not_free: Option<u64>,
}

impl Subject {
    fn measure(
        self,
        size: Bytes,
        requests: Requests,
        operations: u64,
        progress: &ProgressBar,
    ) -> Result<RunResults> {
        match self {
            Subject::Hotmem => {
                let machine = machine(size)?;
                let frames = machine.frames();
                let first = machine.hotplug_range().start().number();
                let (mut results, whole_blocks) =
                    run_requests(frames, first, size, requests, operations, progress)?;
                let counted = frames.counts().free_whole / PAGEBLOCK_FRAMES as u64;
                results.unused_but_not_free = Some(whole_blocks.saturating_sub(counted));
                Ok(results)
            }
            Subject::Buddy => {
                let buddy = Buddy::new(usize::try_from(size.frames())?);
                Ok(run_requests(&buddy, 0, size, requests, operations, progress)?.0)
            }
        }
    }
}

/// Makes all requests to an allocator whose first frame is `first`. Returns the results, and the
/// number of pageblocks that have no frame in use at the end.
fn run_requests(
    allocator: &impl Allocator,
    first: u64,
    size: Bytes,
    requests: Requests,
    operations: u64,
    progress: &ProgressBar,
) -> Result<(RunResults, u64)> {
    let mut player = RequestPlayer::new(allocator, first, size.frames(), requests);
    player.fill();
    let mut done = 0;
    let mut whole_shares = Vec::new();
    for check_point in check_points(operations) {
        (done..check_point).for_each(|_| player.step());
        done = check_point;
        whole_shares.push((check_point, player.free_in_whole_pageblocks()));
        progress.inc(1);
    }
    let results = RunResults {
        whole_shares,
        refused_shares: player.refused_shares(),
        unused_but_not_free: None,
    };
    Ok((results, player.whole_pageblocks()))
}

/// Returns a machine with `size` bytes of movable memory and no free kernel memory.
pub(super) fn machine(size: Bytes) -> Result<Hosted> {
    // Act as CPU 0, because the thread may have acted as any CPU in the run before.
    ThreadCpus::run_as(0);
    let sections = size.0.div_ceil(Bytes::mib(128).0);
    // For each section that is plugged, boot memory needs a frame for its bitmaps and 512 bytes for
    // its words; 32 MiB suffice for everything else.
    let boot_memory = Bytes::mib(32).0 + (sections * (FRAME_SIZE + 512)).next_multiple_of(2 << 20);
    let machine = Hosted::builder().boot_memory(Bytes(boot_memory)).hotplug_size(size).build()?;
    let mut hotplug = machine.boot()?;
    hotplug.announce(machine.hotplug_range())?;
    hotplug.add(machine.hotplug_range())?;
    hotplug.online(machine.hotplug_range(), OnlineType::Movable, &mut NoHooks)?;
    make_bitmaps(&machine)?;
    use_up_kernel_memory(machine.frames());
    let counts = machine.frames().counts();
    ensure!(
        counts.free == size.frames(),
        "{} frames are free, which is not the number of movable frames",
        counts.free
    );
    Ok(machine)
}

/// Makes the engine create the frame bitmaps of the movable memory while kernel memory is free. If
/// it created them later, they would lie in the movable memory, and each frame of bitmaps would
/// keep a pageblock from being free as a whole.
fn make_bitmaps(machine: &Hosted) -> Result<()> {
    for pageblock in machine.hotplug_range().chunks(PAGEBLOCK_FRAMES as u64) {
        let request = AllocRequest::frames(1).at(pageblock.start()).movable();
        drop(
            machine
                .frames()
                .alloc(request)
                .context("allocating the first frame of a free pageblock")?,
        );
    }
    Ok(())
}

/// Allocates all kernel memory. Otherwise movable requests would get it when no movable memory is
/// free.
fn use_up_kernel_memory(frames: &Frames<ThreadCpus>) {
    while let Ok(frame) = frames.alloc(AllocRequest::frames(1)) {
        let _stays = frame.into_raw();
    }
}

#[cfg(test)]
mod tests;
