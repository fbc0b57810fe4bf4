//! The [`Mmu`] of a Xen PV guest.

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

/// Gives access to a PV kernel's tables. Frame numbers are machine frame numbers, as in entries.
pub trait MachineTables: Tables {
    /// Returns the address and the value of the entry by which the kernel itself maps this frame.
    /// The entry is read-only while the frame is a table.
    fn window(&self, frame: Pfn) -> Option<(EntryAddr, Entry)>;

    /// Returns when no lockless page walk of the kernel is in a table that was unhooked before. A
    /// flush by Xen does not wait for these walks, because it interrupts the processors without
    /// entering the kernel.
    fn grace_period(&self);
}

/// The arguments of one hypercall. It takes 20 KiB, so that a kernel keeps it outside its stack.
pub struct HypercallBuffer {
    updates: [MmuUpdate; BATCH],
    ops: [MmuExtOp; BATCH],
}

impl HypercallBuffer {
    /// Makes an empty buffer.
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
    /// The numbers of operations and updates that are gathered in `buffer`.
    ops: usize,
    updates: usize,
}

impl<'r, H: Hypervisor, T: MachineTables> XenPv<'r, H, T> {
    /// Makes the page tables of a guest from access to the tables and to Xen. Xen must have
    /// [`MMU_PT_UPDATE_PRESERVE_AD`](crate::features::MMU_PT_UPDATE_PRESERVE_AD).
    pub fn new(xen: H, tables: T, config: Config, buffer: &'r mut HypercallBuffer) -> Self {
        let config = Config { batch: config.batch.clamp(1, BATCH), ..config };
        XenPv { xen, tables, config, buffer, ops: 0, updates: 0 }
    }

    /// Returns the hypervisor.
    pub fn hypervisor(&mut self) -> &mut H {
        &mut self.xen
    }

    /// Makes Xen apply `update` to each of the batch's entries, `Config::batch` entries in a
    /// hypercall.
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
            // Entries of the root are few, and each has a copy in the user's root.
            if batch.user_copy(slots.at).is_some() {
                self.send(&mut done, core::mem::replace(&mut unpinned, Ok(())))?;
                self.change_both(left, |at| batch.user_copy(at), &update, &mut done)?;
                left = left.part(sound..sound);
            }
            while !left.entries.is_empty() {
                let gathered = left.part(0..self.gather(left, &update));
                if self.config.pins_l1 && slots.level != Level::L1 {
                    // Xen must release the tables below when the entry is unhooked.
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

    /// Makes Xen change entries of the root together with their copies in the user's root: both or
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

    /// Returns how many slots come before the first that maps a grant or has one below it.
    fn up_to_grant(&mut self, slots: Slots<&[Entry]>) -> (usize, Option<Fault>) {
        let mut refused = None;
        let refuses = |slot| {
            refused = self.refuse_grants(slot).err();
            refused.is_some()
        };
        let first = slots.each().position(refuses);
        (first.unwrap_or(slots.entries.len()), refused)
    }

    /// Refuses a slot that maps a grant or has one below it. Xen would not count it as returned,
    /// and the granting domain would never get it back.
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

    /// Gathers updates of these slots, as many as there is room for. Returns how many.
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

    /// Submits the gathered work in one hypercall, the unpinning first. Returns the result of the
    /// unpinning, and how many updates were done.
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

    /// Submits the gathered work, and adds the updates that were done to `done`.
    fn send(&mut self, done: &mut usize, unpinned: Result<(), Fault>) -> Result<(), Halted<Fault>> {
        // Tables below entries that do not change stay pinned.
        if self.updates == 0 {
            self.ops = 0;
        }
        let asked = self.updates;
        let (ops, updated) = self.submit();
        // At most as many as were requested, whatever Xen answers.
        *done += updated.unwrap_or_else(|partly| partly.done.min(asked));
        let faults = updated.map(|_| ()).map_err(refused(Call::MmuUpdate)).and(unpinned).and(ops);
        faults.map_err(|fault| Halted { done: *done, fault })
    }

    /// Gathers the unpinning of all L1 tables below this slot, and submits the buffer whenever it
    /// is full.
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

    /// Gathers the mapping of a table as ordinary memory, and submits the buffer whenever it is
    /// full.
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

    /// Submits the gathered work. If unpinning continued after a table that was not pinned, the
    /// remaining tables are mapped only now.
    fn send_remaps(&mut self) -> Result<(), Fault> {
        let count = self.updates;
        let (unpinned, remapped) = self.submit();
        unpinned?;
        let again = |partly: Partly| {
            // Nothing is left if Xen reports more than was requested.
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

    /// Calls `each` for each entry in use of the lower half of a root.
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

/// Continues after tables that are not pinned, so that a teardown that failed in the middle can be
/// repeated. If a table is still in use, mapping it writable fails.
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

    /// Clears pages by `MMU_PT_UPDATE_PRESERVE_AD` with value 0, which leaves Accessed and Dirty in
    /// the entry. They are read from there: nothing sets them any more, because the entry is not
    /// present. A plain update is enough if a processor has nothing left to set. It is required for
    /// entries that are not pages, where the preserved bits would mean something else. The frame
    /// number must never be left in the entry: Xen takes that for an attack (L1 terminal fault),
    /// and shadows the domain or crashes it.
    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), Halted<Fault>> {
        let cleared = self.change(batch, |slot| {
            // PV guests have no large pages.
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
                // Pages whose entry cannot be read count as accessed and dirty, so that no write is
                // lost. The error is reported.
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

    /// No processor uses the entries any more, so the values that were read are final.
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

    /// Remaps all tables together: Xen flushes at the first change from table to ordinary memory,
    /// and the others need no further flush.
    fn reclaim(&mut self, batch: &Batch) -> Result<(), Fault> {
        self.updates = 0;
        batch.slots().flat_map(Slots::each).try_for_each(|slot| self.remap_below(slot))?;
        self.send_remaps()
    }

    /// Unpins all tables before it maps any of them, in one hypercall, so that Xen flushes once and
    /// not once for each table.
    ///
    /// No flush is needed at the end. A CPU flushes when it leaves a root, and Xen maps a root
    /// writable only when no CPU runs on it and all CPUs that did have flushed.
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

    /// To unhook a table, Xen reads it from end to end and maps it writable, which costs as much as
    /// clearing 28 entries. The broadcast to all CPUs costs as much as clearing two entries for
    /// each CPU. (Instructions, with two CPUs: `bench teardown --cases xen-sparse`.)
    fn unhooking_pays_from(&self, tables: u64) -> Option<u64> {
        Some(28 * tables + 2 * self.config.cpus as u64)
    }
}
