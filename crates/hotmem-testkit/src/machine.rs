//! Boots a machine in this memory, and brings it to a state that a test needs.

use crate::memory::Memory;
use crate::ranges::range;
use crate::raw::Raw;
use hotmem::{
    AllocRequest, BootError, BootMap, BootRange, Frames, Hotplug, Mapping, NoHooks, OnlineType,
    PfnRange, Platform, RegionId,
};

/// Boots a machine with the first `frames` of this memory.
///
/// # Panics
/// Panics if these are too few.
pub fn boot<'f, P: Platform>(
    machine: &'f Frames<P>,
    memory: &Memory,
    frames: u64,
) -> Hotplug<'f, P> {
    let ram = [BootRange { start: 0, len: range(0, frames).bytes() }];
    start(machine, memory.direct_map(), &BootMap::of_ram(&ram)).expect("enough to boot")
}

/// Starts a machine.
///
/// # Errors
/// As [`Hotplug::bootstrap`].
pub fn start<'f, P: Platform, M: Mapping>(
    frames: &'f Frames<P>,
    mapping: M,
    map: &BootMap<'_>,
) -> Result<Hotplug<'f, P, M>, BootError> {
    // SAFETY: each machine of a test has a memory of its own, which exists from the start.
    unsafe { Hotplug::bootstrap(frames, mapping, map) }
}

/// Announces frames, adds them and puts them online for movable allocations.
///
/// # Panics
/// Panics if the machine refuses.
pub fn plug<P: Platform>(hotplug: &mut Hotplug<'_, P>, frames: PfnRange) {
    hotplug.announce(frames).expect("a region that is free");
    hotplug.add(frames).expect("memory for its words");
    hotplug.online(frames, OnlineType::Movable, &mut NoHooks).expect("memory that was added");
}

/// Makes the words of an announced range, by preparing an addition and abandoning it. A later
/// addition then allocates none.
///
/// # Panics
/// Panics if the machine refuses.
pub fn make_words<P: Platform, M: Mapping>(hotplug: &mut Hotplug<'_, P, M>, range: PfnRange) {
    drop(hotplug.prepare_add(range).expect("a range that is announced"));
}

/// Divides two pageblocks of boot memory, one for single frames and one for runs, and leaves free
/// frames in both. The engine then takes frames for bitmaps, words and tables from these two, and
/// divides no other pageblock. Returns the frames that were allocated.
///
/// # Panics
/// Panics if there are not enough frames.
pub fn divide_a_pageblock<P: Platform>(frames: &Frames<P>) -> Vec<PfnRange> {
    let mut taken = vec![];
    loop {
        taken.push(frames.take_raw(AllocRequest::frames(1)).expect("a free pageblock"));
        let counts = frames.counts();
        if counts.free - counts.free_whole >= 8 {
            break;
        }
    }
    let run = frames.take_raw(AllocRequest::frames(2)).expect("a free pageblock");
    let (kept, rest) = run.split_at(run.start().checked_add(1).expect("the second frame"));
    frames.give_raw(rest).expect("it was allocated");
    taken.push(kept);
    taken
}

/// Returns the range of an announced region, if there is one with this number.
pub fn region_range<P: Platform, M: Mapping>(
    hotplug: &Hotplug<'_, P, M>,
    region: RegionId,
) -> Option<PfnRange> {
    hotplug.regions().find(|&(id, _)| id == region).map(|(_, range)| range)
}
