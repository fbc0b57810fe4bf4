//! `hotmem bench heap`: measures allocating and freeing small objects on a kernel's heap, and how much
//! memory the heap keeps after most objects were freed. Compares with other heaps behind the same
//! kind of lock.

mod kept;
#[cfg(feature = "report")]
pub(crate) mod section;

use super::frames::cpu_time;
use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::{
    hosted::{Hosted, ThreadCpus},
    progress, size,
};
use anyhow::{Context, Result};
use buddy_system_allocator::Heap as Buddy;
use hotmem::{Bytes, Pfn};
use hotmem_heap::Heap;
use hotmem_port::LinearMap;
use spin::mutex::SpinMutex;
use std::{
    alloc::{GlobalAlloc, Layout},
    path::PathBuf,
    ptr::NonNull,
    thread,
};
use talc::{TalcLock, source::Manual};

/// The name of the bench in its records.
const NAME: &str = "heap";

/// Arguments of `hotmem bench heap`.
#[derive(clap::Args)]
pub struct Args {
    /// The sizes of an object in bytes
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "16,64,200,1024",
          value_parser = clap::value_parser!(u32).range(8..=2048))]
    sizes: Vec<u32>,
    /// The numbers of threads to measure with
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u16).range(1..=16))]
    threads: Vec<u16>,
    /// The size of all objects before most of them are freed
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    burst: Bytes,
    /// The number of runs for each median
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The CPU time for allocating and freeing one object.
const TIME_PER_OP: Metric = ("time_per_op", "ns");
/// The memory of each heap.
const MEMORY: Bytes = Bytes::mib(256);
/// The number of objects that a thread holds at one time when it allocates many.
const BULK_OBJECTS: usize = 2000;
/// The number of objects that each thread allocates and frees in a run.
const OPERATIONS: usize = 200_000;

type Lock = SpinMutex<()>;
type Talc = TalcLock<Lock, Manual>;

/// The order in which objects are freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FreeOrder {
    /// Each object is freed before the next is allocated.
    Pair,
    /// Many objects are freed in the order in which they were allocated.
    Bulk,
    /// Many objects are freed in a random order.
    Random,
}

impl FreeOrder {
    const ALL: [FreeOrder; 3] = [FreeOrder::Pair, FreeOrder::Bulk, FreeOrder::Random];

    fn name(self) -> &'static str {
        match self {
            FreeOrder::Pair => "pair",
            FreeOrder::Bulk => "bulk",
            FreeOrder::Random => "random",
        }
    }

    /// Returns the indices of the objects in the order in which they are freed.
    fn indices(self) -> Vec<usize> {
        match self {
            FreeOrder::Pair => vec![0],
            FreeOrder::Bulk => (0..BULK_OBJECTS).collect(),
            FreeOrder::Random => {
                let mut order: Vec<_> = (0..BULK_OBJECTS).collect();
                fastrand::Rng::with_seed(7).shuffle(&mut order);
                order
            }
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
    let machine = Hosted::builder().boot_memory(MEMORY).build()?;
    let _hotplug = machine.boot()?;
    let base = machine.address_of(Pfn::ZERO).context("the machine has no first frame")?;
    let hotmem: Heap<'_, ThreadCpus, Lock> =
        Heap::new(machine.frames(), LinearMap::new(base.as_ptr()));
    let memory = [(); 2].map(|()| vec![0_u64; usize::try_from(MEMORY.0 / 8).unwrap_or_default()]);
    let [talc_memory, buddy_memory] = memory.map(Vec::leak);
    let talc = Talc::new(Manual);
    // SAFETY: `talc_memory` was leaked above, and only `talc` uses it.
    unsafe { talc.lock().claim(talc_memory.as_mut_ptr().cast(), size_of_val(talc_memory)) }
        .context("talc refuses the memory that it is given")?;
    let buddy = BuddyHeap(SpinMutex::new(Buddy::new()));
    // SAFETY: `buddy_memory` was leaked above, and only `buddy` uses it.
    unsafe { buddy.0.lock().init(buddy_memory.as_mut_ptr().addr(), size_of_val(buddy_memory)) };

    let subjects: [(&str, &(dyn GlobalAlloc + Sync)); 3] =
        [("hotmem", &hotmem), ("talc", &talc), ("buddy_system_allocator", &buddy)];
    let cases = args.sizes.len() * args.threads.len() * FreeOrder::ALL.len();
    let progress = progress::bar((cases as u64 + 1) * u64::from(args.runs));
    for run in 0..args.runs {
        for &size in &args.sizes {
            for &threads in &args.threads {
                for free_order in FreeOrder::ALL {
                    let plural = if threads == 1 { "" } else { "s" };
                    let case = format!("{size}B/{threads}thread{plural}/{}", free_order.name());
                    for (name, heap) in subjects {
                        let layout = Layout::from_size_align(usize::try_from(size)?, 8)?;
                        let time = measure(heap, layout, threads, free_order)
                            .with_context(|| format!("{name}, {case}"))?;
                        sample.add(&case, name, TIME_PER_OP, time);
                    }
                    progress.inc(1);
                }
            }
        }
        kept::measure_all(args.burst, run.into(), sample)?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(())
}

/// Returns the CPU time in nanoseconds for allocating and freeing one object: the mean of all
/// threads.
fn measure(
    heap: &(dyn GlobalAlloc + Sync),
    layout: Layout,
    threads: u16,
    free_order: FreeOrder,
) -> Result<f64> {
    let order = free_order.indices();
    let rounds = OPERATIONS / order.len();
    let work = || {
        let mut objects = vec![None; order.len()];
        let started = cpu_time();
        for _ in 0..rounds {
            for object in &mut objects {
                // SAFETY: the size of `layout` is not 0.
                *object = NonNull::new(unsafe { heap.alloc(layout) });
            }
            for &index in &order {
                let object: NonNull<u8> = objects[index].take()?;
                // SAFETY: `object` was allocated above with `layout`, and is freed once.
                unsafe {
                    object.write(1);
                    heap.dealloc(object.as_ptr(), layout);
                }
            }
        }
        Some((cpu_time() - started).as_secs_f64() * 1e9 / (rounds * order.len()) as f64)
    };
    let times: Option<Vec<f64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let times = times.context("a heap has no memory for an object")?;
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

/// The heap of buddy_system_allocator, behind the same kind of lock as the others.
struct BuddyHeap(SpinMutex<Buddy<32>>);

// SAFETY: `buddy_system_allocator` fulfils the contract of an allocator, and the lock lets one
// thread at a time use the heap.
unsafe impl GlobalAlloc for BuddyHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.lock().alloc(layout).map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        if let Some(object) = NonNull::new(object) {
            // SAFETY: the caller guarantees that `object` was allocated here with `layout`.
            unsafe { self.0.lock().dealloc(object, layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parsed;

    #[test]
    fn the_bench_runs_with_two_threads() {
        let args =
            parsed::<Args>(&["--sizes", "64", "--runs", "1", "--threads", "2", "--burst", "4M"]);
        run(&args).unwrap();
    }

    #[test]
    fn each_object_is_freed_once() {
        for free_order in FreeOrder::ALL {
            let mut order = free_order.indices();
            order.sort_unstable();
            assert!(order.iter().copied().eq(0..order.len()), "{free_order:?}");
        }
    }
}
