//! The control path: announce, add, online, offline, remove.
//!
//! ```text
//! announced ──add──▶ offline ──online──▶ online ──isolate──▶ isolated ─┬─ release ──▶ online
//!     ▲                 │  ▲                                           └─ offline ──▶ offline
//!     └───── remove ────┘  └── the device refused
//! ```
//! Every step is *prepare → commit*: prepare does all that can fail, takes all memory it will need
//! and is undone without a trace; commit cannot fail. Between the two stands whatever the platform
//! must agree to (a device's acknowledgement). Long requests ([`Offline`], [`Shrink`]) are objects
//! that are polled with a budget.
//!
//! | file | what |
//! |---|---|
//! | `boot.rs`, `boot_map.rs`, `firmware_map.rs` | the first memory, from the firmware's map |
//! | `reserved.rs` | boot memory that was reserved and is given back |
//! | `announce.rs` | a platform names a range and its words are reserved |
//! | `settings.rs` | what a kernel decides for the whole machine |
//! | `add.rs`, `online.rs` | memory comes |
//! | `stash.rs` | memory for words |
//! | `describe.rs` | memory that holds its own descriptors |
//! | `drain.rs` | isolate a window and move what lives there |
//! | `offline.rs`, `shrink.rs` | all of a range, or as much as can be had |
//! | `remove.rs` | memory goes |
//! | `device.rs` | memory that is a device's, and its way to RAM and back |
//! | `pin.rs` | memory that a device may reach stays |
//! | `poison.rs` | frames that the hardware has given up |
//! | `scan.rs` | what of a zone is in use, without asking what is there |
//! | `zone.rs`, `zone_counts.rs` | spans, counts, contiguity |
//! | `choose.rs`, `policy.rs` | what goes to which zone |
//! | `holes.rs` | which holes beside boot memory count as covered |
//! | `nodes.rs` | which nodes have memory, and where their allocations go on |
//! | `span.rs` | where what is online begins and ends |
//! | `zone_part.rs` | low memory, kernel memory above the boundary, movable memory |
//! | `probes.rs` | how many words that takes (feature `probes`) |

mod add;
mod announce;
mod blocker;
mod blocks;
#[cfg(not(loom))]
mod boot;
#[cfg(not(loom))]
mod boot_map;
mod choose;
mod describe;
mod device;
mod drain;
#[cfg(not(loom))]
mod firmware_map;
mod holes;
mod nodes;
mod offline;
mod online;
mod online_type;
mod pin;
mod poison;
mod policy;
mod probes;
mod progress;
mod remove;
mod reserved;
mod scan;
mod settings;
mod shrink;
mod span;
#[cfg(not(loom))]
mod stash;
mod state;
mod zone;
mod zone_counts;
mod zone_part;

pub use add::{AddError, AddRequest, Addition};
pub use announce::{Announce, AnnounceError, RegionId, WithdrawError};
pub use blocker::{Blocker, Why};
pub use blocks::{MemoryBlock, MemoryBlockState};
#[cfg(not(loom))]
pub use boot_map::{BootError, BootMap, BootRange};
pub use device::DeviceError;
pub use drain::LeaveError;
#[cfg(not(loom))]
pub use nodes::FallbackError;
pub use offline::{Offline, OfflineError};
pub use online::OnlineError;
pub use online_type::OnlineType;
pub use poison::PoisonError;
pub use policy::{Group, Policy};
pub use progress::{Budget, Progress};
pub use remove::{Removal, RemoveError};
pub use settings::Settings;
pub use shrink::{Shrink, ShrinkOptions, Shrunk};
pub use state::State;
pub use zone::ZoneInfo;

use crate::addr::{Pfn, PfnRange};
use crate::frames::Frames;
use crate::known::Known;
use crate::mapping::{AlwaysMapped, Mapping};
use crate::origin::MachineId;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Part, Words};
use core::fmt;
use zone_counts::Zones;

/// The memory-hotplug side of a machine: unique, so everything takes `&mut self` and the kernel
/// chooses its own lock around it. The frame allocator goes on at full speed beside it.
///
/// It owns the kernel's [mapping](crate::Mapping), so that nothing else maps or unmaps memory on
/// its behalf.
///
/// Context: where the kernel's own [`Hooks`](crate::Hooks) and mapping may run, which are called
/// with nothing of the engine locked. Costs are given without what these do.
pub struct Hotplug<'f, P, M = AlwaysMapped> {
    frames: &'f Frames<P>,
    mapping: M,
    zones: Zones,
    settings: Settings,
}

impl<P, M> fmt::Debug for Hotplug<'_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hotplug").field("frames", self.frames).finish_non_exhaustive()
    }
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    pub(crate) fn without_memory(frames: &'f Frames<P>, mapping: M) -> Hotplug<'f, P, M> {
        Hotplug { frames, mapping, zones: Zones::new(), settings: Settings::default() }
    }

    /// The allocator beside it, which can be shared with every CPU.
    #[must_use]
    pub fn frames(&self) -> &'f Frames<P> {
        self.frames
    }

    /// What the kernel decides for the whole machine, to be changed. Cost: O(1).
    pub fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// The kernel's mapping.
    #[must_use]
    pub fn mapping(&self) -> &M {
        &self.mapping
    }

    /// The kernel's mapping, to be changed by the kernel.
    ///
    /// # Safety
    /// It stays the mapping of this machine, and keeps the promises of [`Mapping`].
    pub unsafe fn mapping_mut(&mut self) -> &mut M {
        &mut self.mapping
    }

    /// Which machine this is, among all of the process.
    #[must_use]
    pub fn machine(&self) -> MachineId {
        self.frames.id()
    }

    /// The state at `from` (rounded down to a pageblock), and how far up to `limit` it reaches.
    ///
    /// Cost: O(sections) passed.
    #[must_use]
    pub fn state_at(&self, from: Pfn, limit: Pfn) -> (PfnRange, State) {
        let mut found = None;
        let end = PfnRange::new(from, limit).unwrap_or(PfnRange::EMPTY);
        let mut reached = end.start();
        'sections: for piece in end.sections() {
            // Cheap when all of the section is alike, which it is nearly always.
            let parts = match self.uniform_state(piece) {
                Some(state) => [Some((piece, state)), None],
                None => [None, Some((piece, State::Unknown))],
            };
            if let [Some((piece, state)), _] = parts {
                if *found.get_or_insert(state) != state {
                    break;
                }
                reached = piece.end();
                continue;
            }
            for block in piece.chunks(crate::geometry::PAGEBLOCK_FRAMES as u64) {
                let state = self.uniform_state(block).unwrap_or(State::Unknown);
                if *found.get_or_insert(state) != state {
                    break 'sections;
                }
                reached = block.end();
            }
        }
        let range = PfnRange::new(end.start(), reached).known().unwrap_or(PfnRange::EMPTY);
        (range, found.unwrap_or(State::Unknown))
    }

    /// The state of a part of one section, if all of it is alike.
    fn uniform_state(&self, piece: PfnRange) -> Option<State> {
        if !self.words().covers(piece) {
            return self.words().overlapping(piece).is_none().then_some(State::Unknown);
        }
        let Some(Part { section, blocks: wanted }) = self.words().part_of(piece) else {
            return Some(State::Absent);
        };
        let all = |word: &crate::sync::AtomicU64| match word.load(Ordering::Acquire) & wanted {
            0 => Some(false),
            bits if bits == wanted => Some(true),
            _ => None,
        };
        Some(match (all(&section.present)?, all(&section.online)?) {
            (false, _) if all(&section.movable)? => State::Device,
            (false, _) => State::Absent,
            (true, false) => State::Offline,
            (true, true) if all(&section.movable)? => State::OnlineMovable,
            (true, true) => State::Online,
        })
    }

    /// What is true of each section and pageblock.
    fn words(&self) -> &'f Words {
        self.frames.words()
    }

    /// The parts of `range` by section.
    fn parts(&self, range: PfnRange) -> impl DoubleEndedIterator<Item = Part<'f>> + use<'f, P, M> {
        self.frames.words().parts(range)
    }

    /// The same, with the sections that have no words: of each the first pageblock, which is absent
    /// like all of it.
    fn all_parts(
        &self,
        range: PfnRange,
    ) -> impl Iterator<Item = Result<Part<'f>, PfnRange>> + use<'f, P, M> {
        let words = self.words();
        range.sections().map(|piece| words.part_or_absent(piece))
    }

    /// Whether `range` is whole pageblocks within one announced region.
    fn is_announced(&self, range: PfnRange) -> bool {
        range.is_pageblock_aligned() && self.words().covers(range)
    }
}
