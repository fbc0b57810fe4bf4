//! The measured cases. Each also checks its result.

use super::console::Console;
use super::figures::Figure;
use super::hypercall::cycles;
use super::space::{BASE, CONFIG, Kernel, UnmappedCounts};
use super::subject::{EXITS, SUBJECTS, Subject, protect, unmap};
use core::fmt::Write;
use hotmem_guest::report::Report;
use hotmem_guest::to_usize;
use hotmem_pgtable::x86_64::{Entry, Flags, Space};
use hotmem_pgtable::{EntryAddr, Unmap};
use hotmem_xen::{Command, Config, DomId, MmuExtOp, MmuUpdate};

const PAGE: Flags = Flags::PRESENT.union(Flags::USER).union(Flags::WRITABLE).union(Flags::ACCESSED);

/// Returns the entry of page `number`; every second page is dirty.
pub(crate) fn entry(kernel: &Kernel, number: usize) -> Entry {
    let dirty = if number.is_multiple_of(2) { Flags::DIRTY } else { Flags::empty() };
    Entry::new(kernel.page(number), PAGE | dirty)
}

/// Returns the same entry without the dirty bit: the processor may still set it until the entry is
/// cleared.
fn clean(kernel: &Kernel, number: usize) -> Entry {
    Entry::new(kernel.page(number), PAGE)
}

/// Maps the pages of a space again. Its tables were kept.
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

/// Unmaps a space below the kernel's own root, with its tables.
pub(crate) fn drop_tables(kernel: &mut Kernel, space: Space, config: Config) {
    let at = EntryAddr::new(space.root, to_usize(BASE >> 39));
    let range = hotmem_pgtable::VirtRange::new(BASE, hotmem_addr::Bytes::gib(512));
    let range = super::stop::must("a range", range);
    let (mut tables, page_owner) = kernel.tables(space, config);
    super::stop::must("dropping tables", tables.unmap_range(range, Unmap::default(), page_owner));
    assert!(kernel.entry(at).is_empty(), "the root still has the tables");
}

/// Measures an operation, prints its cost, and returns the frames and flags that were passed to
/// the owner.
pub(crate) fn measure(
    kernel: &mut Kernel,
    figure: Figure<'_>,
    operation: impl FnOnce(&mut Kernel),
) -> UnmappedCounts {
    kernel.page_owner.unmapped_counts = UnmappedCounts::default();
    write_figure(&cost(kernel, figure, operation));
    kernel.page_owner.unmapped_counts
}

/// Runs an operation and returns its cost.
pub(crate) fn cost<'a>(
    kernel: &mut Kernel,
    figure: Figure<'a>,
    operation: impl FnOnce(&mut Kernel),
) -> Figure<'a> {
    let count = |kernel: &Kernel| (kernel.xen.calls(), kernel.xen.flushes(), kernel.xen.cycles());
    let (calls, flushes, in_xen) = count(kernel);
    let start = cycles();
    operation(kernel);
    let cycles = cycles() - start;
    let now = count(kernel);
    let (hypercalls, flushes, in_xen) = (now.0 - calls, now.1 - flushes, now.2 - in_xen);
    Figure { cycles, in_xen, hypercalls, flushes, ..figure }
}

/// Prints a figure on the console, where the host reads it.
pub(crate) fn write_figure(figure: &Figure<'_>) {
    let _ = writeln!(Console::new(), "{figure}");
}

/// Runs all cases of batches that do not need another domain.
pub(crate) fn run(
    kernel: &mut Kernel,
    report: &mut Report<Console>,
    pages: usize,
    batch: usize,
    runs: u64,
) {
    let figure = |case, subject: Subject| Figure::of(case, subject.name(), batch, pages);
    let expected = UnmappedCounts { pages: pages as u64, dirty: pages as u64 / 2 };
    let mut wrong_runs = 0;
    for _ in 0..runs {
        let space = kernel.build(false, false, pages, entry);
        for subject in SUBJECTS {
            measure(kernel, figure("xen-protect", subject), |kernel| {
                protect(kernel, subject, space, pages, batch);
            });
            let is_correct = kernel.entries(space, 0..pages).enumerate().all(|(page, at)| {
                let flags = kernel.entry(at).flags();
                let expected = entry(kernel, page).flags() - Flags::WRITABLE;
                flags & (Flags::ACCESSED_DIRTY | Flags::WRITABLE)
                    == expected & (Flags::ACCESSED_DIRTY | Flags::WRITABLE)
            });
            wrong_runs += u32::from(!is_correct);
            refill(kernel, space, pages, entry);
            let unmapped_counts = measure(kernel, figure("xen-munmap", subject), |kernel| {
                unmap(kernel, subject, space, 0..pages, batch, Unmap::default());
            });
            wrong_runs += u32::from(unmapped_counts != expected);
            refill(kernel, space, pages, clean);
            let unmapped_counts = measure(kernel, figure("xen-munmap-clean", subject), |kernel| {
                unmap(kernel, subject, space, 0..pages, batch, Unmap::default());
            });
            wrong_runs += u32::from(unmapped_counts != UnmappedCounts { dirty: 0, ..expected });
            refill(kernel, space, pages, entry);
        }
        drop_tables(kernel, space, CONFIG);
    }
    report_result(report, "pages unmapped and protected", wrong_runs);
}

/// Runs the cases of whole tables and whole address spaces.
pub(crate) fn run_exit(kernel: &mut Kernel, report: &mut Report<Console>, pages: usize, runs: u64) {
    let expected = UnmappedCounts { pages: pages as u64, dirty: pages as u64 / 2 };
    let mut wrong_runs = 0;
    for _ in 0..runs {
        let space = kernel.build(false, false, pages, entry);
        let figure = Figure::of("xen-unhook", "hotmem", 512, pages);
        let unmapped_counts = measure(kernel, figure, |kernel| drop_tables(kernel, space, CONFIG));
        wrong_runs += u32::from(unmapped_counts != expected);
        for exit in EXITS {
            let before = kernel.page_owner.tables_left();
            let space = kernel.build(true, true, pages, entry);
            let figure = Figure::of("xen-exit", exit.name(), 512, pages);
            let unmapped_counts = measure(kernel, figure, |kernel| exit.run(kernel, space));
            wrong_runs +=
                u32::from((unmapped_counts, kernel.page_owner.tables_left()) != (expected, before));
            // All pages have equal flags, so that they form one run.
            let space = kernel.build(true, true, pages, clean);
            let figure = Figure::of("xen-exit-alike", exit.name(), 512, pages);
            let unmapped_counts = measure(kernel, figure, |kernel| exit.run(kernel, space));
            wrong_runs += u32::from(unmapped_counts != UnmappedCounts { dirty: 0, ..expected });
        }
    }
    report_result(report, "tables unhooked, address spaces ended", wrong_runs);
}

fn report_result(report: &mut Report<Console>, operations: &str, wrong_runs: u32) {
    if wrong_runs == 0 {
        report.ok(format_args!("{operations}: all received with the right bits"));
    } else {
        report.not_ok(format_args!("{operations}: {wrong_runs} runs with wrong pages or bits"));
    }
}
