//! Implements the kernel of the modelled instance: the mapping and the hooks. It checks each call,
//! and migrates frames that are movable.

use crate::model::{FrameState, Model, TABLES_OWNER, Tag};
use crate::model_request::ModelRequest;
use hotmem::{Hooks, Migration, NodeChoice, NodeId, Pfn, PfnRange, Veto, Zone};
use hotmem_port::notify::Change;
use hotmem_testkit::forwarding::{Free, TestMapping};
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers, pfn, range};
use std::sync::atomic::Ordering;

impl TestMapping for Model<'_> {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        self.tables_needed
    }

    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        self.frames_for_descriptors(range)
    }

    fn descriptor_pageblocks(&self, section: PfnRange) -> u64 {
        assert!(section.frames() == SECTION && section.is_aligned(SECTION), "{section:?}");
        Model::descriptor_blocks(self)
    }

    fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        self.describe_all(range, take);
    }

    fn undescribe(&mut self, range: PfnRange, free: &mut Free<'_>) {
        self.undescribe_all(range, free);
    }

    fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        assert!(self.all_blocks_are(range, |block| !block.mapped), "{range:?} is mapped");
        self.assert_untouched(range);
        self.blocks_in(range).iter_mut().for_each(|block| block.mapped = true);
        let taken_frames = self.rng.u64(..=self.tables_needed);
        for _ in 0..taken_frames {
            if let Some(table) = take() {
                self.memory.word(table.number()).store(TABLES_OWNER, Ordering::Relaxed);
                self.tables.push((table.number(), range));
                self.table_frames_taken += 1;
            }
        }
    }

    fn unmap(&mut self, range: PfnRange) {
        assert!(
            self.all_blocks_are(range, |block| block.mapped && !block.online),
            "{range:?} is online or not mapped"
        );
        self.assert_describes_no_other(range);
        for block in self.blocks_in(range) {
            (block.mapped, block.is_new_zero) = (false, false);
        }
        self.mark_forbidden(range);
    }

    fn remap(&mut self, range: PfnRange) {
        assert!(self.all_blocks_are(range, |block| !block.mapped), "{range:?} is mapped");
        self.assert_untouched(range);
        self.blocks_in(range).iter_mut().for_each(|block| block.mapped = true);
    }

    fn release_tables(&mut self, removed: PfnRange, free: &mut Free<'_>) {
        let tables = std::mem::take(&mut self.tables);
        for (table, mapped) in tables {
            let is_needed = numbers(mapped)
                .step_by(PAGEBLOCK as usize)
                .filter(|&frame| !removed.contains(pfn(frame)))
                .any(|frame| self.block_of(frame).is_present || self.block_of(frame).device);
            if is_needed {
                self.tables.push((table, mapped));
            } else {
                self.record_free(range(table, 1));
                free(pfn(table)).unwrap();
                // Free the frame a second time: the engine must refuse it.
                free(pfn(table)).unwrap_err();
            }
        }
    }
}

impl Hooks for Model<'_> {
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        assert!(self.all_blocks_are(range, |block| block.online), "{range:?} is not online");
        self.ask_all(Change::Offline(range))?;
        self.blocks_in(range).iter_mut().for_each(|block| block.agreed_requests += 1);
        self.check_listeners(Change::Offline(range));
        Ok(())
    }

    fn offlined(&mut self, range: PfnRange) {
        self.trace(|| format!("offlined {range:?}"));
        self.count_new_metadata();
        let is_removable =
            numbers(range).all(|frame| self.frame_states[frame as usize].is_removable());
        assert!(
            is_removable && self.all_blocks_are(range, |block| block.online && block.is_held()),
            "{range:?}"
        );
        for block in self.blocks_in(range) {
            // `going_offline` was not called for pageblocks that a token of the test holds.
            block.agreed_requests -= u32::from(!block.token);
            (block.online, block.token) = (false, false);
        }
        self.tell_done(Change::Offline(range));
        self.mark_forbidden(range);
        if let Some(offlined) = &mut self.offlined_by_shrink {
            offlined
                .extend(numbers(range).step_by(PAGEBLOCK as usize).map(|frame| frame / PAGEBLOCK));
            self.blocks_in(range).iter_mut().for_each(|block| block.has_prepared_change = true);
        }
    }

    fn node_appeared(&mut self, node: NodeId) {
        assert!(self.nodes.insert(node), "{node:?} appeared although it was online");
    }

    fn node_vanished(&mut self, node: NodeId) {
        assert!(self.nodes.remove(&node), "{node:?} vanished although it was not online");
    }

    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        assert!(
            self.all_blocks_are(range, |block| block.is_present && block.mapped && !block.online)
        );
        self.ask_all(Change::Online(range))?;
        for block in self.blocks_in(range) {
            (block.going_online, block.was_movable) = (true, block.movable);
            block.movable = zone == Zone::Movable;
        }
        self.check_listeners(Change::Online(range));
        Ok(())
    }

    fn online_cancelled(&mut self, range: PfnRange) {
        assert!(
            self.all_blocks_are(range, |block| block.going_online),
            "the kernel never agreed to {range:?}"
        );
        for block in self.blocks_in(range) {
            (block.going_online, block.movable) = (false, block.was_movable);
        }
        self.tell_cancelled(Change::Online(range));
    }

    fn onlined(&mut self, range: PfnRange) {
        let was_asked =
            self.all_blocks_are(range, |block| block.going_online && !block.has_prepared_change);
        let was_put_back =
            self.all_blocks_are(range, |block| !block.going_online && block.has_prepared_change);
        assert!(was_asked || was_put_back, "{range:?}");
        for block in self.blocks_in(range) {
            (block.going_online, block.has_prepared_change, block.online) = (false, false, true);
        }
        self.tell_done(Change::Online(range));
        // The engine may have allocated bitmaps: it divides pageblocks that have poisoned frames,
        // and pageblocks of kernel memory from which it refills the word reserve.
        if self.has_poison(range) || self.reserve_may_be_short {
            self.count_new_metadata();
        }
        self.assert_untouched(range);
        self.zero_new(range);
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        self.trace(|| format!("cancelled {range:?}"));
        assert!(
            self.all_blocks_are(range, |block| block.agreed_requests > 0),
            "the kernel never agreed to {range:?}"
        );
        self.blocks_in(range).iter_mut().for_each(|block| block.agreed_requests -= 1);
        if self.taken_back.take_if(|taken_back| *taken_back == range).is_some() {
            self.blocks_in(range).iter_mut().for_each(|block| block.recalled_requests -= 1);
        }
        self.tell_cancelled(Change::Offline(range));
    }

    fn discard(&mut self, within: PfnRange) {
        self.count_new_metadata();
        self.trace(|| format!("discard {within:?}"));
        assert!(within.frames() == PAGEBLOCK && self.all_blocks_are(within, |block| block.online));
        for frame in numbers(within) {
            let is_movable = matches!(
                self.frame_states[frame as usize],
                FrameState::Used(Tag { movable: true, .. })
            );
            if is_movable && self.rng.u8(..8) == 0 {
                self.free(range(frame, 1));
            }
        }
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.count_new_metadata();
        self.trace(|| format!("migrate {used:?}"));
        let one_block = used.start().align_down(PAGEBLOCK)
            == pfn(used.end().number() - 1).align_down(PAGEBLOCK);
        assert!(
            one_block && self.all_blocks_are(used, |block| block.agreed_requests > 0),
            "{used:?}"
        );
        assert!(!self.has_poison(used), "asked to migrate a poisoned frame of {used:?}");
        if self.rng.u32(..100) < self.retry_percent {
            return Migration::Retry;
        }
        let mut moved = false;
        for frame in numbers(used) {
            let tag = match self.frame_states[frame as usize] {
                FrameState::Used(tag) => tag,
                other => panic!("asked to migrate {other:?} at {frame:#x} in {used:?}"),
            };
            if !tag.movable {
                return if moved { Migration::Moved } else { Migration::Unmovable("not movable") };
            }
            if self.rng.u32(..20) == 0 {
                self.free(range(frame, 1));
                return Migration::Freed;
            }
            let node = self.node_of(frame).map(NodeChoice::Avoiding);
            let Some(new) =
                self.alloc(&ModelRequest { movable: true, node, ..ModelRequest::frames(1) })
            else {
                return Migration::Retry;
            };
            self.record_free(new);
            self.record_allocation(new, tag);
            self.free(range(frame, 1));
            moved = true;
        }
        Migration::Moved
    }
}

impl Model<'_> {
    /// Records frames that the engine has allocated for page tables.
    pub(crate) fn record_tables(&mut self, tables: PfnRange) {
        self.record_allocation(tables, Tag { owner: TABLES_OWNER, movable: false });
    }
}
