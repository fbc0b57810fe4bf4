//! Runs operations between marks in QEMU's log. The bench on the host reads the log. Between two
//! marks it counts the page faults that Xen handles, and the interrupts that Xen sends to make the
//! other CPU flush its TLB. The guest sees neither.

use super::case::{drop_tables, entry, refill};
use super::console::Console;
use super::figures::MarkedOperation;
use super::space::Kernel;
use super::subject::{EXITS, SUBJECTS, protect, unmap};
use super::trap;
use core::fmt::Write;
use hotmem_guest::report::Report;
use hotmem_pgtable::Unmap;

/// An unmapped address. A page fault at this address or above is a mark in QEMU's log of
/// interrupts.
const MARKS_START: u64 = 0x5_0000_0000;
const BATCH: usize = 512;

/// Changes and tears down page tables between marks.
pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>) {
    let mut next = MARKS_START;
    let pages = 8 * 512;
    let space = kernel.build(false, false, pages, entry);
    for subject in SUBJECTS {
        run_between_marks(&mut next, "xen-protect", subject.name(), pages, || {
            protect(kernel, subject, space, pages, BATCH);
        });
        refill(kernel, space, pages, entry);
        run_between_marks(&mut next, "xen-munmap", subject.name(), pages, || {
            unmap(kernel, subject, space, 0..pages, BATCH, Unmap::default());
        });
        refill(kernel, space, pages, entry);
    }
    drop_tables(kernel, space, super::space::CONFIG);
    for pages in [8 * 512, 32 * 512] {
        for exit in EXITS {
            let space = kernel.build(true, true, pages, entry);
            run_between_marks(&mut next, "xen-exit", exit.name(), pages, || {
                exit.run(kernel, space)
            });
        }
    }
    report.ok("page tables changed between marks");
}

/// Runs an operation between two marks, and reports it.
fn run_between_marks(
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
    let marked = MarkedOperation { case, subject, tables: pages / 512 };
    let _ = writeln!(Console::new(), "{marked}");
}
