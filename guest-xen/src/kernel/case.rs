//! The cases that are measured, and checked as they are.

use super::console::Console;
use super::cycles;
use super::figures::Figure;
use super::space::{BASE, Kernel, Told};
use super::subject::{SUBJECTS, Subject, exit, protect, unmap};
use core::fmt::Write;
use hotmem_guest::report::Report;
use hotmem_guest::to_usize;
use hotmem_pgtable::{Entry, EntryAddr, Flags, Space, Unmap, Why};
use hotmem_xen::{Call, Command, Config, DomId, Errno, Fault, MmuExtOp, MmuUpdate};

const PAGE: Flags = Flags::PRESENT.union(Flags::USER).union(Flags::WRITABLE).union(Flags::ACCESSED);

/// Page `number`'s entry: every second one is dirty.
pub(crate) fn entry(kernel: &Kernel, number: usize) -> Entry {
    let dirty = if number.is_multiple_of(2) { Flags::DIRTY } else { Flags::empty() };
    Entry::new(kernel.page(number), PAGE | dirty)
}

/// None is dirty: each may become so until it is taken out.
fn clean(kernel: &Kernel, number: usize) -> Entry {
    Entry::new(kernel.page(number), PAGE)
}

/// Maps the pages of a space again whose tables were kept.
pub(crate) fn refill(
    kernel: &mut Kernel,
    space: Space,
    pages: usize,
    entry: impl Fn(&Kernel, usize) -> Entry,
) {
    for first in (0..pages).step_by(512) {
        let mut updates = [MmuUpdate::NONE; 512];
        let range = first..pages.min(first + 512);
        let addresses = kernel.entries(space, range.clone());
        for ((update, at), page) in updates.iter_mut().zip(addresses).zip(range.clone()) {
            *update = MmuUpdate::new(at, Command::Normal, entry(kernel, page));
        }
        kernel.update(updates.into_iter().take(range.len()), DomId::SELF, 512);
    }
    kernel.ext(MmuExtOp::flush_all());
}

/// Takes the tables of a space that lies below the kernel's own root.
pub(crate) fn drop_tables(kernel: &mut Kernel, space: Space) {
    let at = EntryAddr::new(space.root, to_usize(BASE >> 39));
    let range = hotmem_pgtable::VirtRange::new(BASE, hotmem::Bytes::gib(512));
    let range = super::must("a range", range);
    let (mut tables, pool) = kernel.tables(space, super::space::CONFIG);
    super::must("dropping tables", tables.unmap_range(range, Unmap::default(), pool));
    assert!(kernel.entry(at).is_empty(), "the root still has the tables");
}

/// Measures a subject at something, and says what it cost.
pub(crate) fn measure(
    kernel: &mut Kernel,
    figure: Figure<'_>,
    operation: impl FnOnce(&mut Kernel),
) -> Told {
    kernel.pool.told = Told::default();
    let (hypercalls, flushes) = (kernel.xen.calls(), kernel.xen.flushes());
    let start = cycles();
    operation(kernel);
    let cycles = cycles() - start;
    let (hypercalls, flushes) = (kernel.xen.calls() - hypercalls, kernel.xen.flushes() - flushes);
    let _ = writeln!(Console::new(), "{}", Figure { cycles, hypercalls, flushes, ..figure });
    kernel.pool.told
}

/// An address space that a CPU still uses does not go, and loses nothing; it goes when none does.
pub(crate) fn exit_in_use(kernel: &mut Kernel, report: &mut Report<Console>) {
    const PAGES: usize = 2 * 512;
    let space = kernel.build(true, true, PAGES, entry);
    let config = Config { pins_l1: true, ..super::space::CONFIG };
    kernel.pool.told = Told::default();
    kernel.ext(MmuExtOp::new_root(space.root));
    let (tables, pool) = kernel.tables(space, config);
    let refused = tables.teardown(pool).map_err(|stopped| (stopped.at, stopped.why));
    kernel.ext(MmuExtOp::new_root(kernel.memory.root));
    let told = kernel.pool.told;
    let (tables, pool) = kernel.tables(space, config);
    let done = tables.teardown(pool);
    let busy = Fault::Refused { call: Call::Remap, errno: Errno::EBUSY };
    let all = Told { pages: PAGES as u64, dirty: PAGES as u64 / 2 };
    if refused == Err((0, Why::Mmu(busy))) && told == Told::default() && kernel.pool.told == all {
        report.ok("an address space in use does not go, and goes afterwards");
    } else {
        report.not_ok(format_args!("an address space in use: {refused:?}, {told:?}, {done:?}"));
    }
}

/// All cases that need no other domain.
pub(crate) fn run(
    kernel: &mut Kernel,
    report: &mut Report<Console>,
    pages: usize,
    batch: usize,
    runs: u64,
) {
    let figure = |case: &'static str, subject: Subject| Figure {
        case,
        subject: subject.name(),
        batch,
        entries: pages,
        cycles: 0,
        hypercalls: 0,
        flushes: 0,
    };
    let expected = Told { pages: pages as u64, dirty: pages as u64 / 2 };
    let mut wrong = 0;
    for _ in 0..runs {
        let space = kernel.build(false, false, pages, entry);
        for subject in SUBJECTS {
            measure(kernel, figure("xen-protect", subject), |kernel| {
                protect(kernel, subject, space, pages, batch);
            });
            let sound = kernel.entries(space, 0..pages).enumerate().all(|(page, at)| {
                let is = kernel.entry(at).flags();
                let was = entry(kernel, page).flags() - Flags::WRITABLE;
                is & (Flags::USED | Flags::WRITABLE) == was & (Flags::USED | Flags::WRITABLE)
            });
            wrong += u32::from(!sound);
            refill(kernel, space, pages, entry);
            let told = measure(kernel, figure("xen-munmap", subject), |kernel| {
                unmap(kernel, subject, space, pages, batch, Unmap::default());
            });
            wrong += u32::from(told != expected);
            refill(kernel, space, pages, clean);
            let told = measure(kernel, figure("xen-munmap-clean", subject), |kernel| {
                unmap(kernel, subject, space, pages, batch, Unmap::default());
            });
            wrong += u32::from(told != Told { dirty: 0, ..expected });
            refill(kernel, space, pages, entry);
        }
        let told = measure(kernel, figure("xen-unhook", Subject::Hotmem), |kernel| {
            drop_tables(kernel, space);
        });
        wrong += u32::from(told != expected);
        for subject in SUBJECTS {
            let space = kernel.build(true, true, pages, entry);
            let told = measure(kernel, figure("xen-exit", subject), |kernel| {
                exit(kernel, subject, space, pages, batch);
            });
            wrong += u32::from(told != expected);
        }
    }
    if wrong == 0 {
        report.ok("pages unmapped, protected, torn down: all told, with their bits");
    } else {
        report.not_ok(format_args!("{wrong} operations told something else than was there"));
    }
}
