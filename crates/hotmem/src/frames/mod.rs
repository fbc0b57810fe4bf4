//! The frame allocator: hands out and takes back, and never knows why memory came.
//!
//! Everything takes `&self`, is lock-free and may be called from any context, interrupts included,
//! before there is a heap and underneath the kernel's heap. Nothing ever waits for another CPU.
//!
//! | file | what |
//! |---|---|
//! | `want.rs` | what can be asked for, and how it can fail |
//! | `small.rs` | up to 64 frames: a run of bits in one word of a split pageblock |
//! | `blocks.rs` | whole pageblocks, and up to any length: bits of section words |
//! | `exact.rs` | an exact place |
//! | `free.rs` | any sub-range back |
//! | `split.rs` | a claimed pageblock becomes live: split, or handed out whole |
//! | `order.rs` | on which node it looks first |
//! | `hints.rs` | which pageblock and section a CPU tries next |
//! | `pins.rs` | what the host must not be given |
//! | `poison.rs` | what the hardware has given up never comes back |
//! | `quiet.rs` | when "out of memory" may be said |
//! | `words.rs` | a range of frames as section words |
//! | `bell.rs` | how what becomes free finds the reporter |
//! | `contents.rs` | what free memory holds |
//! | `counts.rs`, `room.rs` | how much there is; whether that is enough |
//! | `validate.rs` | whether everything agrees |
//! | `metadata.rs` | what the engine keeps for itself |
//! | `reserved.rs` | which frames of boot memory are still reserved |

mod bell;
mod blocks;
mod contents;
mod counts;
mod exact;
mod free;
mod hints;
mod metadata;
mod order;
mod pins;
mod poison;
mod quiet;
mod reserved;
mod room;
mod small;
mod split;
mod validate;
mod want;
mod words;

pub use contents::Contents;
pub use counts::Counts;
pub use metadata::Metadata;
pub use pins::{LendError, MAX_PINS, PinError};
pub(crate) use poison::Obstacle;
pub use poison::{MAX_POISONED, Poisoned};
#[cfg(not(loom))]
pub(crate) use reserved::bitmap_frames;
pub use validate::Fault;
pub use want::{AllocError, BadWant, FreeError, FreeErrorKind, Want};

use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS};
use crate::origin::MachineId;
use crate::platform::{DirectMap, Platform};
use crate::region::{MAX_REGIONS, Region, Zone};
use crate::section::{Counter, Line, Section};
use crate::sync::{AtomicUsize, Ordering, array_of, const_unless_loom, settled};
use bell::Bell;
use core::fmt;
use hints::{Cpu, MAX_CPUS};
use order::NodeOrder;
use reserved::Reserved;
use want::Unit;

/// All frames of a machine. One per machine, usually a `static`.
///
/// Empty until [`Hotplug::bootstrap`](crate::Hotplug::bootstrap) gives it the boot memory.
pub struct Frames<P> {
    platform: P,
    /// Told from all other machines by this; 0 until it is started.
    id: settled::AtomicU64,
    /// Base of the direct map; set once, before the first frame is there.
    direct_map: settled::AtomicPtr<u8>,
    /// Slots below this number have been used.
    region_slots: settled::AtomicUsize,
    regions: [Region; MAX_REGIONS],
    cpus: [Cpu; MAX_CPUS],
    /// CPUs below this number have hints or have moved something.
    cpus_seen: AtomicUsize,
    nodes: NodeOrder,
    bell: Bell,
    /// What free memory holds; set before anybody else is there.
    contents: settled::AtomicU64,
    pins: pins::Pins,
    poison: poison::Table,
    reserved: Reserved,
}

/// A pageblock that was looked up: its words, its counter, its place.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) region: &'a Region,
    pub(crate) section: &'a Section,
    pub(crate) counter: &'a Counter,
    slot: usize,
    /// Number of the section in its region.
    pub(crate) index: usize,
    /// Number of the pageblock in its section.
    pub(crate) bit: usize,
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
                region_slots: settled::AtomicUsize::new(0),
                regions: array_of![Region::unused(); MAX_REGIONS],
                cpus: array_of![Cpu::new(); MAX_CPUS],
                cpus_seen: AtomicUsize::new(0),
                nodes: NodeOrder::new(),
                bell: Bell::new(),
                contents: settled::AtomicU64::new(0),
                pins: pins::Pins::new(),
                poison: poison::Table::new(),
                reserved: Reserved::none(),
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

    /// The CPUs that may have hints or be moving something.
    fn seen_cpus(&self) -> &[Cpu] {
        &self.cpus[..self.cpus_seen.load(Ordering::Acquire).min(MAX_CPUS)]
    }

    /// Whether there is a reporter, and whether it sleeps.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(crate) fn direct_map(&self) -> DirectMap {
        // Relaxed: set before the first region is announced (Release), read by holders of frames.
        DirectMap::from_base(self.direct_map.load(Ordering::Relaxed))
    }

    pub(crate) fn set_direct_map(&self, map: DirectMap) {
        self.direct_map.store(map.base(), Ordering::Relaxed);
    }

    /// The slots that may hold a region.
    pub(crate) fn regions(&self) -> &[Region] {
        // Acquire pairs with `use_slot`.
        let used = self.region_slots.load(Ordering::Acquire).min(MAX_REGIONS);
        &self.regions[..used]
    }

    /// All slots, used or not.
    pub(crate) fn slots(&self) -> &[Region; MAX_REGIONS] {
        &self.regions
    }

    /// From now on slot `slot` is looked at. Release: whoever looks sees its words.
    pub(crate) fn use_slot(&self, slot: usize) {
        self.region_slots.fetch_max(slot + 1, Ordering::Release);
    }

    /// The region that has this frame, and the frame's distance from the region's base.
    #[inline]
    pub(crate) fn find(&self, pfn: Pfn) -> Option<(usize, usize)> {
        self.regions()
            .iter()
            .enumerate()
            .find_map(|(slot, region)| region.offset_of(pfn).map(|offset| (slot, offset)))
    }

    /// The pageblock number `bit` of section `index` of region `slot`.
    #[inline]
    pub(crate) fn block(&self, slot: usize, index: usize, bit: usize) -> Option<Block<'_>> {
        let region = self.regions.get(slot)?;
        let (section, counter) = region.block(index, bit)?;
        Some(Block { region, section, counter, slot, index, bit })
    }

    /// The pageblock that has this frame.
    pub(crate) fn block_of(&self, pfn: Pfn) -> Option<Block<'_>> {
        let (slot, offset) = self.find(pfn)?;
        self.block_at(slot, offset)
    }

    /// The pageblock at this distance from the base of region `slot`.
    #[inline]
    pub(crate) fn block_at(&self, slot: usize, offset: usize) -> Option<Block<'_>> {
        let (index, bit) = (offset / SECTION_FRAMES, offset % SECTION_FRAMES / PAGEBLOCK_FRAMES);
        self.block(slot, index, bit)
    }
}

impl<P: Platform> Frames<P> {
    /// What it runs on.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Allocates what is wanted.
    ///
    /// Context: any. Calls nothing back, holds no locks, never waits. Cost: up to 64 frames from
    /// the CPU's own pageblock 2 atomic read-modify-writes, a whole pageblock 1; a search is a few
    /// loads a level of the tree whatever the size of the machine. The memory's contents are
    /// undefined.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    #[inline]
    pub fn alloc(&self, want: Want) -> Result<PfnRange, AllocError> {
        // The two most frequent wishes; decided while compiling where the wish is a constant.
        let near = match want.is_any() {
            Some(Unit::Frame) => self.alloc_frame(want.zones()[0]),
            Some(Unit::Pageblock) => self.alloc_pageblock(want.zones()[0]),
            None => None,
        };
        near.and_then(|start| PfnRange::with_len(start, want.len()))
            .map_or_else(|| self.alloc_anywhere(&want), Ok)
    }

    #[inline(never)]
    fn alloc_anywhere(&self, want: &Want) -> Result<PfnRange, AllocError> {
        want.check()?;
        if let Some(at) = want.place() {
            self.alloc_at(at, want)
        } else if want.is_small() {
            self.alloc_small(want)
        } else {
            self.alloc_blocks(want)
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

impl Block<'_> {
    /// Its first frame.
    #[inline]
    pub(crate) fn start(&self) -> Pfn {
        self.region.pfn_at((self.index * SECTION_PAGEBLOCKS + self.bit) * PAGEBLOCK_FRAMES)
    }

    /// Its frames.
    pub(crate) fn range(&self) -> PfnRange {
        // Empty for what an old hint names: see `Region::pfn_at`.
        PfnRange::with_len(self.start(), PAGEBLOCK_FRAMES as u64).unwrap_or(PfnRange::EMPTY)
    }

    /// The number within it of one of its frames.
    #[allow(clippy::cast_possible_truncation, reason = "below 512")]
    pub(crate) fn offset_of(&self, frame: Pfn) -> usize {
        (frame.number() - self.start().number()) as usize
    }

    /// Its bit in the section's words.
    #[inline]
    pub(crate) fn mask(&self) -> u64 {
        1 << self.bit
    }

    /// Its line of frame bits, once the section has lines.
    #[inline]
    pub(crate) fn line(&self) -> Option<&Line> {
        self.section.line(self.bit)
    }

    #[inline]
    pub(crate) fn zone(&self) -> Zone {
        self.section.zone_of(self.bit)
    }
}
