//! Runs operations between marks in QEMU's log, so that the host can count what the guest cannot:
//! page faults that Xen handles, and interrupts by which Xen makes the other CPU flush.

use super::case::{drop_tables, entry, refill};
use super::console::Console;
use super::figures::Marked;
use super::space::Kernel;
use super::subject::{EXITS, SUBJECTS, protect, unmap};
use super::trap;
use core::fmt::Write;
use hotmem_guest::report::Report;
use hotmem_pgtable::Unmap;

/// An address where nothing is mapped. Page faults from here on are the marks in QEMU's log of
/// interrupts.
const MARKS: u64 = 0x5_0000_0000;
const BATCH: usize = 512;

/// Changes and tears down page tables between marks.
pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>) {
    let mut next = MARKS;
    let pages = 8 * 512;
    let space = kernel.build(false, false, pages, entry);
    for subject in SUBJECTS {
        between(&mut next, "xen-protect", subject.name(), pages, || {
            protect(kernel, subject, space, pages, BATCH);
        });
        refill(kernel, space, pages, entry);
        between(&mut next, "xen-munmap", subject.name(), pages, || {
            unmap(kernel, subject, space, 0..pages, BATCH, Unmap::default());
        });
        refill(kernel, space, pages, entry);
    }
    drop_tables(kernel, space, super::space::CONFIG);
    for pages in [8 * 512, 32 * 512] {
        for exit in EXITS {
            let space = kernel.build(true, true, pages, entry);
            between(&mut next, "xen-exit", exit.name(), pages, || exit.run(kernel, space));
        }
    }
    report.ok("page tables changed between marks");
}

/// Runs an operation between two marks, and reports it.
fn between(
    next: &mut u64,
    case: &'static str,
    subject: &'static str,
    pages: usize,
    operation: impl FnOnce(),
) {
    let mut mark = || {
        // SAFETY: nothing is mapped there.
        unsafe { trap::store(*next, 0) };
        *next += 1 << 12;
    };
    mark();
    operation();
    mark();
    let marked = Marked { case, subject, tables: pages / 512 };
    let _ = writeln!(Console::new(), "{marked}");
}
