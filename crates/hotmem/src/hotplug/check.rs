//! Checks that all pageblocks of a range are in the state that an operation needs.

use super::Hotplug;
use crate::addr::PfnRange;
use crate::geometry::SECTION_FRAMES;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::words::{SectionPart, SectionRef};

/// Pageblocks of a section, as a mask, and the reason to refuse them.
pub(super) type RefusedBlocks = (u64, RangeErrorKind);

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Checks that `range` consists of whole pageblocks of one region, and that `refused` returns
    /// none of them. A pageblock outside a region or without words is refused for the reason
    /// `missing`.
    pub(super) fn check<const N: usize>(
        &self,
        range: PfnRange,
        missing: RangeErrorKind,
        refused: impl Fn(SectionRef<'_>) -> [RefusedBlocks; N],
    ) -> Result<(), RangeError> {
        RangeError::check_pageblocks(range)?;
        if !self.is_announced(range) {
            return Err(missing.at(range));
        }
        let absent = |section_range| {
            self.words().section_part_or_absent(section_range).map_err(|first| missing.at(first))
        };
        range
            .chunks(SECTION_FRAMES as u64)
            .try_for_each(|section_range| refuse(absent(section_range)?, &refused))
    }

    /// Checks that all of `range` is present, offline and not held, and in one region.
    pub(super) fn check_offline(&self, range: PfnRange) -> Result<(), RangeError> {
        self.check(range, RangeErrorKind::NotPresent, |section| {
            [
                (!section.present.load(Ordering::Acquire), RangeErrorKind::NotPresent),
                (section.online.load(Ordering::Acquire), RangeErrorKind::Online),
                (section.isolated.load(Ordering::Acquire), RangeErrorKind::Held),
            ]
        })
    }

    /// Checks that all of `range` is memory whose [`Removal`](super::Removal) was dropped.
    pub(super) fn check_orphaned(&self, range: PfnRange) -> Result<(), RangeError> {
        self.check(range, RangeErrorKind::NotPresent, |section| {
            [(!section.orphaned_blocks(), RangeErrorKind::Held)]
        })
    }

    /// Checks that no part of `range` is present, is device memory, or is being added. Skips sections
    /// that have no words.
    pub(super) fn check_absent(&self, range: PfnRange) -> Result<(), RangeError> {
        self.section_parts(range).try_for_each(|part| {
            refuse(part, |section| {
                [
                    (section.present.load(Ordering::Acquire), RangeErrorKind::Present),
                    (section.device_blocks(), RangeErrorKind::Device),
                    (section.isolated.load(Ordering::Acquire), RangeErrorKind::Held),
                ]
            })
        })
    }
}

fn refuse<const N: usize>(
    SectionPart { section, blocks }: SectionPart<'_>,
    refused: impl Fn(SectionRef<'_>) -> [RefusedBlocks; N],
) -> Result<(), RangeError> {
    refused(section).into_iter().try_for_each(|(word, kind)| match word & blocks {
        0 => Ok(()),
        refused => Err(kind.at(section.first_block(refused))),
    })
}
