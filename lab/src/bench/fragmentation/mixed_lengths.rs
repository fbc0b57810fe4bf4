//! Allocates and frees runs of mixed lengths, and counts how many requests are refused although a
//! tenth of the memory is free.
//!
//! How closely an allocator packs runs decides how many it can allocate. All other runs of this
//! bench have one length, so they do not show this.

use super::pageblocks::Pageblocks;
use super::requests::in_use;
use crate::bench::random::Random;
use crate::hosted::ThreadCpus;
use anyhow::{Result, ensure};
use hotmem::{AllocRequest, Frames, PfnRange};

/// The share of the runs that stay in use for a long time, in percent.
const LONG_PERCENT: u64 = 10;
/// The share of the frees that free such a run, in percent.
const LONG_FREES_PERCENT: u64 = 1;

const SMALL_ORDERS: [u32; 7] = [0, 1, 2, 3, 4, 5, 6];

/// The lengths of the runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lengths {
    /// 1 to 16 frames, each length equally often. The runs begin at any frame.
    OneToSixteen,
    /// The orders 0 to 6, each equally often. The runs are aligned to their size.
    SmallOrders,
}

impl Lengths {
    pub(super) const ALL: [Lengths; 2] = [Lengths::OneToSixteen, Lengths::SmallOrders];

    /// Returns the part of the case's name that tells the lengths.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Lengths::OneToSixteen => "runs-1-16",
            Lengths::SmallOrders => "orders-0-6",
        }
    }

    fn request(self, random: &mut Random) -> AllocRequest {
        match self {
            Lengths::OneToSixteen => AllocRequest::frames(1 + random.below(16)),
            Lengths::SmallOrders => AllocRequest::order(SMALL_ORDERS[random.index_below(7)]),
        }
    }
}

/// The results of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packing {
    /// The number of requests that were refused.
    pub(super) refused: u64,
    /// The number of pageblocks that have no frame in use at the end.
    pub(super) whole_blocks: u64,
}

/// Makes `operations` requests on `cpus` CPUs in turn. Before each, frees runs at random until the
/// longest request fits the share of the memory that may be in use.
///
/// # Errors
/// A run could not be freed.
pub(super) fn measure(
    frames: &Frames<ThreadCpus>,
    memory: PfnRange,
    lengths: Lengths,
    cpus: u16,
    operations: u64,
    seed: u64,
) -> Result<Packing> {
    const LONGEST: u64 = 64;
    let mut random = Random::with_seed(seed);
    let mut pageblocks = Pageblocks::new(memory.start().number(), memory.frames());
    let (mut short, mut long): (Vec<PfnRange>, Vec<PfnRange>) = (Vec::new(), Vec::new());
    let (mut used, mut refused) = (0, 0);
    for _ in 0..operations {
        let request = lengths.request(&mut random).movable();
        ThreadCpus::run_as(random.index_below(cpus.into()));
        while used + LONGEST > in_use(memory.frames()) {
            let is_long = random.below(100) < LONG_FREES_PERCENT;
            let runs = if long.is_empty() || !(is_long || short.is_empty()) {
                &mut short
            } else {
                &mut long
            };
            let run = runs.swap_remove(random.index_below(runs.len()));
            used -= run.frames();
            pageblocks.free(run.start().number(), run.frames());
            // SAFETY: the bench has allocated the run, and frees it once.
            let freed = unsafe { frames.free_raw(run) };
            ensure!(freed.is_ok(), "{run} was not freed: {freed:?}");
        }
        match frames.alloc(request) {
            Ok(run) => {
                let run = run.into_raw();
                used += run.frames();
                pageblocks.take(run.start().number(), run.frames());
                let is_long = random.below(100) < LONG_PERCENT;
                if is_long { long.push(run) } else { short.push(run) }
            }
            Err(_) => refused += 1,
        }
    }
    Ok(Packing { refused, whole_blocks: pageblocks.whole_blocks() })
}
