//! Removes memory: the device accepts removals as a whole or in parts, or refuses them.

use crate::machine::Machine;
use crate::model::{Block, Model};
use hotmem::{PfnRange, RangeError, RangeErrorKind, Removal};
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::{Cpus, PAGEBLOCK, SECTION, numbers, pfn};

/// A removal that is prepared, and that the device has not answered.
pub(crate) struct PendingRemoval<'f> {
    removal: Removal<'f, Cpus>,
    /// Whether a shrink took it offline.
    was_online: bool,
    /// Whether the removal, or the removal that it was split from, contains pageblocks that hold
    /// descriptors.
    has_descriptors: bool,
}

impl<'f> Machine<'f> {
    pub(crate) fn remove(&mut self) {
        if let Some(requested) = self.model.random_offline() {
            self.remove_range(requested);
        }
    }

    pub(crate) fn remove_range(&mut self, requested: PfnRange) {
        let expected = self.model.expected_removal_error(requested);
        let answer = with_kernel(&mut self.hotplug, &mut self.model, |hotplug, _| {
            hotplug.prepare_remove(requested)
        });
        self.model.trace(|| format!("remove {requested:?}: {answer:?}"));
        match answer {
            Err(error) => assert_eq!(Some(error), expected),
            Ok(removal) => {
                assert_eq!((expected, removal.range()), (None, requested));
                self.model
                    .blocks_in(requested)
                    .iter_mut()
                    .for_each(|block| block.has_prepared_change = true);
                self.record_removal(removal, false);
            }
        }
    }

    /// Records a removal. Lets the device answer one of the removals now, or none.
    pub(crate) fn record_removal(&mut self, removal: Removal<'f, Cpus>, was_online: bool) {
        let has_descriptors =
            removal.range().chunks(PAGEBLOCK).any(|block| self.model.holds_descriptors(block));
        self.removals.push(PendingRemoval { removal, was_online, has_descriptors });
        if self.model.rng.u8(..4) < self.profile.finished_at_once {
            self.finish_removal();
        }
    }

    /// Lets the device answer a random removal, or splits the removal.
    pub(crate) fn finish_removal(&mut self) {
        if self.removals.is_empty() {
            return;
        }
        let pending = self.removals.swap_remove(self.model.rng.usize(..self.removals.len()));
        match self.model.rng.u8(..4) {
            0 => self.split_removal(pending),
            _ => self.end_removal(pending),
        }
    }

    /// Lets the device accept or refuse a removal: commits or abandons it.
    fn end_removal(&mut self, PendingRemoval { removal, was_online, .. }: PendingRemoval<'f>) {
        let model = &mut self.model;
        let removed_range = removal.range();
        model.assert_untouched(removed_range);
        let is_accepted = model.rng.u32(..100) >= model.refusal_percent;
        model.trace(|| format!("removed {removed_range:?}: {is_accepted}"));
        if is_accepted {
            let is_dropped = model.rng.u8(..4) == 0;
            with_kernel(&mut self.hotplug, model, |hotplug, _| {
                if is_dropped {
                    drop(removal);
                    hotplug.remove(removed_range).unwrap();
                } else {
                    hotplug.commit_remove(removal);
                }
            });
            model.forget_poison(removed_range);
        } else {
            with_kernel(&mut self.hotplug, model, |hotplug, hooks| {
                hotplug.abandon_remove(removal, hooks)
            });
        }
        for part in removed_range.chunks(PAGEBLOCK) {
            let block = &mut model.blocks_in(part)[0];
            block.has_prepared_change = false;
            if is_accepted {
                (block.is_present, block.movable) = (false, false);
            }
            assert_eq!(block.online, was_online && !is_accepted);
        }
        model.count_new_metadata();
        model.assert_untouched(removed_range);
    }

    fn split_removal(
        &mut self,
        PendingRemoval { removal, was_online, has_descriptors }: PendingRemoval<'f>,
    ) {
        let at = pfn(self.model.rng.u64(numbers(removal.range())));
        let (low, high) = removal.range().split_at(at.align_down(PAGEBLOCK));
        let is_refused =
            has_descriptors && !low.is_empty() && !high.start().number().is_multiple_of(SECTION);
        let parts = match removal.split_at(at) {
            Ok((below, above)) => {
                assert_eq!((is_refused, below.range(), above.range()), (false, low, high));
                vec![below, above]
            }
            Err(removal) => {
                assert!(is_refused, "{removal:?} at {at:?}");
                vec![removal]
            }
        };
        let parts = parts.into_iter().filter(|part| !part.range().is_empty());
        self.removals.extend(parts.map(|removal| PendingRemoval {
            removal,
            was_online,
            has_descriptors,
        }));
    }
}

impl Model<'_> {
    pub(crate) fn expected_removal_error(&self, requested: PfnRange) -> Option<RangeError> {
        if !Self::is_pageblocks(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::Unaligned });
        }
        if !self.in_one_region(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::NotPresent });
        }
        let wrong: [fn(&Block) -> bool; 3] =
            [|b| !b.is_present, |b| b.online, |b| b.has_prepared_change];
        if let Some((i, range)) = self.first_wrong(requested, wrong) {
            let kinds = [RangeErrorKind::NotPresent, RangeErrorKind::Online, RangeErrorKind::Held];
            return Some(RangeError { range, kind: kinds[i] });
        }
        if self.all_blocks_are(requested, |block| block.is_boot) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::BootMemory });
        }
        self.first_needed_descriptors(requested, requested)
            .map(|range| RangeError { range, kind: RangeErrorKind::HoldsDescriptors })
    }
}
