//! Handles non-maskable interrupts: each allocates frames, fills them, checks them and frees them,
//! even if the NMI has interrupted an allocation or a free.

use super::churn::{self, allocate_filled, check_and_free};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hotmem::{AllocRequest, PfnRange};
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::pattern;

/// The sizes of an NMI's allocations in frames. An NMI allocates each size as kernel memory or as
/// movable memory, the next NMI the other way round.
const SIZES: [u64; 6] = [1, 1, 3, 17, 64, 512];

// Statistics. All accesses are relaxed, because no other data depend on them.
static NMIS: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static IN_ENGINE: AtomicU64 = AtomicU64::new(0);

/// The statistics of the NMIs.
pub(crate) struct Nmis {
    /// The number of NMIs.
    pub(crate) count: u64,
    /// The number of NMIs that interrupted an allocation or a free.
    pub(crate) in_engine: u64,
    /// The number of allocations.
    pub(crate) allocations: u64,
}

/// Returns the statistics of the NMIs.
pub(crate) fn statistics() -> Nmis {
    let [count, in_engine, allocations] =
        [&NMIS, &IN_ENGINE, &ALLOCATIONS].map(|count| count.load(Relaxed));
    Nmis { count, in_engine, allocations }
}

/// Handles an NMI of the CPU with this number.
pub(crate) fn handle(cpu: usize) {
    // The seed must differ from the seed of the interrupted work, so that the patterns differ.
    let seed = pattern::mix_bits((MAX_CPUS + cpu) as u64);
    let count = NMIS.fetch_add(1, Relaxed);
    IN_ENGINE.fetch_add(churn::is_in_engine(cpu).into(), Relaxed);
    let mut allocations = [PfnRange::EMPTY; SIZES.len()];
    for (frames, size) in allocations.iter_mut().zip(SIZES) {
        let request = AllocRequest::frames(size);
        let is_movable = (count ^ size) & 1 == 0;
        *frames = allocate_filled(if is_movable { request.movable() } else { request }, seed);
        ALLOCATIONS.fetch_add((!frames.is_empty()).into(), Relaxed);
    }
    allocations.into_iter().for_each(|frames| check_and_free(frames, seed));
}
