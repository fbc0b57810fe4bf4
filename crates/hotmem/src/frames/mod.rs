//! Allocates and frees the frames of a machine. The allocator does not depend on the platform that
//! adds the memory.
//!
//! Every method takes `&self`, is lock-free and may be called in any context: in interrupts, before
//! the kernel has a heap, and by that heap. No method waits for another CPU.
//!
//! | file | contents |
//! |---|---|
//! | `request.rs` | requests, and the errors of allocations and frees |
//! | `allocation.rs` | owned allocations; raw ranges |
//! | `batch.rs` | many single frames in one call |
//! | `fast.rs` | allocation of one frame at the CPU's cursor, or from its hint |
//! | `fast_path.rs` | the fast paths of single frames, for interfaces to other languages |
//! | `found_frame.rs` | the result of a fast path of allocation |
//! | `whole.rs` | allocation and free of one whole pageblock |
//! | `small.rs` | allocation of up to 64 frames: a run of bits of a divided pageblock's bitmap |
//! | `blocks.rs` | allocation of whole pageblocks, in any number: bits of section words |
//! | `claim.rs`, `claim_runs.rs` | claims of one pageblock, and of runs of pageblocks |
//! | `runs.rs` | runs of set bits in a word |
//! | `exact.rs` | allocation at an exact place |
//! | `contiguous.rs` | allocation of any free run, by a search of all memory |
//! | `free.rs` | free of any sub-range |
//! | `free_frame.rs` | free of one frame |
//! | `stale.rs` | claims of pageblocks whose block states may be stale |
//! | `split.rs` | the step that makes a claimed pageblock live: divided, or allocated as a whole |
//! | `first_bitmaps.rs` | the step that makes the bitmaps of a claimed pageblock and of those beside it |
//! | `findable.rs` | the steps that make free frames findable; pageblocks that become wholly free |
//! | `order.rs` | the order of a search: nodes and zones |
//! | `hints.rs`, `cpu.rs`, `cpus.rs` | the pageblocks and the section that a CPU allocates from next |
//! | `low_memory.rs` | the steps by which low memory goes last |
//! | `node_hints.rs` | the pageblocks that requests near a node allocate from next |
//! | `cursors.rs` | the word that a CPU's next single frame comes from |
//! | `parked.rs` | memory that is isolated for requests that wait, which allocations may take back |
//! | `lent.rs`, `frame_set.rs` | memory that is lent to the host, and the record of it |
//! | `pins.rs`, `pin_table.rs` | pinned memory, which the host must not take |
//! | `poison.rs`, `poison_table.rs`, `poison_pages.rs` | frames with a hardware memory error |
//! | `exhaustion.rs` | the decision between "out of memory" and "busy" |
//! | `wakeup.rs` | the step that wakes the reporter; what it shares with the allocator |
//! | `contents.rs` | the contents of free memory |
//! | `allocated.rs` | the number of frames that callers have allocated, for platforms that ask for it |
//! | `counts.rs`, `headroom.rs` | counts of frames by state; the check that enough frames are free |
//! | `bloom_filter.rs` | the set of hinted pageblocks and sections that `headroom.rs` has counted |
//! | `neighbourhood_set.rs` | the set of neighbourhoods in which CPUs work, for `claim.rs` |
//! | `validate.rs` | a check of all metadata |
//! | `metadata.rs` | the list of metadata |
//! | `for_words.rs`, `word_reserve.rs` | frames for words, and the reserve of such frames |
//! | `for_tables.rs`, `table_reserve.rs` | frames for page tables and descriptors, and the reserve of such frames |
//! | `not_ram.rs`, `not_ram_bitmaps.rs` | the frames of boot memory that are no RAM |

mod allocated;
mod allocation;
mod batch;
mod blocks;
mod bloom_filter;
mod claim;
mod claim_runs;
mod contents;
mod contiguous;
mod counts;
mod cpu;
mod cpus;
mod cursors;
mod exact;
mod exhaustion;
mod fast;
mod fast_path;
mod findable;
mod first_bitmaps;
mod for_tables;
#[cfg(not(loom))]
mod for_words;
mod found_frame;
#[cfg(not(loom))]
mod frame_set;
mod free;
mod free_frame;
mod headroom;
mod hints;
#[cfg(not(loom))]
mod lent;
mod low_memory;
mod metadata;
mod neighbourhood_set;
mod node_hints;
mod not_ram;
mod not_ram_bitmaps;
mod order;
mod parked;
mod pin_table;
mod pins;
mod poison;
#[cfg(not(loom))]
mod poison_pages;
mod poison_table;
mod request;
mod runs;
mod small;
mod split;
mod stale;
mod suitable;
pub(crate) mod table_reserve;
mod validate;
mod wakeup;
mod whole;
mod without_runs;
#[cfg(not(loom))]
mod word_reserve;

pub use allocation::Allocation;
pub use contents::Contents;
pub use counts::Counts;
#[cfg(not(loom))]
pub(crate) use cpus::cpu_frames;
pub(crate) use exhaustion::HidingSteps;
pub use fast_path::{FastFree, FastPath};
#[cfg(not(loom))]
pub use lent::LentMemory;
pub use metadata::Metadata;
pub(crate) use metadata::descriptor_pageblocks;
#[cfg(not(loom))]
pub(crate) use not_ram_bitmaps::bitmap_frames;
pub use pin_table::MAX_PINS;
pub use poison_table::Poisoned;
pub use request::{AllocError, AllocRequest, BadRequest, NodeChoice};
pub use validate::Inconsistency;
#[cfg(not(loom))]
pub(crate) use word_reserve::WORD_RESERVE;

use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering, const_unless_loom, untracked};
use crate::words::DirectMap;
use crate::words::SectionWords;
use core::fmt;
use cpu::Cpu;
use cpus::Cpus;
use not_ram_bitmaps::NotRamBitmaps;
use request::Unit;
use wakeup::Wakeup;

/// All frames of a machine, and their allocator. A kernel has one such value, usually a `static`.
/// The value and its [`Hotplug`](crate::Hotplug) are called an *instance*: a process, such as a
/// test, can have several.
///
/// The value has no memory until [`Hotplug::bootstrap`](crate::Hotplug::bootstrap) adds the boot
/// memory.
pub struct Frames<P> {
    platform: P,
    /// The identity of the instance; 0 until the instance is started.
    id: untracked::AtomicU64,
    /// The base of the direct map; set once, before the first frame is added.
    direct_map: untracked::AtomicPtr<u8>,
    words: SectionWords,
    cpus: Cpus,
    /// The last pageblock of low memory, encoded as a hint, so that a hint can be compared with it;
    /// `NO_HINT` if there is no low memory. Set once, before the first frame is added.
    last_low_hint: untracked::AtomicU64,
    /// Not 0 if a hint may lead to low memory (see `low_memory.rs`).
    has_low_hint: AtomicU64,
    /// Not 0 once a hint of a node was set (see `node_hints.rs`).
    has_node_hints: untracked::AtomicU64,
    wakeup: Wakeup,
    /// The contents of free memory; set before other CPUs use the allocator.
    contents: untracked::AtomicU64,
    pins: pin_table::Pins,
    poison: poison_table::PoisonTable,
    not_ram: NotRamBitmaps,
    /// Isolated memory that an allocation may take back.
    parked: parked::ParkedRanges,
    /// Frames for the words of memory that will be added.
    #[cfg(not(loom))]
    word_reserve: word_reserve::WordReserve,
    /// Frames for the page tables and descriptors of memory that will be added.
    table_reserve: table_reserve::TableReserve,
}

impl<P> Frames<P> {
    const_unless_loom! {
        /// Returns an instance without memory.
        #[must_use]
        pub fn new(platform: P) -> Frames<P> {
            Frames {
                platform,
                id: untracked::AtomicU64::new(0),
                direct_map: untracked::AtomicPtr::new(core::ptr::null_mut()),
                words: SectionWords::new(),
                cpus: Cpus::new(),
                last_low_hint: untracked::AtomicU64::new(crate::words::NO_HINT),
                has_low_hint: AtomicU64::new(0),
                has_node_hints: untracked::AtomicU64::new(0),
                wakeup: Wakeup::new(),
                contents: untracked::AtomicU64::new(0),
                pins: pin_table::Pins::new(),
                poison: poison_table::PoisonTable::new(),
                not_ram: NotRamBitmaps::none(),
                parked: parked::ParkedRanges::none(),
                #[cfg(not(loom))]
                word_reserve: word_reserve::WordReserve::empty(),
                table_reserve: table_reserve::TableReserve::empty(),
            }
        }
    }

    /// Returns the instance's identity.
    pub(crate) fn id(&self) -> InstanceId {
        // Relaxed: the id is set before the instance makes any token.
        InstanceId(self.id.load(Ordering::Relaxed))
    }

    /// Starts the instance. Returns false if it was started before.
    #[cfg(not(loom))]
    pub(crate) fn start(&self) -> bool {
        let id = crate::origin::unique();
        self.id.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Undoes [`start`](Self::start) after a failed boot.
    #[cfg(not(loom))]
    pub(crate) fn stop(&self) {
        self.id.store(0, Ordering::Relaxed);
    }

    /// Returns the records of the CPUs that may have hints or hiding steps in flight.
    fn cpus_with_records(&self) -> impl Iterator<Item = &Cpu> {
        self.cpus.listed()
    }

    /// Makes a record for each CPU with a number below `cpus`. Puts the records that [`Cpus`] has
    /// no space for in `memory`. Boot only, single-threaded.
    ///
    /// # Safety
    /// `memory` is aligned to a frame, has [`cpu_frames`] frames, and belongs to this instance
    /// permanently.
    #[cfg(not(loom))]
    pub(crate) unsafe fn install_cpus(&self, cpus: u32, memory: *mut u8) {
        // SAFETY: the caller has made the same promises.
        unsafe { self.cpus.install(cpus, memory) };
    }

    /// Returns the state that frees share with the reporter.
    pub(crate) fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }

    /// Returns the list of isolated memory that an allocation may take back.
    pub(crate) fn parked(&self) -> &parked::ParkedRanges {
        &self.parked
    }

    pub(crate) fn direct_map(&self) -> DirectMap {
        // Relaxed: the base is set before the first region is announced (Release), and only code
        // that owns frames reads it.
        DirectMap::from_base(self.direct_map.load(Ordering::Relaxed))
    }

    pub(crate) fn set_direct_map(&self, map: DirectMap) {
        self.direct_map.store(map.base(), Ordering::Relaxed);
    }

    /// Returns the words of all sections.
    #[inline]
    pub(crate) fn words(&self) -> &SectionWords {
        &self.words
    }
}

impl<P: Platform> Frames<P> {
    /// Returns the platform that the instance runs on.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Allocates frames that the caller owns by number.
    ///
    /// # Errors
    /// [`AllocError`]. The failed call changed nothing.
    #[inline(always)]
    pub(crate) fn alloc_range(&self, request: AllocRequest) -> Result<PfnRange, AllocError> {
        // Try the fast paths of the two most frequent requests first. If the request is a constant,
        // the compiler chooses the path.
        let zone = request.zones()[0];
        let near = match request.unrestricted_unit() {
            Some(Unit::Frame) => {
                self.alloc_frame(zone).and_then(|start| PfnRange::with_len(start, 1))
            }
            Some(Unit::Pageblock) => self
                .alloc_pageblock(zone)
                .and_then(|start| PfnRange::with_len(start, PAGEBLOCK_FRAMES as u64)),
            None => None,
        };
        match near {
            Some(range) => Ok(range),
            None => self.alloc_anywhere(request),
        }
    }

    /// Does the same as [`alloc_range`](Self::alloc_range), without a fast path.
    #[inline(never)]
    fn alloc_anywhere(&self, request: AllocRequest) -> Result<PfnRange, AllocError> {
        let request = &request;
        request.check()?;
        if let Some(start) = request.place {
            self.alloc_at(start, request)
        } else if request.is_small() {
            self.alloc_small(request)
        } else {
            self.alloc_blocks(request)
        }
    }

    #[inline(never)]
    fn cpu(&self) -> &Cpu {
        self.cpus.get(self.platform.cpu())
    }

    /// Does the same as [`cpu`](Self::cpu) without a function call, for the fast paths.
    #[inline(always)]
    fn cpu_inlined(&self) -> &Cpu {
        self.cpus.get_inlined(self.platform.cpu())
    }

    /// Returns the caller's CPU, and records that it may have hints or hiding steps in flight.
    fn listed_cpu(&self) -> &Cpu {
        self.cpus.list(self.platform.cpu())
    }
}

impl<P> fmt::Debug for Frames<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("instance", &self.id()).finish_non_exhaustive()
    }
}
