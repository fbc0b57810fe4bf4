//! The machine of a Xen PV guest.

use crate::abi::{Command, DomId, MmuExtOp, MmuUpdate};
use crate::fault::{Call, Fault};
use crate::hypervisor::{Hypervisor, Partly};
use hotmem::{Bytes, Pfn, geometry::FRAME_SIZE};
use hotmem_pgtable::{
    Change, ENTRIES, Entry, EntryAddr, Flags, Flush, Halted, Kind, Level, Mmu, Slot, Space, Table,
    Tables, each_table, entry_at,
};

/// Entries in one hypercall.
const BATCH: usize = 512;

/// Where a PV kernel reaches its tables. Frames are the machine's, as in entries.
pub trait MachineTables: Tables {
    /// The entry by which the kernel itself maps this frame, and what it holds: read-only while
    /// the frame is a table.
    fn window(&self, frame: Pfn) -> Option<(EntryAddr, Entry)>;
}

/// What is the kernel's choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Tables of the lowest level are pinned one by one, as Linux does, beside the root.
    pub pins_l1: bool,
    /// The flag, one of [`Flags::AVAILABLE`], with which the kernel marks entries that map grants.
    pub grant: Flags,
    /// How many entries go into one hypercall: 1 to 512.
    pub batch: usize,
    /// On how many CPUs the domain runs.
    pub cpus: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { pins_l1: false, grant: Flags::empty(), batch: BATCH, cpus: 1 }
    }
}

/// Room for what is handed to Xen: 20 KiB, which the caller keeps where it has room.
pub struct Room {
    updates: [MmuUpdate; BATCH],
    ops: [MmuExtOp; BATCH],
}

impl Room {
    /// Empty.
    #[must_use]
    pub const fn new() -> Room {
        Room { updates: [MmuUpdate::NONE; BATCH], ops: [MmuExtOp::NONE; BATCH] }
    }
}

impl Default for Room {
    fn default() -> Room {
        Room::new()
    }
}

/// The page tables of a PV guest.
pub struct XenPv<'r, H, T> {
    xen: H,
    tables: T,
    config: Config,
    room: &'r mut Room,
    /// Operations and updates that are gathered in `room`.
    ops: usize,
    updates: usize,
}

impl<'r, H: Hypervisor, T: MachineTables> XenPv<'r, H, T> {
    /// The guest's tables, and Xen to change them. Xen must have
    /// [`MMU_PT_UPDATE_PRESERVE_AD`](crate::features::MMU_PT_UPDATE_PRESERVE_AD).
    pub fn new(xen: H, tables: T, config: Config, room: &'r mut Room) -> Self {
        let config = Config { batch: config.batch.clamp(1, BATCH), ..config };
        XenPv { xen, tables, config, room, ops: 0, updates: 0 }
    }

    /// The hypervisor.
    pub fn hypervisor(&mut self) -> &mut H {
        &mut self.xen
    }

    /// Has Xen change the slots' entries, as `update` says of each, in batches.
    fn change(
        &mut self,
        slots: &[Slot],
        update: impl Fn(&Slot) -> MmuUpdate,
    ) -> Result<(), Halted<Fault>> {
        let batch = self.config.batch;
        for (number, slots) in slots.chunks(batch).enumerate() {
            let mut fit = 0;
            for (room, slot) in self.room.updates.iter_mut().zip(slots) {
                if slot.entry.flags().intersects(self.config.grant) {
                    break;
                }
                *room = update(slot);
                fit += 1;
            }
            let (unpinned, updated) = self.update(&slots[..fit]);
            let halted = |done: usize, fault| Halted { done: number * batch + done, fault };
            updated.map_err(|Partly { done, errno }| {
                halted(done, Fault::Refused { call: Call::MmuUpdate, errno })
            })?;
            unpinned.map_err(|fault| halted(fit, fault))?;
            if let Some(slot) = slots.get(fit) {
                return Err(halted(fit, Fault::GrantMapped { at: slot.at, entry: slot.entry }));
            }
        }
        Ok(())
    }

    /// The updates in the room, one for each slot; before them, what hangs below the slots is
    /// unpinned, so that Xen lets go of it when it is unhooked.
    fn update(&mut self, slots: &[Slot]) -> (Result<(), Fault>, Result<(), Partly>) {
        let mut unpinned = Ok(());
        if self.config.pins_l1 {
            for slot in slots {
                if let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) {
                    unpinned = unpinned.and(self.unpin_below(table, level));
                }
            }
        }
        let updates = self.room.updates.get(..slots.len()).unwrap_or_default();
        let ops = self.room.ops.get(..core::mem::take(&mut self.ops)).unwrap_or_default();
        if updates.is_empty() && ops.is_empty() {
            return (unpinned, Ok(()));
        }
        if ops.is_empty() {
            return (unpinned, self.xen.mmu_update(updates, DomId::SELF));
        }
        let (ops, updates) = self.xen.mmuext_op_then_update(ops, updates);
        (unpinned.and(ops.map_err(refused(Call::Unpin))), updates)
    }

    /// Gathers the unpinning of all lowest tables below this one; what is full goes at once.
    fn unpin_below(&mut self, table: Pfn, level: Level) -> Result<(), Fault> {
        each_table(self, table, level, &mut |this: &mut Self, table, level| {
            if level == Level::L1 { this.gather_op(MmuExtOp::unpin(table)) } else { Ok(()) }
        })
    }

    fn gather_op(&mut self, op: MmuExtOp) -> Result<(), Fault> {
        if self.ops == BATCH {
            self.send_ops()?;
        }
        if let Some(room) = self.room.ops.get_mut(self.ops) {
            *room = op;
            self.ops += 1;
        }
        Ok(())
    }

    fn send_ops(&mut self) -> Result<(), Fault> {
        let ops = self.room.ops.get(..core::mem::take(&mut self.ops)).unwrap_or_default();
        if ops.is_empty() {
            return Ok(());
        }
        self.xen.mmuext_op(ops).map_err(refused(Call::Unpin))
    }

    /// Gathers the mapping of a table as ordinary memory; what is full goes at once.
    fn gather_remap(&mut self, table: Pfn) -> Result<(), Fault> {
        let (at, entry) = self.tables.window(table).ok_or(Fault::NotMapped(table))?;
        if self.updates == BATCH {
            self.send_remaps()?;
        }
        if let Some(room) = self.room.updates.get_mut(self.updates) {
            *room = MmuUpdate::new(at, Command::Normal, entry.with(Flags::WRITABLE));
            self.updates += 1;
        }
        Ok(())
    }

    fn send_remaps(&mut self) -> Result<(), Fault> {
        let count = core::mem::take(&mut self.updates);
        let updates = self.room.updates.get(..count).unwrap_or_default();
        if updates.is_empty() {
            return Ok(());
        }
        self.xen.mmu_update(updates, DomId::SELF).map_err(refused(Call::Remap))
    }

    fn remap_below(&mut self, table: Pfn, level: Level) -> Result<(), Fault> {
        each_table(self, table, level, &mut |this: &mut Self, table, _| this.gather_remap(table))
    }

    /// Calls `each` for the tables that hang off the lower half of a root.
    fn each_own(
        &mut self,
        space: Space,
        each: impl Fn(&mut Self, Pfn, Level) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        for index in 0..ENTRIES / 2 {
            let root = self.tables.table(space.root).ok_or(Fault::NotMapped(space.root))?;
            let entry = entry_at(root, index);
            if let (Kind::Table(table), Some(level)) =
                (entry.kind(space.levels), space.levels.below())
            {
                each(self, table, level)?;
            }
        }
        Ok(())
    }
}

fn refused(call: Call) -> impl Fn(Partly) -> Fault {
    move |partly| Fault::Refused { call, errno: partly.errno }
}

impl<H: Hypervisor, T: MachineTables> Mmu for XenPv<'_, H, T> {
    type Fault = Fault;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.table(frame)
    }

    /// Pages by `MMU_PT_UPDATE_PRESERVE_AD` with value 0, which leaves their Accessed and Dirty in
    /// the entry: from there they are read. Nothing sets them any more, because the entry is not
    /// present. What Xen does not count as a page goes by a plain update: it would keep bits that
    /// mean something else. Never with the frame's number left: Xen takes that for an attack (L1
    /// terminal fault) and shadows the domain or crashes it.
    fn get_and_clear(&mut self, slots: &mut [Slot]) -> Result<(), Halted<Fault>> {
        // There are no large pages.
        let is_page = |slot: &Slot| slot.level == Level::L1 && slot.entry.is_present();
        let cleared = self.change(slots, |slot| {
            let command = if is_page(slot) { Command::PreserveAd } else { Command::Normal };
            MmuUpdate::new(slot.at, command, Entry::EMPTY)
        });
        let done = cleared.map_or_else(|halted| halted.done, |()| slots.len());
        // Slots of one table follow each other.
        let mut found = None;
        for slot in slots.iter_mut().take(done).filter(|slot| is_page(slot)) {
            let frame = slot.at.table();
            let table = match found {
                Some((of, table)) if of == frame => table,
                _ => self.tables.table(frame),
            };
            found = Some((frame, table));
            if let Some(table) = table {
                let left = entry_at(table, slot.at.index()).flags() & Flags::USED;
                slot.entry = slot.entry.with(left);
            }
        }
        cleared
    }

    fn clear(&mut self, slots: &mut [Slot]) -> Result<(), Halted<Fault>> {
        self.change(slots, |slot| MmuUpdate::new(slot.at, Command::Normal, Entry::EMPTY))
    }

    /// No processor uses the entries any more: what was read of them is final.
    fn get_and_clear_full(&mut self, slots: &mut [Slot]) -> Result<(), Halted<Fault>> {
        self.clear(slots)
    }

    fn protect(&mut self, slots: &[Slot], change: Change) -> Result<(), Halted<Fault>> {
        let used = Flags::USED.bits();
        let value = |entry: Entry| Entry::from_bits(change.of(entry).bits() & !used);
        self.change(slots, |slot| MmuUpdate::new(slot.at, Command::PreserveAd, value(slot.entry)))
    }

    fn split(&mut self, slot: &Slot, _: Pfn) -> Result<(), Fault> {
        Err(Fault::LargePage(slot.entry))
    }

    fn flush(&mut self, flush: Flush) -> Result<(), Fault> {
        let one = flush.range.bytes().0 == FRAME_SIZE && !flush.tables;
        let page = MmuExtOp::flush_page(flush.range.start());
        let op = if one { page } else { MmuExtOp::flush_all() };
        self.xen.mmuext_op(&[op]).map_err(refused(Call::Flush))
    }

    /// All tables in one go: the first change from table to ordinary memory has Xen flush, and the
    /// others find it done.
    fn reclaim(&mut self, slots: &[Slot]) -> Result<(), Fault> {
        self.updates = 0;
        for slot in slots {
            if let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) {
                self.remap_below(table, level)?;
            }
        }
        self.send_remaps()
    }

    /// All unpinning before all mapping, so that Xen flushes once and not once a table.
    fn retire(&mut self, space: Space) -> Result<(), Fault> {
        (self.ops, self.updates) = (0, 0);
        self.gather_op(MmuExtOp::unpin(space.root))?;
        if self.config.pins_l1 {
            self.each_own(space, Self::unpin_below)?;
        }
        self.send_ops()?;
        self.each_own(space, Self::remap_below)?;
        self.gather_remap(space.root)?;
        self.send_remaps()?;
        self.xen.mmuext_op(&[MmuExtOp::flush_all()]).map_err(refused(Call::Flush))
    }

    /// Unhooking costs a broadcast to every running CPU for each table, clearing some 1000 cycles
    /// for each entry: it pays where a table may hold more entries than there are CPUs, and a few.
    fn unhooking_pays(&self, range: Bytes) -> bool {
        range.frames() > self.config.cpus as u64 + 4
    }
}
