//! Implements the [`Mmu`] of a Xen PV guest.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the guest's tables, and the operations of an [`Mmu`] |
//! | `change.rs` | changes of a batch's entries, in both roots |
//! | `below.rs` | the tables below a slot: grants, unpinning, remapping |
//! | `submit.rs` | the buffer of one hypercall |

mod below;
mod change;
mod submit;

use crate::abi::{Command, MmuExtOp, MmuUpdate};
use crate::config::{BATCH, Config};
use crate::fault::{Call, Fault};
use crate::hypervisor::{BatchRefused, Hypervisor};
use core::iter;
use hotmem_addr::{Pfn, geometry::FRAME_SIZE};
use hotmem_pgtable::{
    Batch, BatchError, Change, Entry, EntryAddr, Flags, Flush, Level, Mmu, Slot, Slots, Space,
    Table, Tables, entry_at,
};

/// Access to a PV kernel's tables. Frame numbers are machine frame numbers, as in entries.
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
}

impl<H: Hypervisor, T: MachineTables> Mmu for XenPv<'_, H, T> {
    type Fault = Fault;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.table(frame)
    }

    /// Clears pages by `MMU_PT_UPDATE_PRESERVE_AD` with value 0, which leaves Accessed and Dirty in
    /// the entry, and then reads the two bits. No processor sets them any more, because the entry
    /// is not present. If both bits are set already, a normal update is enough. Entries that are
    /// not pages need a normal update, because there the preserved bits mean something else. The
    /// frame number must never stay in the entry: Xen takes that for an attack (L1 terminal fault),
    /// and shadows the domain or crashes it.
    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<Fault>> {
        let cleared = self.change(batch, |slot| {
            // PV guests have no large pages.
            let is_normal = slot.level != Level::L1 || slot.entry.is_settled();
            let command = if is_normal { Command::Normal } else { Command::PreserveAd };
            MmuUpdate::new(slot.at, command, Entry::EMPTY)
        });
        let (count, mut unread) = (batch.len(), None);
        for slots in batch.slots_mut().filter(|slots| slots.level == Level::L1) {
            let table = self.tables.table(slots.at.table());
            for (index, entry) in (slots.at.index()..).zip(slots.entries) {
                if entry.is_settled() {
                    continue;
                }
                // If the entry cannot be read, report the error, and count the page as accessed and
                // dirty, so that no write is lost.
                if table.is_none() {
                    unread = unread.or(Some(Fault::NotMapped(slots.at.table())));
                }
                let used = table.map_or(Flags::USED, |table| entry_at(table, index).flags());
                *entry = entry.with(used & Flags::USED);
            }
        }
        match unread {
            Some(fault) if cleared.is_ok() => Err(BatchError { done: count, fault }),
            _ => cleared,
        }
    }

    fn clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<Fault>> {
        self.change(batch, |slot| MmuUpdate::new(slot.at, Command::Normal, Entry::EMPTY))
    }

    /// No processor uses the entries any more, so the values that were read are final.
    fn get_and_clear_full(&mut self, batch: &mut Batch) -> Result<(), BatchError<Fault>> {
        self.clear(batch)
    }

    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), BatchError<Fault>> {
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

    /// Maps all tables as ordinary memory in one batch: Xen flushes at the first change from table
    /// to ordinary memory, and the other changes need no further flush.
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
        self.each_lower(space, Self::refuse_grants)?;
        (self.ops, self.updates) = (0, 0);
        let roots = || iter::once(space.root).chain(space.user_root);
        roots().try_for_each(|root| self.gather_op(MmuExtOp::unpin(root)))?;
        if self.config.pins_l1 {
            self.each_lower(space, Self::unpin_below)?;
        }
        self.each_lower(space, Self::remap_below)?;
        roots().try_for_each(|root| self.gather_remap(root))?;
        self.send_remaps()
    }

    /// To unhook a table, Xen reads it from end to end and maps it writable, which costs as much as
    /// clearing 28 entries. The broadcast to all CPUs costs as much as clearing two entries for
    /// each CPU. (Instructions, with two CPUs: `bench teardown --cases xen-sparse`.)
    fn min_entries_to_unhook(&self, tables: u64) -> Option<u64> {
        Some(28 * tables + 2 * self.config.cpus as u64)
    }
}

fn refused(call: Call) -> impl Fn(BatchRefused) -> Fault {
    move |partly| Fault::Refused { call, errno: partly.errno }
}
