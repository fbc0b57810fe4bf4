//! Allocates and frees the frames of a machine. The allocator does not depend on the platform that
//! adds the memory.
//!
//! Every method takes `&self`, is lock-free and may be called in any context: in interrupts, before
//! the kernel has a heap, and by that heap. No method waits for another CPU.
//!
//! [`Frames`] has the functions for kernels and the fast paths. All other steps are methods of
//! [`CallContext`], the context of one call. They are in folders. A method can be called from another folder
//! only if it is an *entrance* of its folder: `pub(in crate::frames)`, or `pub(super)` in its
//! `mod.rs`.
//!
//! | place | what it answers |
//! |---|---|
//! | `request.rs`, `allocation.rs`, `batch.rs` | What does a kernel ask for, and what does it get? |
//! | `fast/` | How are one frame, a run of up to 32 frames and one whole pageblock allocated and freed by one step? |
//! | `call.rs`, `order.rs`, `exhaustion.rs` | In which context and in which order does a search look, and when is memory "out" and not only "busy"? |
//! | `small/` | How are up to 256 frames found in divided pageblocks? |
//! | `whole/` | How are whole pageblocks claimed, one or many? |
//! | `place/` | How are frames taken at an exact place, and free runs that begin anywhere? |
//! | `divide/` | How does a claimed pageblock become live, and where do its bitmaps come from? |
//! | `free/` | What does a free do in general, and how do its frames become findable? |
//! | `cpu_record.rs`, `cpu_records.rs` | What does the engine remember for each CPU? |
//! | `cpu/` | From which memory do a CPU and a node allocate next? |
//! | `poison/`, `lent/`, `not_ram/`, `parked.rs`, `contents.rs` | Which frames are set aside, and what do free ones contain? |
//! | `reserve/` | Where do words and page tables come from when no memory is free? |
//! | `count/` | How many frames are in which state, and is all metadata consistent? |
//! | `runs.rs`, `suitable.rs` | Where does a run of bits begin, and does a pageblock suit a request? |
//! | `zeroed.rs` | Which free memory is known to be zero, and who is told? |
//! | `wakeup.rs` | What does the allocator share with the reporter? |

mod allocation;
mod batch;
mod call;
mod contents;
mod count;
mod cpu;
mod cpu_record;
mod cpu_records;
mod divide;
mod exhaustion;
mod fast;
mod free;
mod lent;
mod not_ram;
mod order;
mod parked;
mod place;
mod poison;
mod request;
pub(crate) mod reserve;
mod runs;
mod small;
mod suitable;
mod wakeup;
mod whole;
mod zeroed;

pub use allocation::Allocation;
pub(crate) use call::CallContext;
pub use contents::Contents;
pub use count::{Counts, Inconsistency, Metadata};
pub(crate) use count::{bitmaps_of, descriptor_pageblocks};
#[cfg(not(loom))]
pub(crate) use cpu_records::cpu_frames;
pub(crate) use divide::frames_of_bitmaps;
pub use fast::{FastFree, FastPath};
#[cfg(not(loom))]
pub use lent::LentMemory;
pub use lent::MAX_PINS;
#[cfg(not(loom))]
pub(crate) use not_ram::bitmap_frames;
pub use poison::Poisoned;
pub use request::{AllocError, AllocRequest, BadRequest, NodeChoice};
#[cfg(not(loom))]
pub(crate) use reserve::WORD_RESERVE;

use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering, const_unless_loom, untracked};
use crate::words::DirectMap;
use crate::words::SectionWords;
use core::fmt;
use cpu_record::Cpu;
use cpu_records::Cpus;
use not_ram::NotRamBitmaps;
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
    /// Not 0 if a hint may lead to low memory (see `cpu/low_memory.rs`).
    has_low_hint: AtomicU64,
    /// Not 0 once a hint of a node was set (see `cpu/node_hints.rs`).
    has_node_hints: untracked::AtomicU64,
    wakeup: Wakeup,
    /// The contents of free memory; set before other CPUs use the allocator.
    contents: untracked::AtomicU64,
    /// Not 0 if free memory that is known to be zero is marked as such.
    keeps_zero_marks: untracked::AtomicU64,
    /// The number of searches that are marking words as words without runs.
    marking_searches: AtomicU64,
    pins: lent::Pins,
    poison: poison::PoisonTable,
    not_ram: NotRamBitmaps,
    /// Isolated memory that an allocation may take back.
    parked: parked::ParkedRanges,
    /// Frames for the words of memory that will be added.
    #[cfg(not(loom))]
    word_reserve: reserve::WordReserve,
    /// Frames for the page tables and descriptors of memory that will be added.
    table_reserve: reserve::table_reserve::TableReserve,
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
                keeps_zero_marks: untracked::AtomicU64::new(0),
                marking_searches: AtomicU64::new(0),
                pins: lent::Pins::new(),
                poison: poison::PoisonTable::new(),
                not_ram: NotRamBitmaps::none(),
                parked: parked::ParkedRanges::none(),
                #[cfg(not(loom))]
                word_reserve: reserve::WordReserve::empty(),
                table_reserve: reserve::table_reserve::TableReserve::empty(),
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
        // Try the fast paths of the most frequent requests first. If the request is a constant,
        // the compiler chooses the path.
        let zone = request.zones()[0];
        let near = match request.unrestricted_unit() {
            Some(Unit::Frame) => {
                self.alloc_frame(zone).and_then(|start| PfnRange::with_len(start, 1))
            }
            Some(Unit::Pageblock) => self
                .alloc_pageblock(zone)
                .and_then(|(start, _)| PfnRange::with_len(start, PAGEBLOCK_FRAMES as u64)),
            Some(Unit::Run(shape)) => self
                .alloc_run(zone, shape)
                .and_then(|start| PfnRange::with_len(start, request.frames)),
            Some(Unit::LongRun(shape)) => self
                .alloc_long_run(zone, shape)
                .and_then(|start| PfnRange::with_len(start, request.frames)),
            None => match request.node_of_frame() {
                Some(node) => match self.take_frame_near(node, zone) {
                    Some(start) => PfnRange::with_len(start, 1),
                    None => return self.alloc_frame_near_slowly(node, request),
                },
                None => None,
            },
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
            self.alloc_at(start, request).map(|(range, _)| range)
        } else if request.is_small() {
            self.alloc_small(request)
        } else {
            self.alloc_blocks(request).map(|(range, _)| range)
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
