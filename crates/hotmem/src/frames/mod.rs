//! The frame allocator: hands out and takes back, and never knows why memory came.
//!
//! Everything takes `&self`, is lock-free and may be called from any context, interrupts included,
//! before there is a heap and underneath the kernel's heap. Nothing ever waits for another CPU.
//!
//! | file | what |
//! |---|---|
//! | `request.rs` | what can be asked for, and how it can fail |
//! | `allocation.rs` | the owner of allocated frames; raw ranges |
//! | `batch.rs` | many single frames in one call |
//! | `small.rs` | up to 64 frames: a run of bits in one word of a split pageblock |
//! | `blocks.rs` | whole pageblocks, and up to any length: bits of section words |
//! | `exact.rs` | an exact place |
//! | `free.rs` | any sub-range back |
//! | `split.rs` | a claimed pageblock becomes live: split, or handed out whole |
//! | `order.rs` | on which node it looks first |
//! | `hints.rs`, `cpu.rs` | which pageblock and section a CPU tries next |
//! | `pins.rs`, `pin_table.rs` | what the host must not be given |
//! | `poison.rs`, `poison_table.rs` | what the hardware has given up never comes back |
//! | `exhaustion.rs` | when "out of memory" may be said |
//! | `wakeup.rs` | how what becomes free finds the reporter |
//! | `contents.rs` | what free memory holds |
//! | `counts.rs`, `headroom.rs` | how much there is; whether that is enough |
//! | `validate.rs` | whether everything agrees |
//! | `metadata.rs` | what the engine keeps for itself |
//! | `for_words.rs`, `word_reserve.rs` | frames for its words, and what it keeps for some |
//! | `reserved.rs`, `reserved_bitmaps.rs` | which frames of boot memory are still reserved |

mod allocation;
mod batch;
mod blocks;
mod contents;
mod counts;
mod cpu;
mod exact;
mod exhaustion;
#[cfg(not(loom))]
mod for_words;
mod free;
mod headroom;
mod hints;
mod metadata;
mod order;
mod pin_table;
mod pins;
mod poison;
mod poison_table;
mod request;
mod reserved;
mod reserved_bitmaps;
mod small;
mod split;
mod validate;
mod wakeup;
#[cfg(not(loom))]
mod word_reserve;

pub use allocation::Allocation;
pub use contents::Contents;
pub use counts::Counts;
pub use metadata::Metadata;
pub(crate) use metadata::kept;
pub use pin_table::MAX_PINS;
pub use pins::{LendError, PinError};
pub(crate) use poison::Obstacle;
pub use poison_table::{MAX_POISONED, Poisoned};
pub use request::{AllocError, AllocRequest, BadRequest, FreeError, FreeErrorKind};
#[cfg(not(loom))]
pub(crate) use reserved_bitmaps::bitmap_frames;
pub use validate::Fault;
#[cfg(not(loom))]
pub(crate) use word_reserve::WORD_RESERVE;

use crate::addr::PfnRange;
use crate::origin::MachineId;
use crate::platform::{DirectMap, Platform};
use crate::sync::{AtomicUsize, Ordering, array_of, const_unless_loom, settled};
use crate::words::Words;
use core::fmt;
use cpu::{Cpu, MAX_CPUS};
use request::Unit;
use reserved_bitmaps::Reserved;
use wakeup::Wakeup;

/// All frames of a machine. One per machine, usually a `static`.
///
/// Empty until [`Hotplug::bootstrap`](crate::Hotplug::bootstrap) gives it the boot memory.
pub struct Frames<P> {
    platform: P,
    /// Told from all other machines by this; 0 until it is started.
    id: settled::AtomicU64,
    /// Base of the direct map; set once, before the first frame is there.
    direct_map: settled::AtomicPtr<u8>,
    words: Words,
    cpus: [Cpu; MAX_CPUS],
    /// CPUs below this number have hints or have moved something.
    cpus_seen: AtomicUsize,
    /// The number of the first frame above low memory; set once, before the first frame is there.
    low_end: settled::AtomicU64,
    wakeup: Wakeup,
    /// What free memory holds; set before anybody else is there.
    contents: settled::AtomicU64,
    pins: pin_table::Pins,
    poison: poison_table::Table,
    reserved: Reserved,
    /// Frames for words of memory that is to come.
    #[cfg(not(loom))]
    word_reserve: word_reserve::WordReserve,
}

impl<P> Frames<P> {
    const_unless_loom! {
        /// A machine without memory.
        #[must_use]
        pub fn new(platform: P) -> Frames<P> {
            Frames {
                platform,
                id: settled::AtomicU64::new(0),
                direct_map: settled::AtomicPtr::new(core::ptr::null_mut()),
                words: Words::new(),
                cpus: array_of![Cpu::new(); MAX_CPUS],
                cpus_seen: AtomicUsize::new(0),
                low_end: settled::AtomicU64::new(0),
                wakeup: Wakeup::new(),
                contents: settled::AtomicU64::new(0),
                pins: pin_table::Pins::new(),
                poison: poison_table::Table::new(),
                reserved: Reserved::none(),
                #[cfg(not(loom))]
                word_reserve: word_reserve::WordReserve::empty(),
            }
        }
    }

    /// Which machine this is.
    pub(crate) fn id(&self) -> MachineId {
        // Relaxed: set before the machine has made anything that is compared by it.
        MachineId(self.id.load(Ordering::Relaxed))
    }

    /// The caller starts the machine, unless somebody has.
    #[cfg(not(loom))]
    pub(crate) fn start(&self) -> bool {
        let id = crate::origin::unique();
        self.id.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Nothing has come of it.
    #[cfg(not(loom))]
    pub(crate) fn stop(&self) {
        self.id.store(0, Ordering::Relaxed);
    }

    /// The CPUs that may have hints or be moving something.
    fn seen_cpus(&self) -> &[Cpu] {
        &self.cpus[..self.cpus_seen.load(Ordering::Acquire).min(MAX_CPUS)]
    }

    /// Whether there is a reporter, and whether it sleeps.
    pub(crate) fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }

    pub(crate) fn direct_map(&self) -> DirectMap {
        // Relaxed: set before the first region is announced (Release), read by holders of frames.
        DirectMap::from_base(self.direct_map.load(Ordering::Relaxed))
    }

    pub(crate) fn set_direct_map(&self, map: DirectMap) {
        self.direct_map.store(map.base(), Ordering::Relaxed);
    }

    /// What is true of each section and pageblock.
    #[inline]
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }
}

impl<P: Platform> Frames<P> {
    /// What it runs on.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Allocates frames that the caller owns by number.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    #[inline]
    pub(crate) fn alloc_range(&self, request: AllocRequest) -> Result<PfnRange, AllocError> {
        // The two most frequent wishes; decided while compiling where the wish is a constant.
        let near = match request.is_any() {
            Some(Unit::Frame) => self.alloc_frame(request.zones()[0]),
            Some(Unit::Pageblock) => self.alloc_pageblock(request.zones()[0]),
            None => None,
        };
        near.and_then(|start| PfnRange::with_len(start, request.len()))
            .map_or_else(|| self.alloc_anywhere(&request), Ok)
    }

    #[inline(never)]
    fn alloc_anywhere(&self, request: &AllocRequest) -> Result<PfnRange, AllocError> {
        request.check()?;
        if let Some(at) = request.place() {
            self.alloc_at(at, request)
        } else if request.is_small() {
            self.alloc_small(request)
        } else {
            self.alloc_blocks(request)
        }
    }

    #[inline]
    fn cpu(&self) -> &Cpu {
        &self.cpus[self.platform.cpu() % MAX_CPUS]
    }

    /// The caller's CPU, which is going to have hints or to move something.
    fn seen_cpu(&self) -> &Cpu {
        let number = self.platform.cpu() % MAX_CPUS;
        if self.cpus_seen.load(Ordering::Relaxed) <= number {
            // Release pairs with `seen_cpus`.
            self.cpus_seen.fetch_max(number + 1, Ordering::Release);
        }
        &self.cpus[number]
    }
}

impl<P> fmt::Debug for Frames<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("machine", &self.id()).finish_non_exhaustive()
    }
}
