//! The control path: announces, adds, onlines, offlines and removes memory.
//!
//! ```text
//! announced ──add──▶ offline ──online──▶ online ──isolate──▶ isolated ─┬─ release ──▶ online
//!     ▲                 │  ▲                                           └─ offline ──▶ offline
//!     └───── remove ────┘  └── (a device refused the removal)
//! ```
//! Every step can be done in two halves, *prepare* and *commit*. Prepare does everything that can
//! fail, and allocates all memory that the step will need. If the step is abandoned, everything
//! that prepare did is undone. Commit cannot fail. Between the two halves, the platform agrees or
//! refuses: for example, a device acknowledges. Long requests ([`Offline`], [`Shrink`]) are objects
//! that the kernel polls with a budget.
//!
//! | file | what it does |
//! |---|---|
//! | `boot.rs`, `boot_map.rs`, `firmware_map.rs` | bring boot memory online by the firmware's map |
//! | `announce.rs` | announces and withdraws regions |
//! | `settings.rs` | holds the kernel's settings for the whole machine |
//! | `add.rs`, `online.rs` | add memory and put it online |
//! | `online_type.rs` | defines the types of allocations that memory can come online for |
//! | `word_memory.rs` | allocates memory for words |
//! | `describe.rs` | has the kernel write descriptors, and marks pageblocks that hold them |
//! | `spare_frames.rs` | holds frames for page tables and descriptors |
//! | `drain.rs` | isolates a window and migrates what is allocated in it |
//! | `poll.rs`, `budget.rs` | hold what the steps of a poll work with |
//! | `offline.rs`, `shrink/` | take offline all of a range, or as much of it as possible |
//! | `remove.rs` | removes memory |
//! | `device.rs` | detaches device memory, and converts it to RAM and back |
//! | `pin.rs` | keeps from the host the memory that a device may access |
//! | `poison.rs` | quarantines poisoned frames |
//! | `state.rs`, `blocks.rs` | report the state of a range and of memory blocks |
//! | `scan.rs` | finds the online pageblocks of a zone, and counts their used frames |
//! | `zone.rs`, `zone_counts.rs` | keep each zone's span and counts, and whether it is contiguous |
//! | `choose.rs`, `policy.rs` | choose the zone that memory comes online in |
//! | `holes.rs` | counts the described holes beside boot memory |
//! | `nodes.rs` | lists the nodes with memory |
//! | `span.rs` | searches for the ends of online memory |
//! | `zone_part.rs` | divides a node's memory into low, kernel and movable memory |
//! | `probes.rs` | counts the words that the zone code reads (feature `probes`) |

mod add;
mod announce;
mod blocks;
#[cfg(not(loom))]
mod boot;
#[cfg(not(loom))]
mod boot_map;
mod budget;
mod check;
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
mod poll;
mod probes;
mod remove;
mod scan;
mod settings;
mod shrink;
mod span;
mod spare_frames;
mod state;
#[cfg(not(loom))]
mod word_memory;
mod zone;
mod zone_counts;
mod zone_part;

pub use add::{AddError, AddRequest, Addition};
pub use announce::{Announce, AnnounceError, RegionId};
#[cfg(feature = "internals")]
pub use blocks::{MemoryBlock, MemoryBlockState};
#[cfg(not(loom))]
pub use boot_map::{BootError, BootMap, BootRange};
pub use budget::Budget;
pub use offline::Offline;
pub use online_type::OnlineType;
pub use policy::{Group, Policy};
pub use remove::Removal;
pub use settings::Settings;
pub use shrink::{Shrink, ShrinkOptions};

pub use state::State;
pub use zone::ZoneInfo;
pub use zone_part::ZonePart;

use crate::addr::{Pfn, PfnRange};
use crate::frames::Frames;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, is_pageblocks};
use crate::invariant::OrRecordViolation;
use crate::mapping::{AlwaysMapped, Map};
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{SectionPart, SectionWords};
use core::fmt;
use zone_counts::Zones;

/// The control path of an instance. There is one for each instance. Its methods take `&mut self`,
/// so the kernel puts the control path behind a lock of its choice. The frame allocator needs no
/// lock.
///
/// The control path owns the kernel's [mapping](crate::Map), so that no other code maps or
/// unmaps memory through that mapping.
///
/// Context: any in which the kernel's own [`Hooks`](crate::Hooks) and mapping may run. The costs
/// that the methods state do not include the calls of the hooks and of the mapping.
pub struct Hotplug<'f, P, M = AlwaysMapped> {
    frames: &'f Frames<P>,
    mapping: M,
    zones: Zones,
    /// The kernel's settings for the whole machine.
    pub settings: Settings,
}

impl<P, M> fmt::Debug for Hotplug<'_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hotplug").field("frames", self.frames).finish_non_exhaustive()
    }
}

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    pub(crate) fn without_memory(frames: &'f Frames<P>, mapping: M) -> Hotplug<'f, P, M> {
        let (zones, settings) = (Zones::default(), Settings::default());
        Hotplug { frames, mapping, zones, settings }
    }

    /// Returns the frame allocator of this instance, which every CPU can share.
    #[must_use]
    pub fn frames(&self) -> &'f Frames<P> {
        self.frames
    }

    /// Returns the kernel's mapping.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    #[must_use]
    pub fn mapping(&self) -> &M {
        &self.mapping
    }

    /// Returns a mutable reference to the kernel's mapping.
    ///
    /// # Safety
    /// Whatever the caller changes, the mapping must still be that of this instance and keep the
    /// promises of [`Map`].
    pub unsafe fn mapping_mut(&mut self) -> &mut M {
        &mut self.mapping
    }

    /// Returns the identity of this instance, which is unique within the process.
    fn instance(&self) -> InstanceId {
        self.frames.id()
    }

    /// Returns the state of the pageblock at `from` (rounded down to a pageblock), and the run of
    /// pageblocks from there, up to `limit`, that have the same state.
    ///
    /// Cost: O(sections) of the range that is returned.
    #[must_use]
    pub fn state_at(&self, from: Pfn, limit: Pfn) -> (PfnRange, State) {
        let requested = PfnRange::new(from, limit).unwrap_or(PfnRange::EMPTY);
        let (run, state) = uniform_run(requested, |part| self.uniform_state(part));
        (run, state.unwrap_or(State::Unknown))
    }

    /// Returns the state of a part of one section, if all of the part has the same state.
    fn uniform_state(&self, section_range: PfnRange) -> Option<State> {
        if !self.words().covers(section_range) {
            return self.words().overlapping(section_range).is_none().then_some(State::Unknown);
        }
        let Some(SectionPart { section, blocks: wanted }) =
            self.words().section_part(section_range)
        else {
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
            (true, false) if all(&section.isolated)? => State::Removing,
            (true, false) => State::Offline,
            (true, true) if all(&section.movable)? => State::OnlineMovable,
            (true, true) => State::Online,
        })
    }

    /// Returns the words of this instance's sections.
    fn words(&self) -> &'f SectionWords {
        self.frames.words()
    }

    /// Returns the pageblocks of `range`, section by section. Skips sections that have no words.
    fn section_parts(
        &self,
        range: PfnRange,
    ) -> impl DoubleEndedIterator<Item = SectionPart<'f>> + use<'f, P, M> {
        self.frames.words().section_parts(range)
    }

    /// Returns the region of boot memory that contains a frame.
    fn boot_region_at(&self, pfn: Pfn) -> Option<PfnRange> {
        self.words().announced_at(pfn).filter(|region| region.is_boot).map(|region| region.range)
    }

    /// Returns whether `range` consists of whole pageblocks within one announced region.
    fn is_announced(&self, range: PfnRange) -> bool {
        is_pageblocks(range) && self.words().covers(range)
    }
}

/// Returns the run at the start of `range` that has one value, and the value. `value_of` returns the
/// value of a part of a section, or `None` if the parts of it have different values.
fn uniform_run<T: Copy + PartialEq>(
    range: PfnRange,
    value_of: impl Fn(PfnRange) -> Option<T>,
) -> (PfnRange, Option<T>) {
    let mut value = None;
    let mut end = range.start();
    'sections: for section_range in range.chunks(SECTION_FRAMES as u64) {
        // Look at the whole section first: usually all of it has one value.
        let section_value = value_of(section_range);
        let size = if section_value.is_some() { SECTION_FRAMES } else { PAGEBLOCK_FRAMES };
        for part in section_range.chunks(size as u64) {
            let part_value = section_value.or_else(|| value_of(part));
            if value.is_some() && value != part_value {
                break 'sections;
            }
            value = part_value;
            end = part.end();
        }
    }
    (PfnRange::new(range.start(), end).or_record_violation().unwrap_or(range), value)
}
