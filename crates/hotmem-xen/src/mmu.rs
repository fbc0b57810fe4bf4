//! The machine of a Xen PV guest.

use crate::abi::{Command, DomId, Errno, MmuExtOp, MmuUpdate};
use crate::fault::{Call, Fault};
use crate::hypervisor::{Hypervisor, Partly};
use hotmem::{Bytes, Pfn, geometry::FRAME_SIZE};
use hotmem_pgtable::{
    Batch, Change, ENTRIES, Entry, EntryAddr, Flags, Flush, Halted, Kind, Level, Mmu, Slot, Slots,
    Space, Table, Tables, each_table, entry_at,
};

/// Entries in one hypercall.
const BATCH: usize = 512;

/// Where a PV kernel reaches its tables. Frames are the machine's, as in entries.
pub trait MachineTables: Tables {
    /// The entry by which the kernel itself maps this frame, and what it holds: read-only while
    /// the frame is a table.
    fn window(&self, frame: Pfn) -> Option<(EntryAddr, Entry)>;

    /// Returns when none of the kernel's own walkers without locks is in a table that was unhooked
    /// before. Xen's flush interrupts processors and not what the kernel runs on them, so it does
    /// not wait for these, as an interrupt of the kernel's own would.
    fn grace_period(&self);
}

/// What is the kernel's choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Tables of the lowest level are pinned one by one, as Linux does, beside the root.
    pub pins_l1: bool,
    /// The flag, one of [`Flags::AVAILABLE`], with which the kernel marks pages that are grants. If
    /// there is one, whole tables are read for it before they go.
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

    /// Has Xen change the batch's entries, as `update` says of each, so many in a hypercall.
    fn change(
        &mut self,
        batch: &Batch,
        update: impl Fn(&Slot) -> MmuUpdate,
    ) -> Result<(), Halted<Fault>> {
        (self.ops, self.updates) = (0, 0);
        let (mut done, mut unpinned) = (0, Ok(()));
        for slots in batch.slots() {
            let (sound, grant) = self.up_to_grant(slots);
            let mut left = slots.part(0..sound);
            while !left.entries.is_empty() {
                let gathered = left.part(0..self.gather(left, &update));
                if self.config.pins_l1 && slots.level != Level::L1 {
                    // Xen is to let go of what hangs below when it is unhooked.
                    unpinned = gathered
                        .each()
                        .fold(unpinned, |so_far, slot| so_far.and(self.unpin_below(slot)));
                }
                left = left.part(gathered.entries.len()..left.entries.len());
                if self.updates == self.config.batch {
                    self.send(&mut done, unpinned)?;
                }
            }
            if let Some(fault) = grant {
                self.send(&mut done, unpinned)?;
                return Err(Halted { done, fault });
            }
        }
        self.send(&mut done, unpinned)
    }

    /// How many slots come before the first that is a grant's, or has one below it.
    fn up_to_grant(&mut self, slots: Slots<&[Entry]>) -> (usize, Option<Fault>) {
        let mut refused = None;
        let refuses = |slot| {
            refused = self.refuse_grants(slot).err();
            refused.is_some()
        };
        let first = slots.each().position(refuses);
        (first.unwrap_or(slots.entries.len()), refused)
    }

    /// Refuses a slot that is a grant's, or has one below it: Xen would take it for given back, and
    /// the domain that granted it never gets it.
    fn refuse_grants(&mut self, slot: Slot) -> Result<(), Fault> {
        let grant = self.config.grant;
        if grant.is_empty() {
            return Ok(());
        }
        let refuse = |at, entry: Entry| {
            let is_grant = entry.is_present() && entry.flags().intersects(grant);
            if is_grant { Err(Fault::GrantMapped { at, entry }) } else { Ok(()) }
        };
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return refuse(slot.at, slot.entry);
        };
        each_table(self, table, level, &mut |this: &mut Self, table, level| {
            let lowest = this.tables.table(table).filter(|_| level == Level::L1);
            let entry = |index| lowest.map(|words| (index, entry_at(words, index)));
            let mut entries = (0..ENTRIES).map_while(entry);
            entries.try_for_each(|(index, entry)| refuse(EntryAddr::new(table, index), entry))
        })
    }

    /// Gathers updates of these slots, as far as there is room. Returns how many.
    fn gather(&mut self, slots: Slots<&[Entry]>, update: impl Fn(&Slot) -> MmuUpdate) -> usize {
        let room = self.room.updates.get_mut(self.updates..self.config.batch).unwrap_or_default();
        let mut gathered = 0;
        for (room, slot) in room.iter_mut().zip(slots.each()) {
            *room = update(&slot);
            gathered += 1;
        }
        self.updates += gathered;
        gathered
    }

    /// Has Xen do what is gathered, the unpinning first; counts the updates that are done.
    fn send(&mut self, done: &mut usize, unpinned: Result<(), Fault>) -> Result<(), Halted<Fault>> {
        let updates = self.room.updates.get(..core::mem::take(&mut self.updates));
        let updates = updates.unwrap_or_default();
        let ops = self.room.ops.get(..core::mem::take(&mut self.ops)).unwrap_or_default();
        let (ops, updated) = match (ops.is_empty(), updates.is_empty()) {
            (_, true) => (Ok(()), Ok(())),
            (true, _) => (Ok(()), self.xen.mmu_update(updates, DomId::SELF)),
            _ => {
                let (unpinned, updated) = self.xen.mmuext_op_then_update(ops, updates);
                (go_on_unpinning(&mut self.xen, ops, unpinned), updated)
            }
        };
        *done += updated.map_or_else(|partly| partly.done, |()| updates.len());
        let faults = updated.map_err(refused(Call::MmuUpdate)).and(unpinned).and(ops);
        faults.map_err(|fault| Halted { done: *done, fault })
    }

    /// Gathers the unpinning of all lowest tables below this slot; what is full goes at once.
    fn unpin_below(&mut self, slot: Slot) -> Result<(), Fault> {
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return Ok(());
        };
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
        let unpinned = self.xen.mmuext_op(ops);
        go_on_unpinning(&mut self.xen, ops, unpinned)
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

    fn remap_below(&mut self, slot: Slot) -> Result<(), Fault> {
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return Ok(());
        };
        each_table(self, table, level, &mut |this: &mut Self, table, _| this.gather_remap(table))
    }

    /// Calls `each` for the lower half of a root.
    fn each_own(
        &mut self,
        space: Space,
        each: impl Fn(&mut Self, Slot) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        for index in 0..ENTRIES / 2 {
            let root = self.tables.table(space.root).ok_or(Fault::NotMapped(space.root))?;
            let virt = index as u64 * space.levels.entry_bytes().0;
            let at = EntryAddr::new(space.root, index);
            each(self, Slot { virt, at, entry: entry_at(root, index), level: space.levels })?;
        }
        Ok(())
    }
}

/// Goes on after tables that are not pinned: so that what failed in the middle can be done again.
/// Whether a table is in use is seen when it is mapped writable.
fn go_on_unpinning(
    xen: &mut impl Hypervisor,
    mut ops: &[MmuExtOp],
    mut result: Result<(), Partly>,
) -> Result<(), Fault> {
    while let Err(Partly { done, errno: Errno::EINVAL }) = result {
        ops = ops.get(done + 1..).unwrap_or_default();
        result = if ops.is_empty() { Ok(()) } else { xen.mmuext_op(ops) };
    }
    result.map_err(refused(Call::Unpin))
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
    /// present. A plain update does where a processor has nothing left to set, and is needed for
    /// what Xen does not count as a page: it would keep bits that mean something else. Never with
    /// the frame's number left: Xen takes that for an attack (L1 terminal fault) and shadows the
    /// domain or crashes it.
    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), Halted<Fault>> {
        let cleared = self.change(batch, |slot| {
            // There are no large pages.
            let plain = slot.level != Level::L1 || slot.entry.is_settled();
            let command = if plain { Command::Normal } else { Command::PreserveAd };
            MmuUpdate::new(slot.at, command, Entry::EMPTY)
        });
        for slots in batch.slots_mut().filter(|slots| slots.level == Level::L1) {
            let Some(table) = self.tables.table(slots.at.table()) else { continue };
            for (index, entry) in (slots.at.index()..).zip(slots.entries) {
                if !entry.is_settled() {
                    *entry = entry.with(entry_at(table, index).flags() & Flags::USED);
                }
            }
        }
        cleared
    }

    fn clear(&mut self, batch: &mut Batch) -> Result<(), Halted<Fault>> {
        self.change(batch, |slot| MmuUpdate::new(slot.at, Command::Normal, Entry::EMPTY))
    }

    /// No processor uses the entries any more: what was read of them is final.
    fn get_and_clear_full(&mut self, batch: &mut Batch) -> Result<(), Halted<Fault>> {
        self.clear(batch)
    }

    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), Halted<Fault>> {
        self.change(batch, |slot| {
            let value = change.of(slot.entry);
            if slot.entry.is_settled() {
                return MmuUpdate::new(slot.at, Command::Normal, value);
            }
            let unused = Entry::from_bits(value.bits() & !Flags::USED.bits());
            MmuUpdate::new(slot.at, Command::PreserveAd, unused)
        })
    }

    fn split(&mut self, slot: &Slot, _: Pfn) -> Result<(), Fault> {
        Err(Fault::LargePage(slot.entry))
    }

    fn flush(&mut self, flush: Flush) -> Result<(), Fault> {
        let one = flush.range.bytes().0 == FRAME_SIZE && !flush.tables;
        let page = MmuExtOp::flush_page(flush.range.start());
        let op = if one { page } else { MmuExtOp::flush_all() };
        self.xen.mmuext_op(&[op]).map_err(refused(Call::Flush))?;
        if flush.tables {
            self.tables.grace_period();
        }
        Ok(())
    }

    /// All tables in one go: the first change from table to ordinary memory has Xen flush, and the
    /// others find it done.
    fn reclaim(&mut self, batch: &Batch) -> Result<(), Fault> {
        self.updates = 0;
        batch.slots().flat_map(Slots::each).try_for_each(|slot| self.remap_below(slot))?;
        self.send_remaps()
    }

    /// All unpinning before all mapping, so that Xen flushes once and not once a table.
    fn retire(&mut self, space: Space) -> Result<(), Fault> {
        self.each_own(space, Self::refuse_grants)?;
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
