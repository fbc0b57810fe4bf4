//! Handles non-maskable interrupts: each allocates frames, fills them, checks them and frees them,
//! even if the NMI has interrupted an allocation or a free.

use crate::kernel::churn::{self, allocate_filled, check_and_free};
use crate::kernel::limits::MAX_CPUS;
use crate::kernel::nmi_statistics::NmiStatistics;
use core::convert::Infallible;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use hotmem::{AllocRequest, PfnRange};
use hotmem_guest::pattern;

/// The sizes of an NMI's allocations in frames. An NMI allocates each size as kernel memory or as
/// movable memory, the next NMI the other way round.
const SIZES: [u64; 6] = [1, 1, 3, 17, 64, 512];

// A switch and statistics. All accesses are relaxed, because no other data depend on them.
static ENABLED: AtomicBool = AtomicBool::new(false);
static NMIS: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static IN_ENGINE: AtomicU64 = AtomicU64::new(0);

/// NMIs that allocate and free frames.
pub(crate) struct Nmis(());

impl Nmis {
    /// Makes NMIs allocate and free frames from now on.
    pub(crate) fn start() -> Result<Self, Infallible> {
        ENABLED.store(true, Relaxed);
        Ok(Nmis(()))
    }

    /// Returns the statistics of the NMIs.
    pub(crate) fn statistics(&self) -> NmiStatistics {
        let [count, in_engine, allocations] =
            [&NMIS, &IN_ENGINE, &ALLOCATIONS].map(|count| count.load(Relaxed));
        NmiStatistics { count, in_engine, allocations }
    }
}

/// Handles an NMI. Returns false if the run expects no NMIs.
pub(super) fn handle(cpu: usize) -> bool {
    if !ENABLED.load(Relaxed) {
        return false;
    }
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
    true
}
