//! Boots an instance in heap memory, and brings the instance to a state that a test needs.

use crate::memory::Memory;
use crate::ranges::range;
use crate::raw::RawRanges;
use hotmem::{
    AllocRequest, BootError, BootMap, BootRange, Frames, Hotplug, Map, NoHooks, OnlineType,
    PfnRange, Platform, RegionId,
};

/// Boots an instance with the first `boot_frames` frames of this memory.
///
/// # Panics
/// Panics if these frames are too few to boot.
pub fn boot<'f, P: Platform>(
    frames: &'f Frames<P>,
    memory: &Memory,
    boot_frames: u64,
) -> Hotplug<'f, P> {
    let ram = [BootRange { start: 0, len: range(0, boot_frames).bytes() }];
    start(frames, memory.direct_map(), &ram).expect("the memory is large enough to boot")
}

/// Starts an instance.
///
/// # Errors
/// As [`Hotplug::bootstrap`].
pub fn start<'f, 'm, P: Platform, M: Map>(
    frames: &'f Frames<P>,
    mapping: M,
    map: impl Into<BootMap<'m>>,
) -> Result<Hotplug<'f, P, M>, BootError> {
    // SAFETY: a test gives each instance its own memory, which is mapped from the start.
    unsafe { Hotplug::bootstrap(frames, mapping, map) }
}

/// Lets an instance [keep zero marks](Frames::keep_zero_marks).
pub fn keep_zero_marks<P>(frames: &Frames<P>) {
    // SAFETY: no test relies on zeroes for its safety.
    unsafe { frames.keep_zero_marks() };
}

/// Announces frames, adds them and puts them online for movable allocations.
///
/// # Panics
/// Panics if the instance refuses.
pub fn plug<P: Platform>(hotplug: &mut Hotplug<'_, P>, frames: PfnRange) {
    hotplug.announce(frames).expect("the range can be announced");
    hotplug.add(frames).expect("enough memory is free for the words of the range");
    hotplug.online(frames, OnlineType::Movable, &mut NoHooks).expect("the range was added");
}

/// Makes the words of an announced range, by preparing an addition and abandoning it. A later
/// addition then allocates none.
///
/// # Panics
/// Panics if the instance refuses.
pub fn make_words<P: Platform, M: Map>(hotplug: &mut Hotplug<'_, P, M>, range: PfnRange) {
    drop(hotplug.prepare_add(range).expect("the range is announced"));
}

/// Divides two pageblocks of boot memory, one for single frames and one for runs, and leaves free
/// frames in both. The engine then takes frames for bitmaps, words and tables from these two, and
/// does not divide another pageblock. Returns the allocated frames, which keep the two divided.
///
/// # Panics
/// Panics if there are not enough frames.
pub fn divide_two_pageblocks<P: Platform>(frames: &Frames<P>) -> Vec<PfnRange> {
    let mut allocated = vec![];
    loop {
        allocated.push(frames.alloc_range(AllocRequest::frames(1)).expect("a pageblock is free"));
        let counts = frames.counts();
        if counts.free - counts.free_whole >= 8 {
            break;
        }
    }
    let run = frames.alloc_range(AllocRequest::frames(2)).expect("a pageblock is free");
    let (first_frame, rest) =
        run.split_at(run.start().checked_add(1).expect("the run has a second frame"));
    frames.free_range(rest).expect("the frame was allocated");
    allocated.push(first_frame);
    allocated
}

/// Returns the number of frames that are free or hold the engine's metadata. A user of the engine that
/// frees all its frames does not change this number, even if the engine has allocated metadata.
pub fn free_or_metadata<P: Platform>(frames: &Frames<P>) -> u64 {
    let metadata: u64 = frames.metadata().map(|metadata| metadata.frames.frames()).sum();
    frames.counts().free + metadata
}

/// Returns the range of a region, if the region is announced.
pub fn region_range<P: Platform, M: Map>(
    hotplug: &Hotplug<'_, P, M>,
    region: RegionId,
) -> Option<PfnRange> {
    hotplug.regions().find(|&(id, _)| id == region).map(|(_, range)| range)
}
