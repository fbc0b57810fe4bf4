//! The measured subjects: three ways to change entries, and two to tear down an address space.

use super::linux;
use super::space::{BASE, CONFIG, Kernel};
use super::stop::must;
use core::arch::asm;
use core::ops::Range;
use hotmem_addr::Bytes;
use hotmem_pgtable::x86_64::{Change, Entry, Flags, Space};
use hotmem_pgtable::{CoveredTables, EntryAddr, Unmap, VirtRange};
use hotmem_xen::{Command, Config, DomId, MmuExtOp, MmuUpdate};

/// A way to change entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Exchanges each entry. The exchange traps, and Xen emulates it.
    TrappingExchange,
    /// Reads entries first, and then clears them by batches of plain updates. This is not atomic.
    ReadThenClear,
    /// Uses hotmem-pgtable and hotmem-xen.
    Hotmem,
}

pub(crate) const SUBJECTS: [Subject; 3] =
    [Subject::TrappingExchange, Subject::ReadThenClear, Subject::Hotmem];

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Subject::TrappingExchange => "before",
            Subject::ReadThenClear => "read-then-clear",
            Subject::Hotmem => "hotmem",
        }
    }
}

/// A way to tear down an address space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Makes the hypercalls of Linux, in its order and batches.
    LinuxOrder,
    /// Uses hotmem-pgtable and hotmem-xen.
    Hotmem,
}

pub(crate) const EXITS: [Exit; 2] = [Exit::LinuxOrder, Exit::Hotmem];

impl Exit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Exit::LinuxOrder => "linux-order",
            Exit::Hotmem => "hotmem",
        }
    }

    /// Tears down an address space that has its own root tables: one for the kernel, one for user
    /// mode. Its L1 tables are pinned one by one.
    pub(crate) fn run(self, kernel: &mut Kernel, space: Space) {
        match self {
            Exit::LinuxOrder => linux::exit(kernel, space),
            Exit::Hotmem => {
                let config = Config { cpus: 2, pins_l1: true, ..CONFIG };
                let (tables, page_owner) = kernel.tables(space, config);
                must("teardown", tables.teardown(page_owner));
            }
        }
    }
}

/// Returns the addresses of the pages with these numbers.
fn range(pages: Range<usize>) -> VirtRange {
    let start = BASE + pages.start as u64 * 4096;
    must("a range", VirtRange::new(start, Bytes(pages.len() as u64 * 4096)))
}

/// Unmaps the pages of an address space in use, and keeps its tables.
pub(crate) fn unmap(
    kernel: &mut Kernel,
    subject: Subject,
    space: Space,
    pages: Range<usize>,
    batch: usize,
    options: Unmap,
) {
    match subject {
        Subject::TrappingExchange => {
            for (page, at) in pages.clone().zip(kernel.entries(space, pages)) {
                let entry = exchange(kernel, at, Entry::EMPTY);
                kernel.page_owner.add_page(BASE + page as u64 * 4096, entry);
            }
            kernel.page_owner.finish_run();
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::ReadThenClear => {
            for first in pages.clone().step_by(batch) {
                clear_after_reading(kernel, space, first, batch.min(pages.end - first));
            }
            kernel.page_owner.finish_run();
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::Hotmem => {
            let config = Config { batch, cpus: 2, ..CONFIG };
            let (mut tables, page_owner) = kernel.tables(space, config);
            let options = Unmap { tables: CoveredTables::Keep, ..options };
            must("unmap_range", tables.unmap_range(range(pages), options, page_owner));
        }
    }
}

/// Reads `count` entries from the page `first` on, then clears them by one hypercall.
fn clear_after_reading(kernel: &mut Kernel, space: Space, first: usize, count: usize) {
    let pages = first..first + count;
    for (index, (_, entry)) in kernel.read(space, pages.clone()).enumerate() {
        kernel.entries_read[index] = entry;
    }
    let clear = |at| MmuUpdate::new(at, Command::Normal, Entry::EMPTY);
    let updates = kernel.entries(space, pages).map(clear);
    kernel.update(updates, DomId::SELF, count);
    for (index, &entry) in kernel.entries_read[..count].iter().enumerate() {
        kernel.page_owner.add_page(BASE + (first + index) as u64 * 4096, entry);
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
        Subject::TrappingExchange => {
            for at in kernel.entries(space, 0..pages) {
                let new = change.apply(kernel.entry(at));
                exchange(kernel, at, new);
            }
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::ReadThenClear => {
            let updates = kernel
                .read(space, 0..pages)
                .map(|(at, entry)| MmuUpdate::new(at, Command::Normal, change.apply(entry)));
            kernel.update(updates, DomId::SELF, batch);
            kernel.ext(MmuExtOp::flush_all());
        }
        Subject::Hotmem => {
            let config = Config { batch, cpus: 2, ..CONFIG };
            let (mut tables, page_owner) = kernel.tables(space, config);
            must("protect", tables.protect(range(0..pages), change, page_owner));
        }
    }
}

/// Exchanges an entry by an atomic instruction, as a kernel would that may write to its tables.
fn exchange(kernel: &Kernel, at: EntryAddr, new: Entry) -> Entry {
    let Some(table) = kernel.memory.virt(at.table()) else { return Entry::EMPTY };
    let mut bits = new.bits();
    // SAFETY: the word is an entry of the kernel's tables. The write traps, and Xen emulates it.
    unsafe {
        asm!("xchg [{at}], {bits}", at = in(reg) table + at.index() as u64 * 8, bits = inout(reg) bits);
    }
    Entry::from_bits(bits)
}
