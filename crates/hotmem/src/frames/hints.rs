//! Which pageblock and which section a CPU tries next.
//!
//! A hint is one atomic, changed by `swap` (or, to take what another CPU is known to hold, by
//! compare-exchange), and nothing in it has to be drained, stopped or asked for by interrupt. It
//! owns what it names *softly*: while a pageblock is a hint its `partial` bit is clear, and while
//! a section is a hint its bit in the tree of free pageblocks is clear, so that other CPUs'
//! searches land elsewhere. Whoever swaps something out of a hint makes it findable again
//! ([`Frames::retire_block`], [`Frames::retire_section`]); so everything with free frames is always
//! in a hint, in `partial` or `free` with a path in the tree, or in somebody's hands.

use super::Frames;
use super::exhaustion::Moves;
use crate::addr::{Pfn, PfnRange};
use crate::geometry::SECTION_FRAMES;
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering, mutant};
use crate::words::{Block, Class, Hint, NOTHING, NodeIndex, SectionRef, Zone};

impl<P: Platform> Frames<P> {
    /// The caller took `block` out of `partial` or has just split it: small allocations of this
    /// CPU come from it now.
    pub(super) fn adopt_block(&self, block: &Block<'_>, zone: Zone, moves: &mut Moves<'_>) {
        moves.start();
        // AcqRel: Release hands over what we know of the block, Acquire takes over the old one.
        let old = moves.cpu().block(zone).swap(block.hint(), Ordering::AcqRel);
        if old != block.hint() {
            self.retire_block(old, moves);
        }
    }

    /// A pageblock whose last frame had been taken has free frames again: makes it findable.
    ///
    /// It becomes this CPU's hint if that one is exhausted: random traffic then stays out of
    /// `partial` and the tree. The swap is done even if the hint names this pageblock already:
    /// somebody who swapped it out before the count rose did not see it rise, somebody who
    /// swaps it out after us does.
    pub(super) fn show_block(&self, block: &Block<'_>, moves: &mut Moves<'_>) {
        let zone = block.zone();
        let hint = moves.cpu().block(zone).load(Ordering::Relaxed);
        let exhausted =
            || self.words.hinted_block(hint).is_none_or(|b| b.state.load().free_frames() == 0);
        mutant!("what is the hint already is not swapped in" => if hint == block.hint() { return });
        if hint == block.hint() || (self.is_near(block.node()) && exhausted()) {
            self.adopt_block(block, zone, moves);
        } else {
            self.show_partial(block);
        }
    }

    /// Sets the pageblock's `partial` bit and the path to it. Whatever of its zone was there before
    /// has a path, see [`set_zone`](Self::set_zone).
    pub(crate) fn show_partial(&self, block: &Block<'_>) {
        // Release pairs with the Acquire of the search, Acquire with `set_zone`.
        let old = block.section.partial.fetch_or(block.mask(), Ordering::AcqRel);
        let zone = block.zone();
        if old & block.section.zone_mask(zone) == 0 {
            block.section.make_findable(Class::partial(zone));
        }
    }

    /// What was swapped out of a hint is put where it can be found: coalesced if all its frames
    /// are free, in `partial` if some are.
    pub(super) fn retire_block(&self, hint: Hint, moves: &mut Moves<'_>) {
        // A CPU's first hint names nothing.
        let Some(block) = self.words.hinted_block(hint) else { return };
        if block.state.load().grantable() == 0 {
            return;
        }
        if block.state.latest().is_all_free() && block.state.own_free() {
            self.show_coalesced(&block, moves);
        } else {
            self.show_partial(&block);
        }
    }

    /// The caller owns `block`, whose frames are all free: publishes it as a whole one.
    ///
    /// `partial` is cleared first: after the publish the pageblock may be somebody else's, split
    /// again and rightly in `partial`.
    pub(super) fn show_coalesced(&self, block: &Block<'_>, moves: &mut Moves<'_>) {
        if block.section.partial.load(Ordering::Relaxed) & block.mask() != 0 {
            block.section.partial.fetch_and(!block.mask(), Ordering::AcqRel);
        }
        self.show_free(block.section, block.mask(), moves);
    }

    /// The caller owns `blocks` of a section: publishes them as free and makes them findable.
    pub(crate) fn show_free(&self, section: SectionRef<'_>, blocks: u64, moves: &mut Moves<'_>) {
        let movable = section.movable.load(Ordering::Relaxed);
        let first = |zone: u64, before: u64| blocks & zone != 0 && before & zone == 0;
        let before = section.publish(blocks, |before| {
            if first(movable, before) || first(!movable, before) {
                moves.start();
            }
        });
        let mut show = |movable: u64| {
            for (zone, mask) in [(Zone::Kernel, !movable), (Zone::Movable, movable)] {
                if first(mask, before) {
                    self.show_section(section, zone, moves);
                }
            }
        };
        mutant!("zones are looked for before the publish" => return show(movable));
        // Again, after the publish: see `set_zone`.
        show(section.movable.load(Ordering::Relaxed));
        if self.wakeup.is_on() {
            self.note_unreported(section, blocks);
        }
    }

    /// The control path only: these pageblocks, none of them online, are of this zone from now on.
    ///
    /// Whoever publishes something beside others of its zone counts on the path to those. These
    /// here may be others: what somebody who is slow says of a pageblock that has left since, or
    /// what was free until it left. So publishers look for the zones after they have published, and
    /// what they had published before the zones changed is given a path here.
    pub(crate) fn set_zone(
        &self,
        section: SectionRef<'_>,
        blocks: u64,
        zone: Zone,
        moves: &mut Moves<'_>,
    ) {
        if section.zone_mask(zone) & blocks == blocks {
            return;
        }
        moves.start();
        match zone {
            Zone::Movable => section.movable.fetch_or(blocks, Ordering::Relaxed),
            Zone::Kernel => section.movable.fetch_and(!blocks, Ordering::Relaxed),
        };
        // Read-modify-writes: who publishes after them sees the new zones. AcqRel pairs with that
        // of the publishes.
        let give_paths = |word: &AtomicU64, class: fn(Zone) -> Class| {
            let some = word.fetch_or(0, Ordering::AcqRel) != 0;
            mutant!("a zone changes, and nothing is given a path" => return);
            if some {
                Zone::ALL.iter().for_each(|&zone| section.make_findable(class(zone)));
            }
        };
        give_paths(&section.partial, Class::partial);
        give_paths(&section.free, Class::free);
    }

    /// A section that had no free pageblock of this zone has one now.
    fn show_section(&self, section: SectionRef<'_>, zone: Zone, moves: &mut Moves<'_>) {
        let hint = moves.cpu().section(zone).load(Ordering::Relaxed);
        // The same two reasons for the swap as in `show_block`.
        let here = section.hint();
        mutant!("what is the hint already is not swapped in" => if hint == here { return });
        if hint == here || (self.is_near(section.node()) && self.free_in_hinted(hint, zone) == 0) {
            self.swap_section(section, zone, moves);
        } else {
            section.make_findable(Class::free(zone));
        }
    }

    /// The caller found free pageblocks in this section: whole pageblocks come from it now.
    pub(super) fn adopt_section(&self, section: SectionRef<'_>, zone: Zone, moves: &mut Moves<'_>) {
        if self.cpu().section(zone).load(Ordering::Relaxed) != section.hint() {
            moves.start();
            // Out of the tree first, so that the next CPU finds another one.
            section.hide(Class::free(zone));
            self.swap_section(section, zone, moves);
        }
    }

    fn swap_section(&self, section: SectionRef<'_>, zone: Zone, moves: &mut Moves<'_>) {
        moves.start();
        let here = section.hint();
        let old = moves.cpu().section(zone).swap(here, Ordering::AcqRel);
        if old != here {
            self.retire_section(old, zone);
        }
    }

    /// What was swapped out of a hint: the tree leads to it again if it has something.
    fn retire_section(&self, hint: Hint, zone: Zone) {
        if let Some(section) = self.words.hinted_section(hint)
            && section.available(Class::free(zone)) != 0
        {
            section.make_findable(Class::free(zone));
        }
    }

    /// Publishes everything that is wholly free but stays split as a hint; says whether there was
    /// anything.
    pub(crate) fn coalesce_all_hinted(&self) -> bool {
        let mut moves = self.no_moves_yet();
        let mut any = false;
        for zone in Zone::ALL {
            for block in self.hinted_blocks(zone) {
                moves.start();
                if block.state.load().is_all_free() && block.state.own_free() {
                    self.show_coalesced(&block, &mut moves);
                    any = true;
                }
            }
        }
        any
    }

    /// Whether a node's memory is what this CPU should come to use without looking.
    fn is_near(&self, node: NodeIndex) -> bool {
        self.is_meant(node, self.platform.node())
    }

    /// The free pageblocks of a zone in the section that a hint names.
    fn free_in_hinted(&self, hint: Hint, zone: Zone) -> u64 {
        let section = self.words.hinted_section(hint);
        section.map_or(0, |section| section.available(Class::free(zone)))
    }

    /// The section that whole pageblocks of this CPU come from.
    #[inline]
    pub(super) fn own_section(&self, zone: Zone) -> Option<SectionRef<'_>> {
        // Acquire pairs with the swap that made it the hint.
        self.words.hinted_section(self.cpu().section(zone).load(Ordering::Acquire))
    }

    /// The pageblock that small allocations of this CPU come from.
    #[inline]
    pub(super) fn own_block(&self, zone: Zone) -> Option<Block<'_>> {
        // Acquire pairs with the swap that made it the hint.
        self.words.hinted_block(self.cpu().block(zone).load(Ordering::Acquire))
    }

    /// Whether this CPU's hint names the pageblock.
    #[inline]
    pub(super) fn is_own(&self, block: &Block<'_>) -> bool {
        self.cpu().block(block.zone()).load(Ordering::Relaxed) == block.hint()
    }

    /// All CPUs' hints of pageblocks, of one zone.
    pub(super) fn hinted_blocks(&self, zone: Zone) -> impl Iterator<Item = Block<'_>> {
        let hints = self.seen_cpus().iter().map(move |cpu| cpu.block(zone).load(Ordering::Acquire));
        hints.filter_map(|hint| self.words.hinted_block(hint))
    }

    /// All CPUs' hints of sections, of one zone.
    pub(crate) fn hinted_sections(&self, zone: Zone) -> impl Iterator<Item = SectionRef<'_>> {
        let hints =
            self.seen_cpus().iter().map(move |cpu| cpu.section(zone).load(Ordering::Acquire));
        hints.filter_map(|hint| self.words.hinted_section(hint))
    }

    /// `range` has just come online: if a part of it lies above low memory, CPUs whose hints name
    /// low memory look anew.
    pub(crate) fn leave_low_memory(&self, range: PfnRange) {
        let low_end = self.low_end();
        if low_end != Pfn::ZERO && low_end < range.end() {
            self.forget_hints(PfnRange::ALL.split_at(low_end).0);
        }
    }

    /// Lets go of the hints that name something in the sections of `range`. What they name can be
    /// found without them, unless it has just gone offline.
    pub(crate) fn forget_hints(&self, range: PfnRange) {
        let sections = range.align_outward(SECTION_FRAMES as u64);
        let is_there = |section: SectionRef<'_>| sections.contains(section.start());
        let mut moves = self.no_moves_yet();
        moves.start();
        for cpu in self.seen_cpus() {
            for zone in Zone::ALL {
                let block = cpu.block(zone).load(Ordering::Acquire);
                let place = self.words.hinted_block(block).map(|block| block.section);
                if place.is_some_and(is_there) && forget(cpu.block(zone), block) {
                    self.retire_block(block, &mut moves);
                }
                let section = cpu.section(zone).load(Ordering::Acquire);
                let place = self.words.hinted_section(section);
                if place.is_some_and(is_there) && forget(cpu.section(zone), section) {
                    self.retire_section(section, zone);
                }
            }
        }
    }

    /// `blocks` of this section have been published, while there is a reporter.
    #[cold]
    pub(crate) fn note_unreported(&self, section: SectionRef<'_>, blocks: u64) {
        // Relaxed: what the publisher has set, or what others have made of it since; they note
        // their own.
        let unreported = blocks & !section.reported.load(Ordering::Relaxed);
        if unreported == 0 {
            return;
        }
        for zone in Zone::ALL {
            if unreported & section.zone_mask(zone) != 0 {
                section.make_findable(Class::unreported(zone));
            }
        }
        if self.wakeup().wake() {
            self.platform().wake_reporter();
        }
    }
}

/// Empties a hint, unless its CPU has moved on by itself.
fn forget(hint: &AtomicU64, named: u64) -> bool {
    hint.compare_exchange(named, NOTHING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
