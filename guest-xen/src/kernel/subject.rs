//! Who is measured: three ways to change entries.

use super::must;
use super::space::{BASE, CONFIG, Kernel};
use core::arch::asm;
use hotmem::Bytes;
use hotmem_guest::to_usize;
use hotmem_pgtable::{Change, Covered, Entry, EntryAddr, Flags, Space, Unmap, VirtRange};
use hotmem_xen::{Command, Config, DomId, MmuExtOp, MmuUpdate};

/// A way to change entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// An exchange of each entry, which traps and is emulated.
    Before,
    /// Read first, then cleared by batches of plain updates: not atomic.
    ReadThenClear,
    /// By hotmem-pgtable and hotmem-xen.
    Hotmem,
}

pub(crate) const SUBJECTS: [Subject; 3] =
    [Subject::Before, Subject::ReadThenClear, Subject::Hotmem];

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::Before => "before",
            Subject::ReadThenClear => "read-then-clear",
            Subject::Hotmem => "hotmem",
        }
    }
}

fn range(pages: usize) -> VirtRange {
    must("a range", VirtRange::new(BASE, Bytes(pages as u64 * 4096)))
}

/// Unmaps the pages of an address space in use, and keeps its tables.
pub(crate) fn unmap(
    kernel: &mut Kernel,
    subject: Subject,
    space: Space,
    pages: usize,
    batch: usize,
    how: Unmap,
) {
    match subject {
        Subject::Before => {
            for (page, at) in kernel.entries(space, 0..pages).enumerate() {
                let entry = exchange(kernel, at, Entry::EMPTY);
                kernel.pool.tell(BASE + page as u64 * 4096, entry);
            }
            kernel.pool.finish();
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::ReadThenClear => {
            for first in (0..pages).step_by(batch) {
                clear_after_reading(kernel, space, first, batch.min(pages - first));
            }
            kernel.pool.finish();
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::Hotmem => {
            let config = Config { batch, cpus: 2, ..CONFIG };
            let (mut tables, pool) = kernel.tables(space, config);
            let how = Unmap { tables: Covered::Keep, ..how };
            must("unmap_range", tables.unmap_range(range(pages), how, pool));
        }
    }
}

/// Reads so many entries, then clears them by one hypercall.
fn clear_after_reading(kernel: &mut Kernel, space: Space, first: usize, count: usize) {
    let pages = first..first + count;
    let mut entries = [Entry::EMPTY; 512];
    for (entry, (_, now)) in entries.iter_mut().zip(kernel.read(space, pages.clone())) {
        *entry = now;
    }
    let clear = |at| MmuUpdate::new(at, Command::Normal, Entry::EMPTY);
    let updates = kernel.entries(space, pages).map(clear);
    kernel.update(updates, DomId::SELF, count);
    for (index, entry) in entries.into_iter().take(count).enumerate() {
        kernel.pool.tell(BASE + (first + index) as u64 * 4096, entry);
    }
}

/// Makes the pages read-only, or writable.
pub(crate) fn protect(
    kernel: &mut Kernel,
    subject: Subject,
    space: Space,
    pages: usize,
    batch: usize,
) {
    let change = must("a change", Change::new(Flags::empty(), Flags::WRITABLE));
    match subject {
        Subject::Before => {
            for at in kernel.entries(space, 0..pages) {
                let new = change.of(kernel.entry(at));
                exchange(kernel, at, new);
            }
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::ReadThenClear => {
            let updates = kernel
                .read(space, 0..pages)
                .map(|(at, entry)| MmuUpdate::new(at, Command::Normal, change.of(entry)));
            kernel.update(updates, DomId::SELF, batch);
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::Hotmem => {
            let config = Config { batch, cpus: 2, ..CONFIG };
            let (mut tables, pool) = kernel.tables(space, config);
            must("protect", tables.protect(range(pages), change, pool));
        }
    }
}

/// Takes down an address space with its own root, whose lowest tables are pinned one by one.
pub(crate) fn exit(
    kernel: &mut Kernel,
    subject: Subject,
    space: Space,
    pages: usize,
    batch: usize,
) {
    if subject == Subject::Hotmem {
        let config = Config { batch, cpus: 2, pins_l1: true, ..CONFIG };
        let (tables, pool) = kernel.tables(space, config);
        return must("teardown", tables.teardown(pool));
    }
    unmap(kernel, subject, space, pages, batch, Unmap::default());
    // As Linux does: each table unpinned and made writable before the next.
    let lowest = |kernel: &Kernel, page| kernel.memory.lowest(space, BASE + page as u64 * 4096);
    kernel.ext(MmuExtOp::unpin(space.root));
    for page in (0..pages).step_by(512) {
        let table = lowest(kernel, page);
        kernel.ext(MmuExtOp::unpin(table));
        kernel.set_window(table, true);
    }
    let root = kernel.entry(EntryAddr::new(space.root, to_usize(BASE >> 39)));
    let pointers = root.frame(hotmem_pgtable::Level::L1);
    let directory = pointers
        .and_then(|table| kernel.entry(EntryAddr::new(table, 0)).frame(hotmem_pgtable::Level::L1));
    use hotmem_pgtable::Owner;
    for page in (0..pages).step_by(512) {
        let table = lowest(kernel, page);
        kernel.pool.free_table(table);
    }
    for table in [directory, pointers, Some(space.root)].into_iter().flatten() {
        kernel.set_window(table, true);
        kernel.pool.free_table(table);
    }
}

/// Exchanges an entry of a table, as a processor that owns its tables would.
fn exchange(kernel: &Kernel, at: EntryAddr, new: Entry) -> Entry {
    let Some(table) = kernel.memory.virt(at.table()) else { return Entry::EMPTY };
    let mut bits = new.bits();
    // SAFETY: the word is an entry of the kernel's; the write traps, and Xen emulates it.
    unsafe {
        asm!("xchg [{at}], {bits}", at = in(reg) table + at.index() as u64 * 8, bits = inout(reg) bits);
    }
    Entry::from_bits(bits)
}
