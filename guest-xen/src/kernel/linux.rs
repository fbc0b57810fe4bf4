//! Tears down an address space in Linux's order. It is a new implementation of the algorithm in
//! `arch/x86/xen/mmu_pv.c` and `multicalls.c` of Linux 6.7.
//!
//! `xen_exit_mmap` unpins the roots. Then it walks the tables from the top down and maps each
//! writable: L1 tables after unpinning them, and the root last. All operations go through a buffer
//! of 32 multicall entries and 512 bytes of arguments, which is submitted when it is full. After
//! that entries are read and cleared by plain accesses, because `zap_pte_range` of a dying address
//! space needs no exchange. Other work of Linux is left out: locks, CPUs that use the root lazily,
//! and the state of each page.

use super::space::Kernel;
use super::stop::must;
use core::sync::atomic::Ordering::Relaxed;
use hotmem_addr::Pfn;
use hotmem_pgtable::x86_64::{Entry, Flags, Format, Space};
use hotmem_pgtable::{ENTRIES, Kind, Level, Owner, entry_at};
use hotmem_xen::{DomId, Errno, MachineTables, MmuExtOp};

/// `MC_BATCH`, and the number of operations that fit in `MC_ARGS`.
const CALLS: usize = 32;
const ARGS: usize = 512;
const OPS: usize = (ARGS - 1) / size_of::<MmuExtOp>();

const UPDATE_VA_MAPPING: u64 = 14;
const MULTICALL: u64 = 13;
const MMUEXT_OP: u64 = 26;
/// `UVMF_TLB_FLUSH`, of the calling CPU.
const TLB_FLUSH: u64 = 1;

/// `struct multicall_entry`
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct MulticallEntry {
    op: u64,
    result: i64,
    args: [u64; 6],
}

/// `struct mc_buffer`
struct Buffer {
    calls: [MulticallEntry; CALLS],
    len: usize,
    ops: [MmuExtOp; OPS],
    ops_len: usize,
    flushes: u64,
}

impl Buffer {
    fn new() -> Buffer {
        let ops = [MmuExtOp::NONE; OPS];
        Buffer { calls: [MulticallEntry::default(); CALLS], len: 0, ops, ops_len: 0, flushes: 0 }
    }

    /// `__xen_mc_entry`
    fn add(&mut self, kernel: &mut Kernel, op: u64, args: [u64; 6]) {
        if self.len == CALLS {
            self.send(kernel);
        }
        self.calls[self.len] = MulticallEntry { op, result: 0, args };
        self.len += 1;
    }

    /// `xen_extend_mmuext_op`
    fn ext(&mut self, kernel: &mut Kernel, op: MmuExtOp) {
        if self.ops_len == OPS {
            self.send(kernel);
        }
        match self.calls[..self.len].last_mut() {
            Some(last) if last.op == MMUEXT_OP => last.args[1] += 1,
            _ => {
                if self.len == CALLS {
                    self.send(kernel);
                }
                let pointer = (&raw const self.ops[self.ops_len]).expose_provenance() as u64;
                self.add(kernel, MMUEXT_OP, [pointer, 1, 0, u64::from(DomId::SELF.0), 0, 0]);
            }
        }
        self.ops[self.ops_len] = op;
        self.ops_len += 1;
    }

    /// Maps a table writable.
    fn remap(&mut self, kernel: &mut Kernel, table: Pfn, flags: u64) {
        let Some((virt, (_, entry))) =
            kernel.memory.virt(table).zip(kernel.memory.direct_map_entry(table))
        else {
            super::stop::give_up("a table is not mapped")
        };
        let entry = entry.with(Flags::WRITABLE).bits();
        self.flushes += flags;
        self.add(kernel, UPDATE_VA_MAPPING, [virt, entry, flags, 0, 0, 0]);
    }

    /// `xen_mc_flush`
    fn send(&mut self, kernel: &mut Kernel) {
        let pointer = self.calls.as_mut_ptr().expose_provenance() as u64;
        let args = [pointer, self.len as u64, 0, 0, 0];
        let flushes = core::mem::take(&mut self.flushes);
        // SAFETY: reads the calls and the operations, and writes the results. It changes only
        // tables of the kernel.
        must("multicall", unsafe { kernel.xen.call(MULTICALL, args, flushes) });
        for call in &self.calls[..self.len] {
            must("a call of a multicall", Errno::of(call.result));
        }
        (self.len, self.ops_len) = (0, 0);
    }
}

/// Takes down an address space.
pub(crate) fn exit(kernel: &mut Kernel, space: Space) {
    let mut buffer = Buffer::new();
    buffer.ext(kernel, MmuExtOp::unpin(space.root));
    if let Some(user) = space.user_root {
        buffer.ext(kernel, MmuExtOp::unpin(user));
        buffer.remap(kernel, user, TLB_FLUSH);
    }
    each_table(kernel, space, |kernel, table, level| {
        if level == Level::L1 {
            buffer.ext(kernel, MmuExtOp::unpin(table));
        }
        buffer.remap(kernel, table, 0);
    });
    buffer.remap(kernel, space.root, TLB_FLUSH);
    buffer.send(kernel);
    let mut virt = super::space::BASE;
    each_table(kernel, space, |kernel, table, level| {
        let Some(words) = kernel.memory.words(table).filter(|_| level == Level::L1) else { return };
        for word in words {
            let entry = Entry::from_bits(word.load(Relaxed));
            word.store(0, Relaxed);
            kernel.page_owner.add_page(virt, entry);
            virt += 4096;
        }
    });
    kernel.page_owner.finish_run();
    // `free_pgtables`: the walk has read the entry of a table before the table is freed.
    each_table(kernel, space, |kernel, table, _| kernel.page_owner.free_table(table));
    for root in [Some(space.root), space.user_root].into_iter().flatten() {
        kernel.page_owner.free_table(root);
    }
}

/// Calls `each` for the tables below the root's lower half, parents first.
fn each_table(kernel: &mut Kernel, space: Space, mut each: impl FnMut(&mut Kernel, Pfn, Level)) {
    fn below(
        kernel: &mut Kernel,
        table: Pfn,
        level: Level,
        entries: usize,
        each: &mut impl FnMut(&mut Kernel, Pfn, Level),
    ) {
        let (Some(next), Some(words)) = (level.below(), kernel.memory.words(table)) else { return };
        for index in 0..entries {
            if let Kind::Table(table) = entry_at::<Format>(words, index).kind(level) {
                each(kernel, table, next);
                below(kernel, table, next, ENTRIES, each);
            }
        }
    }
    below(kernel, space.root, space.root_level, ENTRIES / 2, &mut each);
}
