//! Searches a region for plugged memory that is offline.

use super::memory::Unplug;
use hotmem::{Hotplug, Map, Pfn, PfnRange, Platform, State, geometry::SECTION_FRAMES};
use hotmem_invariant::OrRecordViolation;

/// The minimal size of a search window.
const MIN_WINDOW_FRAMES: u64 = 64 * SECTION_FRAMES as u64;

/// Returns the highest units in `within` whose memory is plugged and offline. Searches in windows from
/// the top down. The next request continues below, so that no window is searched twice.
pub(super) fn highest_offline<P: Platform, M: Map>(
    hotplug: &Hotplug<'_, P, M>,
    within: PfnRange,
    unplug: Unplug,
) -> Option<PfnRange> {
    let min_frames = MIN_WINDOW_FRAMES.checked_next_multiple_of(unplug.unit);
    let frames = unplug.max_frames.max(min_frames.or_record_violation().unwrap_or(unplug.unit));
    let mut remaining = within;
    while !remaining.is_empty() {
        let window = last(remaining, frames);
        remaining = remaining.split_at(window.start()).0;
        let mut highest = None;
        let mut part = window;
        while !part.is_empty() {
            let (run, state) = hotplug.state_at(part.start(), part.end());
            let units = run.align_inward(unplug.unit);
            if state == State::Offline && !units.is_empty() {
                highest = Some(units);
            }
            if run.is_empty() {
                break;
            }
            part = part.split_at(run.end()).1;
        }
        if highest.is_some() {
            return highest;
        }
    }
    None
}

/// Returns the last `frames` of a range, or all of it.
pub(super) fn last(range: PfnRange, frames: u64) -> PfnRange {
    let start = Pfn::new(range.end().number().saturating_sub(frames));
    start.map_or(range, |start| range.split_at(start).1)
}
