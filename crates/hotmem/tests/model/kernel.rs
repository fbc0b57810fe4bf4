//! The kernel on the modelled machine: it knows who has each frame, and moves what can be moved.

use crate::ask::Ask;
use crate::common::{BLOCK, numbers, pfn, range};
use crate::world::{Frame, TABLES, Tag, World};
use hotmem::{Hooks, Migration, Pfn, PfnRange, Spare, Veto};

impl Hooks for World<'_> {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        self.tables_needed
    }

    fn map(&mut self, range: PfnRange, spare: &mut Spare) {
        assert!(self.all(range, |block| !block.mapped), "{range:?} is mapped");
        self.assert_untouched(range);
        self.blocks_in(range).iter_mut().for_each(|block| block.mapped = true);
        let take = self.rng.u64(..=self.tables_needed);
        for _ in 0..take {
            if let Some(table) = spare.take() {
                self.tables.push((table.number(), range));
            }
        }
    }

    fn unmap(&mut self, range: PfnRange) {
        self.newly_offline(range);
        assert!(self.all(range, |block| block.mapped && !block.online), "{range:?} is in use");
        self.blocks_in(range).iter_mut().for_each(|block| block.mapped = false);
        self.forbid(range);
    }

    fn remap(&mut self, range: PfnRange) {
        assert!(self.all(range, |block| !block.mapped), "{range:?} is mapped");
        self.assert_untouched(range);
        self.blocks_in(range).iter_mut().for_each(|block| block.mapped = true);
    }

    fn release_tables(&mut self, gone: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let tables = std::mem::take(&mut self.tables);
        for (table, mapped) in tables {
            let needed = numbers(mapped)
                .step_by(BLOCK as usize)
                .any(|frame| self.block_of(frame).present && !gone.contains(pfn(frame)));
            if needed {
                self.tables.push((table, mapped));
            } else {
                self.give(range(table, 1));
                free(pfn(table));
                // What is none of the kernel's is refused.
                free(pfn(table));
            }
        }
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        assert!(self.all(range, |block| block.online), "{range:?} is not online");
        if self.rng.u32(..100) < self.vetoes {
            self.last_veto = Some(range);
            return Err(Veto("not now"));
        }
        self.blocks_in(range).iter_mut().for_each(|block| block.agreed += 1);
        Ok(())
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        self.tell(|| format!("cancelled {range:?}"));
        assert!(self.all(range, |block| block.agreed > 0), "{range:?} was never agreed to");
        self.blocks_in(range).iter_mut().for_each(|block| block.agreed -= 1);
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.sync_metadata();
        self.tell(|| format!("migrate {used:?}"));
        let one_block =
            used.start().align_down(BLOCK) == pfn(used.end().number() - 1).align_down(BLOCK);
        assert!(one_block && self.all(used, |block| block.agreed > 0), "{used:?}");
        if self.rng.u32(..100) < self.retries {
            return Migration::Retry;
        }
        let mut moved = false;
        for frame in numbers(used) {
            let tag = match self.frame[frame as usize] {
                Frame::Used(tag) => tag,
                Frame::Hole => Tag { owner: TABLES, movable: false },
                other => panic!("asked to migrate {other:?} at {frame:#x} in {used:?}"),
            };
            if !tag.movable {
                return if moved { Migration::Moved } else { Migration::Pinned("not movable") };
            }
            if self.rng.u32(..20) == 0 {
                self.free(range(frame, 1));
                return Migration::Gone;
            }
            let Some(new) = self.alloc(&Ask { movable: true, ..Ask::frames(1) }) else {
                return Migration::Retry;
            };
            self.give(new);
            self.take(new, tag);
            self.free(range(frame, 1));
            moved = true;
        }
        Migration::Moved
    }
}

impl World<'_> {
    /// Frames that the engine has taken for page tables.
    pub(crate) fn take_tables(&mut self, tables: PfnRange) {
        self.take(tables, Tag { owner: TABLES, movable: false });
    }
}
