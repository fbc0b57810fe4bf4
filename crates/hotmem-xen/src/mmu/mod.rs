//! Implements the [`Mmu`] of a Xen PV guest.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the guest's tables, and the operations of an [`Mmu`] |
//! | `change.rs` | changes of a batch's entries, in both roots |
//! | `subtree.rs` | the tables below an entry: grants, unpinning, remapping |
//! | `submit.rs` | the buffer of one hypercall |

mod change;
mod submit;
mod subtree;

use crate::abi::{Command, MmuExtOp, MmuUpdate};
use crate::config::{Config, MAX_BATCH};
use crate::fault::{Fault, HypercallPurpose};
use crate::hypervisor::{BatchRefused, Hypervisor};
use core::iter;
use hotmem_addr::{Pfn, geometry::FRAME_SIZE};
use hotmem_pgtable::x86_64::{Batch, Change, Entry, Flags, Format, LocatedEntry, Space};
use hotmem_pgtable::{
    BatchError, EntryAddr, Flush, Level, LocatedEntries, Mmu, Table, Tables, entry_at,
};

/// Access to a PV kernel's tables. Frame numbers are machine frame numbers, as in entries.
pub trait MachineTables: Tables {
    /// Returns the address and the value of the entry of the kernel's direct map that maps this
    /// frame, or `None` if the direct map does not map the frame. The entry is read-only while the
    /// frame is a table.
    fn direct_map_entry(&self, frame: Pfn) -> Option<(EntryAddr, Entry)>;

    /// Returns when no lockless page walk of the kernel is in a table that was unhooked before. A
    /// flush by Xen does not wait for these walks, because it interrupts the processors without
    /// entering the kernel.
    fn grace_period(&self);
}

/// The arguments of one hypercall. They take 20 KiB, so a kernel should not keep them on its stack.
pub struct HypercallBuffer {
    updates: [MmuUpdate; MAX_BATCH],
    ops: [MmuExtOp; MAX_BATCH],
}

impl HypercallBuffer {
    /// Makes an empty buffer.
    #[must_use]
    pub const fn new() -> HypercallBuffer {
        HypercallBuffer { updates: [MmuUpdate::NONE; MAX_BATCH], ops: [MmuExtOp::NONE; MAX_BATCH] }
    }
}

impl Default for HypercallBuffer {
    fn default() -> HypercallBuffer {
        HypercallBuffer::new()
    }
}

/// The [`Mmu`] of a PV guest.
pub struct XenPv<'r, H, T> {
    xen: H,
    tables: T,
    config: Config,
    buffer: &'r mut HypercallBuffer,
    /// The number of operations that are queued in `buffer`.
    op_count: usize,
    /// The number of updates that are queued in `buffer`.
    update_count: usize,
}

impl<'r, H: Hypervisor, T: MachineTables> XenPv<'r, H, T> {
    /// Creates the `Mmu`. `xen` makes the hypercalls, and `tables` gives access to the page tables.
    /// Xen must have the feature
    /// [`MMU_PT_UPDATE_PRESERVE_AD`](crate::features::MMU_PT_UPDATE_PRESERVE_AD).
    pub fn new(xen: H, tables: T, config: Config, buffer: &'r mut HypercallBuffer) -> Self {
        let config = Config { batch: config.batch.clamp(1, MAX_BATCH), ..config };
        XenPv { xen, tables, config, buffer, op_count: 0, update_count: 0 }
    }

    /// Returns the hypervisor.
    pub fn hypervisor(&mut self) -> &mut H {
        &mut self.xen
    }
}

impl<H: Hypervisor, T: MachineTables> Mmu for XenPv<'_, H, T> {
    type Format = Format;
    type Fault = Fault;

    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.tables.table(frame)
    }

    /// Clears pages by `MMU_PT_UPDATE_PRESERVE_AD` with value 0, which leaves Accessed and Dirty in
    /// the entry, and then reads the two bits. No processor sets them any more, because the entry is
    /// not present. If both bits are set before, a normal update suffices. Entries that map no page
    /// need a normal update, because the two bits have another meaning in them. The frame number is
    /// cleared, too: Xen treats an entry with a frame that is not present as an attack by L1
    /// terminal fault, and shadows the domain or crashes it.
    fn get_and_clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<Fault>> {
        let cleared = self.change(batch, |located| {
            // PV guests have no large pages.
            let is_normal = located.level != Level::L1 || located.entry.has_final_flags();
            let command = if is_normal { Command::Normal } else { Command::PreserveAd };
            MmuUpdate::new(located.addr, command, Entry::EMPTY)
        });
        let (count, mut read_fault) = (batch.len(), None);
        for located in batch.entry_runs_mut().filter(|located| located.level == Level::L1) {
            let table = self.tables.table(located.first_addr.table());
            for (index, entry) in (located.first_addr.index()..).zip(located.entries) {
                if entry.has_final_flags() {
                    continue;
                }
                // If the entry cannot be read, return an error at the end, and pass the page on as
                // accessed and dirty, so that no write is lost.
                if table.is_none() {
                    read_fault = read_fault.or(Some(Fault::NotMapped(located.first_addr.table())));
                }
                let used = table.map_or(Flags::ACCESSED_DIRTY, |table| {
                    entry_at::<Format>(table, index).flags()
                });
                *entry = entry.with(used & Flags::ACCESSED_DIRTY);
            }
        }
        match read_fault {
            Some(fault) if cleared.is_ok() => Err(BatchError { entries_done: count, fault }),
            _ => cleared,
        }
    }

    fn clear(&mut self, batch: &mut Batch) -> Result<(), BatchError<Fault>> {
        self.change(batch, |located| MmuUpdate::new(located.addr, Command::Normal, Entry::EMPTY))
    }

    /// No processor uses the entries any more, so the values that were read are final.
    fn get_and_clear_full(&mut self, batch: &mut Batch) -> Result<(), BatchError<Fault>> {
        self.clear(batch)
    }

    fn protect(&mut self, batch: &Batch, change: Change) -> Result<(), BatchError<Fault>> {
        self.change(batch, |located| {
            let value = change.apply(located.entry);
            if located.entry.has_final_flags() {
                return MmuUpdate::new(located.addr, Command::Normal, value);
            }
            let without_used_flags = Entry::from_bits(value.bits() & !Flags::ACCESSED_DIRTY.bits());
            MmuUpdate::new(located.addr, Command::PreserveAd, without_used_flags)
        })
    }

    fn split(&mut self, located: &LocatedEntry, _: Pfn) -> Result<(), Fault> {
        Err(Fault::LargePage(located.entry))
    }

    fn flush(&mut self, flush: Flush) -> Result<(), Fault> {
        let is_one_page = flush.range.bytes().0 == FRAME_SIZE && !flush.tables;
        let page = MmuExtOp::flush_page(flush.range.start());
        let op = if is_one_page { page } else { MmuExtOp::flush_all() };
        self.xen.mmuext_op(&[op]).map_err(refused(HypercallPurpose::Flush))?;
        if flush.tables {
            self.tables.grace_period();
        }
        Ok(())
    }

    /// Maps all tables as ordinary memory in one batch. Xen flushes when it changes the first table
    /// to ordinary memory. The other tables need no further flush.
    fn reclaim(&mut self, batch: &Batch) -> Result<(), Fault> {
        self.update_count = 0;
        batch
            .entry_runs()
            .flat_map(LocatedEntries::each)
            .try_for_each(|located| self.remap_subtree(located))?;
        self.submit_remaps()
    }

    /// Unpins all tables in one hypercall before it maps any of them writable, so that Xen flushes
    /// only one time, and not for each table.
    ///
    /// No flush is needed at the end: a CPU flushes when it switches to another root, and Xen maps a
    /// root writable only after all CPUs that ran on the root have switched and flushed.
    fn retire(&mut self, space: Space) -> Result<(), Fault> {
        self.for_each_lower_half_entry(space, Self::refuse_grants)?;
        (self.op_count, self.update_count) = (0, 0);
        let roots = || iter::once(space.root).chain(space.user_root);
        roots().try_for_each(|root| self.queue_op(MmuExtOp::unpin(root)))?;
        if self.config.pins_l1 {
            self.for_each_lower_half_entry(space, Self::unpin_subtree)?;
        }
        self.for_each_lower_half_entry(space, Self::remap_subtree)?;
        roots().try_for_each(|root| self.queue_remap(root))?;
        self.submit_remaps()
    }

    /// To unhook a table, Xen reads it from end to end and maps it writable, which costs as much as
    /// clearing 28 entries. The broadcast to all CPUs costs as much as clearing two entries for
    /// each CPU. (Instructions, with two CPUs: `bench teardown --cases xen-sparse`.)
    fn min_entries_to_unhook(&self, tables: u64) -> Option<u64> {
        Some(28 * tables + 2 * self.config.cpus as u64)
    }
}

fn refused(purpose: HypercallPurpose) -> impl Fn(BatchRefused) -> Fault {
    move |refused| Fault::Refused { purpose, errno: refused.errno }
}
