//! Chooses the windows of a shrink, the highest first.

use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, BlockerKind};
use crate::geometry::SECTION_FRAMES;
use crate::hotplug::Hotplug;
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::SectionPart;

/// The part of its range that a shrink has not tried yet. Its end moves down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untried {
    range: PfnRange,
    /// The smallest run that the platform can take, in frames.
    unit: u64,
    /// Above this frame, windows are single units, because a part of the section there cannot be
    /// taken offline.
    single_units_above: Pfn,
}

impl Untried {
    /// Returns all of `range`, which is aligned to `unit`.
    pub(super) fn all(range: PfnRange, unit: u64) -> Untried {
        Untried { range, unit, single_units_above: Pfn::LIMIT }
    }

    pub(super) fn range(&self) -> PfnRange {
        self.range
    }

    /// Leaves only what is below `pfn`.
    pub(super) fn cut(&mut self, pfn: Pfn) {
        self.range = self.range.split_at(pfn).0;
    }

    /// Makes all windows single units that end above `pfn`.
    pub(super) fn use_single_units_above(&mut self, pfn: Pfn) {
        self.single_units_above = pfn;
    }

    /// Returns the start of the highest window of `isolated`, which was isolated in windows: the
    /// part of it in one section, or a single unit.
    pub(super) fn start_of_last_window(&self, isolated: PfnRange) -> Pfn {
        let is_single = self.single_units_above < isolated.end();
        let size = if is_single { self.unit } else { self.unit.max(SECTION_FRAMES as u64) };
        let last = isolated.end().number().checked_sub(1).and_then(Pfn::new);
        last.unwrap_or(isolated.start()).align_down(size).max(isolated.start())
    }

    /// Returns the highest window of at most `max_frames` to take. Moves the end of the untried part
    /// down to the end of the window, or to its start if there is no window. Skips boot memory, which
    /// is never removed, and names it in `blocker` if that is `None`.
    pub(super) fn next_window<P: Platform, M: Map>(
        &mut self,
        hotplug: &Hotplug<'_, P, M>,
        max_frames: u64,
        blocker: &mut Option<Blocker>,
    ) -> Option<PfnRange> {
        loop {
            let window = self.next_online_window(hotplug, max_frames)?;
            let Some(boot) = hotplug.boot_region_at(window.start()) else { return Some(window) };
            let skipped = boot.intersection(self.range);
            blocker.get_or_insert(BlockerKind::BootMemory.at(skipped));
            self.cut(boot.start().align_down(self.unit));
        }
    }

    /// Returns the highest online window: a whole section, the highest run of online units of one
    /// region in it, or a single unit.
    fn next_online_window<P: Platform, M: Map>(
        &mut self,
        hotplug: &Hotplug<'_, P, M>,
        max_frames: u64,
    ) -> Option<PfnRange> {
        if max_frames == 0 {
            return None;
        }
        let size = self.unit.max(SECTION_FRAMES as u64);
        while !self.range.is_empty() {
            let last = self.range.end().number().checked_sub(1)?;
            let chunk = self.range.split_at(Pfn::new(last)?.align_down(size)).1;
            if self.single_units_above >= chunk.end()
                && chunk.frames() <= max_frames
                && hotplug.is_online(chunk)
            {
                return Some(chunk);
            }
            let Some(end) = hotplug.last_online(self.range) else {
                self.range = PfnRange::EMPTY;
                return None;
            };
            let end = end.align_up(self.unit);
            if end < self.range.end() {
                self.cut(end);
                continue;
            }
            // Find the highest run of online units in the chunk.
            let online = |&unit: &PfnRange| hotplug.is_online(unit);
            let units = chunk.chunks(self.unit);
            let Some(highest) = units.clone().rev().find(online) else {
                self.cut(chunk.start());
                continue;
            };
            self.cut(highest.end());
            if self.single_units_above < highest.end() {
                return Some(highest);
            }
            let mut run = highest;
            for unit in units.rev().skip_while(|unit| unit.end() > highest.start()) {
                let longer = PfnRange::new(unit.start(), run.end()).or_record_violation()?;
                if longer.frames() > max_frames
                    || !hotplug.is_online(unit)
                    || !hotplug.is_announced(longer)
                {
                    break;
                }
                run = longer;
            }
            return Some(run);
        }
        None
    }
}

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Returns whether all of `range` is online and lies in one region.
    fn is_online(&self, range: PfnRange) -> bool {
        let mut section_ranges = range.chunks(SECTION_FRAMES as u64);
        self.is_announced(range)
            && section_ranges.all(|section_range| {
                self.words().section_part(section_range).is_some_and(
                    |SectionPart { section, blocks }| {
                        blocks & !section.online.load(Ordering::Acquire) == 0
                    },
                )
            })
    }
}
