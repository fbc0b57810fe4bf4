//! Removes memory: the device accepts removals as a whole or in parts, or refuses them.

use crate::world::{Block, Machine, World};
use hotmem::{PfnRange, RangeError, RangeErrorKind, Removal};
use hotmem_testkit::link::lend;
use hotmem_testkit::{BLOCK, SECTION, numbers, pfn};

/// Memory that is ready for removal.
pub(crate) struct Leaving {
    removal: Removal,
    /// Whether a shrink took it offline.
    was_online: bool,
    /// Whether a part of it, or of the removal that it was split from, holds descriptors.
    keeps: bool,
}

impl Machine<'_> {
    pub(crate) fn remove(&mut self) {
        if let Some(wanted) = self.world.some_offline() {
            self.remove_range(wanted);
        }
    }

    pub(crate) fn remove_range(&mut self, wanted: PfnRange) {
        let expected = self.world.remove_refused(wanted);
        let answer =
            lend(&mut self.hotplug, &mut self.world, |hotplug, _| hotplug.prepare_remove(wanted));
        self.world.tell(|| format!("remove {wanted:?}: {answer:?}"));
        match answer {
            Err(error) => assert_eq!(Some(error), expected),
            Ok(removal) => {
                assert_eq!((expected, removal.range()), (None, wanted));
                self.world.blocks_in(wanted).iter_mut().for_each(|block| block.in_transit = true);
                self.hand_over(removal, false);
            }
        }
    }

    /// Records a removal. The device answers now or later.
    pub(crate) fn hand_over(&mut self, removal: Removal, was_online: bool) {
        let keeps = removal.range().chunks(BLOCK).any(|block| self.world.is_kept(block));
        self.removals.push(Leaving { removal, was_online, keeps });
        if self.world.rng.bool() {
            self.finish_removal();
        }
    }

    /// The device answers for all of a removal, or for a part of it.
    pub(crate) fn finish_removal(&mut self) {
        if self.removals.is_empty() {
            return;
        }
        let leaving = self.removals.swap_remove(self.world.rng.usize(..self.removals.len()));
        match self.world.rng.u8(..4) {
            0 => self.split_removal(leaving),
            _ => self.end_removal(leaving),
        }
    }

    /// Commits a removal, or abandons it.
    fn end_removal(&mut self, Leaving { removal, was_online, .. }: Leaving) {
        let world = &mut self.world;
        let gone = removal.range();
        world.assert_untouched(gone);
        let taken = world.rng.u32(..100) >= world.refusals;
        world.tell(|| format!("removed {gone:?}: {taken}"));
        if taken {
            lend(&mut self.hotplug, world, |hotplug, _| hotplug.commit_remove(removal)).unwrap();
            world.heal(gone);
        } else {
            lend(&mut self.hotplug, world, |hotplug, hooks| hotplug.abandon_remove(removal, hooks))
                .unwrap();
        }
        for part in gone.chunks(BLOCK) {
            let block = &mut world.blocks_in(part)[0];
            block.in_transit = false;
            if taken {
                (block.present, block.movable) = (false, false);
            }
            assert_eq!(block.online, was_online && !taken);
        }
        world.sync_metadata();
        world.assert_untouched(gone);
    }

    fn split_removal(&mut self, Leaving { removal, was_online, keeps }: Leaving) {
        let at = pfn(self.world.rng.u64(numbers(removal.range())));
        let (low, high) = removal.range().split_at(at.align_down(BLOCK));
        let alone = keeps && !low.is_empty() && !high.start().number().is_multiple_of(SECTION);
        let parts = match removal.split_at(at) {
            Ok((below, above)) => {
                assert_eq!((alone, below.range(), above.range()), (false, low, high));
                vec![below, above]
            }
            Err(removal) => {
                assert!(alone, "{removal:?} at {at:?}");
                vec![removal]
            }
        };
        let parts = parts.into_iter().filter(|part| !part.range().is_empty());
        self.removals.extend(parts.map(|removal| Leaving { removal, was_online, keeps }));
    }
}

impl World<'_> {
    pub(crate) fn remove_refused(&self, wanted: PfnRange) -> Option<RangeError> {
        if !Self::is_whole(wanted) {
            return Some(RangeError { range: wanted, kind: RangeErrorKind::Unaligned });
        }
        if !self.in_one_region(wanted) {
            return Some(RangeError { range: wanted, kind: RangeErrorKind::NotPresent });
        }
        let wrong: [fn(&Block) -> bool; 3] = [|b| !b.present, |b| b.online, |b| b.in_transit];
        let Some((which, block)) = self.first(wanted, wrong) else {
            return self
                .first_describing(wanted, wanted)
                .map(|range| RangeError { range, kind: RangeErrorKind::Describes });
        };
        let errors = [
            RangeError { range: block, kind: RangeErrorKind::NotPresent },
            RangeError { range: block, kind: RangeErrorKind::Online },
            RangeError { range: block, kind: RangeErrorKind::Held },
        ];
        Some(errors[which])
    }
}
