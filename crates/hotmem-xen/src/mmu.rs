//! The machine of a Xen PV guest.

use crate::abi::{Command, DomId, Errno, MmuExtOp, MmuUpdate};
use crate::config::{BATCH, Config};
use crate::fault::{Call, Fault};
use crate::hypervisor::{Hypervisor, Partly};
use core::iter;
use hotmem_addr::{Pfn, geometry::FRAME_SIZE};
use hotmem_invariant::Known;
use hotmem_pgtable::{
    Batch, Change, ENTRIES, Entry, EntryAddr, Flags, Flush, Halted, Kind, Level, Mmu, Slot, Slots,
    Space, Table, Tables, each_table, entry_at,
};

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

/// What is handed to Xen in one hypercall: 20 KiB, which the caller keeps where there is space.
pub struct HypercallBuffer {
    updates: [MmuUpdate; BATCH],
    ops: [MmuExtOp; BATCH],
}

impl HypercallBuffer {
    /// Empty.
    #[must_use]
    pub const fn new() -> HypercallBuffer {
        HypercallBuffer { updates: [MmuUpdate::NONE; BATCH], ops: [MmuExtOp::NONE; BATCH] }
    }
}

impl Default for HypercallBuffer {
    fn default() -> HypercallBuffer {
        HypercallBuffer::new()
    }
}

/// The page tables of a PV guest.
pub struct XenPv<'r, H, T> {
    xen: H,
    tables: T,
    config: Config,
    buffer: &'r mut HypercallBuffer,
    /// Operations and updates that are gathered in `buffer`.
    ops: usize,
    updates: usize,
}

impl<'r, H: Hypervisor, T: MachineTables> XenPv<'r, H, T> {
    /// The guest's tables, and Xen to change them. Xen must have
    /// [`MMU_PT_UPDATE_PRESERVE_AD`](crate::features::MMU_PT_UPDATE_PRESERVE_AD).
    pub fn new(xen: H, tables: T, config: Config, buffer: &'r mut HypercallBuffer) -> Self {
        let config = Config { batch: config.batch.clamp(1, BATCH), ..config };
        XenPv { xen, tables, config, buffer, ops: 0, updates: 0 }
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
            // The root's: few, and each with its copy for user mode.
            if batch.user_copy(slots.at).is_some() {
                self.send(&mut done, core::mem::replace(&mut unpinned, Ok(())))?;
                self.change_both(left, |at| batch.user_copy(at), &update, &mut done)?;
                left = left.part(sound..sound);
            }
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

    /// Has Xen change entries of the root, each with its copy in the user's if it has one: both or
    /// neither.
    fn change_both(
        &mut self,
        slots: Slots<&[Entry]>,
        copy_of: impl Fn(EntryAddr) -> Option<EntryAddr>,
        update: impl Fn(&Slot) -> MmuUpdate,
        done: &mut usize,
    ) -> Result<(), Halted<Fault>> {
        for slot in slots.each() {
            let unpinned = if self.config.pins_l1 { self.unpin_below(slot) } else { Ok(()) };
            let copy = copy_of(slot.at);
            self.updates = 0;
            for at in copy.into_iter().chain([slot.at]) {
                self.buffer.updates[self.updates] = update(&Slot { at, ..slot });
                self.updates += 1;
            }
            let (all, mut parts) = (self.updates, 0);
            let sent = self.send(&mut parts, unpinned);
            *done += usize::from(parts == all);
            if let Some(copy) = copy.filter(|_| parts == 1) {
                let back = MmuUpdate::new(copy, Command::Normal, slot.entry);
                let lost = |_| Halted { done: *done, fault: Fault::LostFromUserRoot(copy) };
                self.xen.mmu_update(&[back], DomId::SELF).map_err(lost)?;
            }
            sent.map_err(|halted| Halted { done: *done, ..halted })?;
        }
        Ok(())
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
        let grant = self.config.grants.flag();
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
            if level != Level::L1 {
                return Ok(());
            }
            let words = this.tables.table(table).ok_or(Fault::NotMapped(table))?;
            (0..ENTRIES)
                .try_for_each(|index| refuse(EntryAddr::new(table, index), entry_at(words, index)))
        })
    }

    /// Gathers updates of these slots, as far as there is room. Returns how many.
    fn gather(&mut self, slots: Slots<&[Entry]>, update: impl Fn(&Slot) -> MmuUpdate) -> usize {
        let room = self.buffer.updates.get_mut(self.updates..self.config.batch);
        let room = room.known().unwrap_or_default();
        let mut gathered = 0;
        for (room, slot) in room.iter_mut().zip(slots.each()) {
            *room = update(&slot);
            gathered += 1;
        }
        self.updates += gathered;
        gathered
    }

    /// Has Xen do what is gathered, by one hypercall, the unpinning first. Returns what was not
    /// unpinned, and how many updates there were.
    fn submit(&mut self) -> (Result<(), Fault>, Result<usize, Partly>) {
        let updates = self.buffer.updates.get(..core::mem::take(&mut self.updates));
        let updates = updates.known().unwrap_or_default();
        let ops = self.buffer.ops.get(..core::mem::take(&mut self.ops));
        let ops = ops.known().unwrap_or_default();
        let (unpinned, updated) = match (ops.is_empty(), updates.is_empty()) {
            (true, true) => (Ok(()), Ok(())),
            (true, false) => (Ok(()), self.xen.mmu_update(updates, DomId::SELF)),
            (false, true) => (self.xen.mmuext_op(ops), Ok(())),
            (false, false) => self.xen.mmuext_op_then_update(ops, updates),
        };
        (go_on_unpinning(&mut self.xen, ops, unpinned), updated.map(|()| updates.len()))
    }

    /// Has Xen do what is gathered; counts the updates that are done.
    fn send(&mut self, done: &mut usize, unpinned: Result<(), Fault>) -> Result<(), Halted<Fault>> {
        // What hangs below entries that are not to be changed stays pinned.
        if self.updates == 0 {
            self.ops = 0;
        }
        let asked = self.updates;
        let (ops, updated) = self.submit();
        // As many as were asked for, whatever Xen answers.
        *done += updated.unwrap_or_else(|partly| partly.done.min(asked));
        let faults = updated.map(|_| ()).map_err(refused(Call::MmuUpdate)).and(unpinned).and(ops);
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
            let ops = self.buffer.ops.get(..core::mem::take(&mut self.ops));
            let ops = ops.known().unwrap_or_default();
            let unpinned = self.xen.mmuext_op(ops);
            go_on_unpinning(&mut self.xen, ops, unpinned)?;
        }
        if let Some(room) = self.buffer.ops.get_mut(self.ops).known() {
            *room = op;
            self.ops += 1;
        }
        Ok(())
    }

    /// Gathers the mapping of a table as ordinary memory; what is full goes at once.
    fn gather_remap(&mut self, table: Pfn) -> Result<(), Fault> {
        let (at, entry) = self.tables.window(table).ok_or(Fault::NotMapped(table))?;
        if self.updates == BATCH {
            self.send_remaps()?;
        }
        if let Some(room) = self.buffer.updates.get_mut(self.updates).known() {
            *room = MmuUpdate::new(at, Command::Normal, entry.with(Flags::WRITABLE));
            self.updates += 1;
        }
        Ok(())
    }

    /// Has Xen do what is gathered. Where unpinning went on after a table that was not pinned, what
    /// it went on with is mapped only now.
    fn send_remaps(&mut self) -> Result<(), Fault> {
        let count = self.updates;
        let (unpinned, remapped) = self.submit();
        unpinned?;
        let again = |partly: Partly| {
            // Xen answers no more than it was asked, or nothing is left.
            let left = self.buffer.updates.get(partly.done..count).unwrap_or_default();
            if partly.errno == Errno::EBUSY && !left.is_empty() {
                self.xen.mmu_update(left, DomId::SELF)
            } else {
                Err(partly)
            }
        };
        remapped.map(|_| ()).or_else(again).map_err(refused(Call::Remap))
    }

    fn remap_below(&mut self, slot: Slot) -> Result<(), Fault> {
        let (Kind::Table(table), Some(level)) = (slot.kind(), slot.level.below()) else {
            return Ok(());
        };
        each_table(self, table, level, &mut |this: &mut Self, table, _| this.gather_remap(table))
    }

    /// Calls `each` for what is not empty of the lower half of a root.
    fn each_own(
        &mut self,
        space: Space,
        each: impl Fn(&mut Self, Slot) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut rest = 0..ENTRIES / 2;
        loop {
            let root = self.tables.table(space.root).ok_or(Fault::NotMapped(space.root))?;
            let mut entries = rest.by_ref().map(|index| (index, entry_at(root, index)));
            let found = entries.find(|(_, entry)| !entry.is_empty());
            let Some((index, entry)) = found else { return Ok(()) };
            let virt = index as u64 * space.levels.entry_bytes().0;
            let at = EntryAddr::new(space.root, index);
            each(self, Slot { virt, at, entry, level: space.levels })?;
        }
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
        ops = ops.get(done.saturating_add(1)..).unwrap_or_default();
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
        let (count, mut unread) = (batch.len(), None);
        for slots in batch.slots_mut().filter(|slots| slots.level == Level::L1) {
            let table = self.tables.table(slots.at.table());
            for (index, entry) in (slots.at.index()..).zip(slots.entries) {
                if entry.is_settled() {
                    continue;
                }
                // Of what cannot be read, no use is lost: it counts as used, and is told.
                if table.is_none() {
                    unread = unread.or(Some(Fault::NotMapped(slots.at.table())));
                }
                let used = table.map_or(Flags::USED, |table| entry_at(table, index).flags());
                *entry = entry.with(used & Flags::USED);
            }
        }
        match unread {
            Some(fault) if cleared.is_ok() => Err(Halted { done: count, fault }),
            _ => cleared,
        }
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

    /// All unpinning before all mapping, so that Xen flushes once and not once a table, and both by
    /// one hypercall.
    ///
    /// There is no flush at the end: a CPU that leaves a root flushes when it does, and Xen maps a
    /// root writable only when no CPU is on it, and has had those flush that were on it since.
    fn retire(&mut self, space: Space) -> Result<(), Fault> {
        self.each_own(space, Self::refuse_grants)?;
        (self.ops, self.updates) = (0, 0);
        let roots = || iter::once(space.root).chain(space.user_root);
        roots().try_for_each(|root| self.gather_op(MmuExtOp::unpin(root)))?;
        if self.config.pins_l1 {
            self.each_own(space, Self::unpin_below)?;
        }
        self.each_own(space, Self::remap_below)?;
        roots().try_for_each(|root| self.gather_remap(root))?;
        self.send_remaps()
    }

    /// Unhooking costs Xen reading each table from end to end and mapping it writable, as much as
    /// clearing 28 entries; and a broadcast to all CPUs, as much as clearing two for each.
    /// (Instructions, with two CPUs: `bench teardown --cases xen-sparse`.)
    fn unhooking_pays_from(&self, tables: u64) -> Option<u64> {
        Some(28 * tables + 2 * self.config.cpus as u64)
    }
}
