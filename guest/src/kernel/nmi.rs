//! The work of non-maskable interrupts: each allocates frames, fills them, checks them and frees
//! them, even if it interrupts an allocation or a free.

use super::churn::{self, release, take};
use super::limits::MAX_CPUS;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use hotmem::{AllocRequest, PfnRange};
use hotmem_guest::pattern;

/// The sizes in frames, of kernel memory and movable memory in turn.
const SIZES: [u64; 6] = [1, 1, 3, 17, 64, 512];

// Statistics and a switch, which order nothing.
static WANTED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static TAKEN: AtomicU64 = AtomicU64::new(0);
static INSIDE: AtomicU64 = AtomicU64::new(0);

/// The statistics of the NMIs.
pub(crate) struct Nmis {
    /// The number of NMIs.
    pub(crate) count: u64,
    /// The number of NMIs that interrupted an allocation or a free.
    pub(crate) inside: u64,
    /// The number of allocations.
    pub(crate) taken: u64,
}

/// Makes NMIs do this work from now on.
pub(crate) fn start() {
    WANTED.store(true, Relaxed);
}

/// Returns the statistics of the NMIs.
pub(crate) fn done() -> Nmis {
    let [count, inside, taken] = [&COUNT, &INSIDE, &TAKEN].map(|count| count.load(Relaxed));
    Nmis { count, inside, taken }
}

/// Does the work of an NMI. Returns false if NMIs are unexpected.
pub(crate) fn answer(cpu: usize) -> bool {
    if !WANTED.load(Relaxed) {
        return false;
    }
    // The pattern must differ from that of the work that was interrupted.
    let seed = pattern::mix((MAX_CPUS + cpu) as u64);
    let count = COUNT.fetch_add(1, Relaxed);
    INSIDE.fetch_add(churn::is_in_engine(cpu).into(), Relaxed);
    let mut held = [PfnRange::EMPTY; SIZES.len()];
    for (frames, size) in held.iter_mut().zip(SIZES) {
        let request = AllocRequest::frames(size);
        let is_movable = (count ^ size) & 1 == 0;
        *frames = take(if is_movable { request.movable() } else { request }, seed);
        TAKEN.fetch_add((!frames.is_empty()).into(), Relaxed);
    }
    held.into_iter().for_each(|frames| release(frames, seed));
    true
}
