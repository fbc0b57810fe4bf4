//! Sets and clears each CPU's hints: the pageblocks, one for each grain, and the section that the
//! CPU allocates from next.
//!
//! A hint is one atomic word. Its CPU changes it by `swap`; another CPU clears it by a
//! compare-exchange. The memory of a hint belongs to nobody, so no CPU has to be stopped or
//! interrupted to take it. A hint hides its memory from searches by other CPUs, so that they find
//! other memory: while a pageblock is a hint, its `partial` bit is clear, and while a section is a
//! hint, its bit in the tree of free pageblocks is clear. The code that swaps a pageblock or a
//! section out of a hint makes it findable again ([`CallContext::make_former_hint_findable`],
//! [`CallContext::make_former_section_findable`]). So a pageblock with free frames is always in one of
//! four states: it or its section is a hint; or cursors point to all its words that have free
//! frames (see `cpu/cursors.rs`); or its bit in `partial` or `free` is set, with a path in the tree; or
//! a hiding step of it is in flight.

use crate::addr::PfnRange;
use crate::frames::CallContext;
use crate::frames::cpu_record::Cpu;
use crate::geometry::SECTION_FRAMES;
use crate::outlined::Outlined;
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering, fence, mutant};
use crate::words::{Block, Class, Grain, Hint, NO_HINT, SectionRef, Zone};

impl<'f, P: Platform> CallContext<'f, P> {
    /// Makes `block` this CPU's hint, so that the CPU's allocations of this grain use `block` from
    /// now on. The caller must have cleared the `partial` bit of `block`, or just divided it.
    pub(in crate::frames) fn set_block_hint(&self, block: Block<'_>, zone: Zone, grain: Grain) {
        self.start_hiding();
        // `SeqCst`: Release and Acquire pass on what a CPU has seen of a pageblock to the next CPU
        // that has it as its hint. In addition, if a free has read the old hint, and so has not set
        // `partial` itself, `make_former_hint_findable` after this swap sees the bits that it set.
        let old = self.cpu.block(zone, grain).swap(block.to_hint(), Ordering::SeqCst);
        if old != block.to_hint() {
            self.make_former_hint_findable(old);
        }
        self.note_hint_in(block.section(), zone, Some(grain));
    }

    /// Makes the pageblock of a former hint findable: publishes it as free if all its frames are
    /// free, or sets its `partial` bit if only some are.
    pub(super) fn make_former_hint_findable(&self, hint: Hint) {
        // A hint that was never set leads nowhere.
        let Some(block) = self.words().hinted_block(hint) else { return };
        let Some(bitmap) = self.bitmap_of(block) else { return };
        if bitmap.is_all_free() && self.coalesce(block, bitmap) {
            return;
        }
        if bitmap.has_takeable() {
            self.set_partial_with_path(block);
        }
    }

    /// Publishes `block` as one free pageblock. The caller owns it, and all its frames are free.
    ///
    /// Clears the `partial` bit first: after the publish, another CPU may own the pageblock, divide
    /// it again, and set the bit, which must then stay.
    pub(in crate::frames) fn publish_coalesced(&self, block: Block<'_>) {
        if block.section().partial.load(Ordering::Relaxed) & block.mask() != 0 {
            block.section().partial.fetch_and(!block.mask(), Ordering::AcqRel);
        }
        self.publish_blocks(block.section(), block.mask());
    }

    /// Publishes `blocks` of a section as free and makes them findable. The caller owns them.
    pub(crate) fn publish_blocks(&self, section: SectionRef<'_>, blocks: u64) {
        let movable = section.movable.load(Ordering::Relaxed);
        let is_first = |zone: u64, before: u64| blocks & zone != 0 && before & zone == 0;
        let before = section.publish(blocks, |before| {
            if is_first(movable, before) || is_first(!movable, before) {
                self.start_hiding();
            }
        });
        mutant!("a publisher reads the zones before it publishes" => {
            return self.make_findable_in_zones(section, blocks, before, movable);
        });
        self.make_published_findable(section, blocks, before);
    }

    /// Makes `blocks` of a section findable. The caller must have published them; `before` is the
    /// value of `free` before the publish.
    pub(in crate::frames) fn make_published_findable(
        &self,
        section: SectionRef<'_>,
        blocks: u64,
        before: u64,
    ) {
        // Read the zones again after the publish: see `set_zone`.
        let movable = section.movable.load(Ordering::Relaxed);
        self.make_findable_in_zones(section, blocks, before, movable);
        if self.frames.wakeup.is_on() {
            self.note_unreported(section, blocks);
        }
    }

    /// Makes the section findable in the zones in which it had no free pageblock before.
    fn make_findable_in_zones(
        &self,
        section: SectionRef<'_>,
        blocks: u64,
        before: u64,
        movable: u64,
    ) {
        for (zone, mask) in [(Zone::Kernel, !movable), (Zone::Movable, movable)] {
            if blocks & mask != 0 && before & mask == 0 {
                self.make_section_findable(section, zone);
            }
        }
    }

    /// Puts these pageblocks into `zone`. None of them is online. Control path only.
    ///
    /// A publisher that sets a bit beside other bits of the same zone relies on the path to those
    /// bits. A bit may be set when a pageblock changes its zone: it has stayed set since before, or
    /// a slow CPU sets it late. The path to such a bit leads through the tree of the old zone only.
    /// So publishers read the zones again after they have published, and this function sets paths
    /// to the bits that were published before the change.
    pub(crate) fn set_zone(&self, section: SectionRef<'_>, blocks: u64, zone: Zone) {
        if section.zone_mask(zone) & blocks == blocks {
            return;
        }
        self.start_hiding();
        match zone {
            Zone::Movable => section.movable.fetch_or(blocks, Ordering::Relaxed),
            Zone::Kernel => section.movable.fetch_and(!blocks, Ordering::Relaxed),
        };
        // Read each word by a read-modify-write: a publish that changes the word after this sees
        // the new zones. AcqRel pairs with the AcqRel of the publishes.
        let give_paths = |word: &AtomicU64, class: fn(Zone) -> Class| {
            let some = word.fetch_or(0, Ordering::AcqRel) != 0;
            mutant!("no path is set after a zone has changed" => return);
            if some {
                Zone::ALL.iter().for_each(|&zone| section.make_findable(self.words(), class(zone)));
            }
        };
        give_paths(&section.partial, Class::partial);
        give_paths(&section.may_have_runs, Class::partial_with_runs);
        give_paths(&section.free, Class::free);
    }

    /// Makes a section findable in a zone in which it had no free pageblock and now has one.
    fn make_section_findable(&self, section: SectionRef<'_>, zone: Zone) {
        let hint = self.cpu.section(zone).load(Ordering::Relaxed);
        // Make the section this CPU's hint if the present hint has no free pageblock: then frees in
        // random order do not have to change the tree.
        let new_hint = section.to_hint();
        mutant!("a section that is the hint already is not swapped in" => if hint == new_hint { return });
        if hint == new_hint
            || (self.frames.is_near(section.node(self.words()))
                && self.free_in_hinted(hint, zone) == 0)
        {
            self.swap_section(section, zone);
        } else {
            section.make_findable(self.words(), Class::free(zone));
        }
        self.note_free_memory_in(section, zone);
    }

    /// Makes `section` this CPU's hint, so that the CPU's allocations of whole pageblocks use it
    /// from now on. The caller must have found free pageblocks in `section`.
    ///
    /// If several CPUs have found the section at the same time, it becomes the hint of the one that
    /// hides it. The others search again, and find other sections.
    pub(in crate::frames) fn set_section_hint(&self, section: SectionRef<'_>, zone: Zone) {
        self.start_hiding();
        let is_hidden_by_this_call = section.hide(self.words(), Class::free(zone));
        mutant!("two CPUs have one section as their hint" => return self.swap_section(section, zone));
        if is_hidden_by_this_call {
            self.swap_section(section, zone);
        }
    }

    fn swap_section(&self, section: SectionRef<'_>, zone: Zone) {
        self.start_hiding();
        let new_hint = section.to_hint();
        // AcqRel passes on what this CPU has seen of the section. `SeqCst`: see `cpu/low_memory.rs`.
        let former_hint = self.cpu.section(zone).swap(new_hint, Ordering::SeqCst);
        if former_hint != new_hint {
            self.make_former_section_findable(former_hint, zone);
        }
        self.note_hint_in(section, zone, None);
    }

    /// Makes the section of a former hint findable, if it has free pageblocks.
    fn make_former_section_findable(&self, hint: Hint, zone: Zone) {
        if let Some(section) = self.words().hinted_section(hint)
            && section.available(Class::free(zone)) != 0
        {
            section.make_findable(self.words(), Class::free(zone));
        }
    }

    /// Returns the free pageblocks of a zone in the section of a hint.
    fn free_in_hinted(&self, hint: Hint, zone: Zone) -> u64 {
        let section = self.words().hinted_section(hint);
        section.map_or(0, |section| section.available(Class::free(zone)))
    }

    /// Returns the section from which this CPU allocates whole pageblocks.
    pub(in crate::frames) fn this_cpus_section(&self, zone: Zone) -> Option<SectionRef<'f>> {
        // Acquire pairs with the swap that set the hint.
        self.words().hinted_section(self.cpu.section(zone).load(Ordering::Acquire))
    }

    /// Returns the pageblock from which this CPU makes allocations of this grain.
    pub(in crate::frames) fn this_cpus_block(&self, zone: Zone, grain: Grain) -> Option<Block<'f>> {
        // Acquire pairs with the swap that set the hint.
        self.words().hinted_block(self.cpu.block(zone, grain).load(Ordering::Acquire))
    }

    /// Publishes as free every hinted pageblock that is divided although all its frames are free.
    /// Returns whether there was one.
    pub(crate) fn coalesce_all_hinted(&self) -> bool {
        let mut has_coalesced = false;
        for zone in Zone::ALL {
            for block in self.hinted_blocks(zone) {
                self.start_hiding();
                let bitmap = self.bitmap_of(block);
                has_coalesced |= bitmap.is_some_and(|bitmap| self.coalesce(block, bitmap));
            }
        }
        has_coalesced
    }

    /// Returns the pageblocks of one zone that are hints of any CPU or node. A slow free may have
    /// made a pageblock a hint before the pageblock changed its zone, so the hints of both zones
    /// are checked.
    pub(in crate::frames) fn hinted_blocks(
        &self,
        zone: Zone,
    ) -> impl Iterator<Item = Block<'f>> + use<'f, P> {
        let hints = self.frames.cpus_with_records().flat_map(Cpu::blocks).chain(self.node_hints());
        let words = self.words();
        let named = hints.filter_map(move |hint| words.hinted_block(hint.load(Ordering::Acquire)));
        Outlined(named.filter(move |block| block.zone() == zone))
    }

    /// Returns the sections of one zone that are hints of any CPU.
    pub(crate) fn hinted_sections(
        &self,
        zone: Zone,
    ) -> impl Iterator<Item = SectionRef<'f>> + use<'f, P> {
        let hints = self
            .frames
            .cpus_with_records()
            .map(move |cpu| cpu.section(zone).load(Ordering::Acquire));
        let words = self.words();
        Outlined(hints.filter_map(move |hint| words.hinted_section(hint)))
    }

    /// Returns whether a section is among the first `limit` hints of sections of a zone.
    pub(in crate::frames) fn is_hinted_section(
        &self,
        zone: Zone,
        section: SectionRef<'_>,
        limit: usize,
    ) -> bool {
        self.hinted_sections(zone).take(limit).any(|hinted| hinted == section)
    }

    /// Clears the hints and cursors in the sections of `range`, and makes their memory findable,
    /// unless it has just gone offline.
    pub(crate) fn forget_hints(&self, range: PfnRange) {
        let sections = range.align_outward(SECTION_FRAMES as u64);
        let is_in_range = |section: SectionRef<'_>| sections.contains(section.start());
        self.start_hiding();
        let cpu_hints = self.frames.cpus_with_records().flat_map(Cpu::blocks);
        for hint in cpu_hints.chain(self.node_hints()) {
            let block = hint.load(Ordering::Acquire);
            let hinted_section = self.words().hinted_block(block).map(Block::section);
            if hinted_section.is_some_and(is_in_range) && clear_hint(hint, block) {
                self.make_former_hint_findable(block);
            }
        }
        // Pairs with the `SeqCst` accesses of `move_cursor_within` and the fence of
        // `leave_low_memory_unless_hinted`: they see that the hint is clear, or this call sees their
        // cursor.
        fence(Ordering::SeqCst);
        self.forget_node_cursors(|start| sections.contains(start));
        for cpu in self.frames.cpus_with_records() {
            self.forget_cursors(cpu, |block| is_in_range(block.section()));
            for zone in Zone::ALL {
                let section = cpu.section(zone).load(Ordering::Acquire);
                let hinted_section = self.words().hinted_section(section);
                if hinted_section.is_some_and(is_in_range) && clear_hint(cpu.section(zone), section)
                {
                    self.make_former_section_findable(section, zone);
                }
            }
        }
    }

    /// Makes the tree of unreported memory lead to `blocks` of this section, which were published,
    /// and wakes the reporter. Called only while the reporter is switched on.
    #[cold]
    fn note_unreported(&self, section: SectionRef<'_>, blocks: u64) {
        // Relaxed: whoever claimed `blocks` cleared their bits, and the publisher has owned the
        // pageblocks since, so the load sees that value or a later one. A CPU that stores a later
        // value calls this function itself.
        let unreported = blocks & !section.reported.load(Ordering::Relaxed);
        if unreported == 0 {
            return;
        }
        for zone in Zone::ALL {
            if unreported & section.zone_mask(zone) != 0 {
                section.make_findable(self.words(), Class::unreported(zone));
            }
        }
        if self.frames.wakeup().wake() {
            self.frames.platform().wake_reporter();
        }
    }
}

/// Clears a hint that had the value `old`, unless its CPU has changed it since. Returns whether
/// it cleared the hint. `SeqCst`: as in `set_block_hint`.
fn clear_hint(hint: &AtomicU64, old: u64) -> bool {
    hint.compare_exchange(old, NO_HINT, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}
