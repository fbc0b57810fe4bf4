//! Dirty bits and another CPU that sets them while pages are taken away.

use super::case::{drop_tables, refill};
use super::console::Console;
use super::figures::Race;
use super::other;
use super::space::{Kernel, Told};
use super::subject::{Subject, unmap};
use core::fmt::Write;
use hotmem_guest::report::Report;
use hotmem_pgtable::{Entry, Flags, Unmap};

const BATCHES: [usize; 3] = [1, 32, 512];

fn entry(kernel: &Kernel, number: usize) -> Entry {
    Entry::new(kernel.page(number), Flags::PRESENT | Flags::USER | Flags::WRITABLE)
}

/// Races until the other CPU has written so often while pages went: none of hotmem's dirty bits
/// may be lost, and some of those that are read first, or the race proves nothing. Until it does, it
/// goes on a hundred times as long.
pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>, enough: u64, pages: usize) {
    let space = kernel.build(false, false, pages, |_, _| Entry::EMPTY);
    let mut lost_by_reading = 0;
    for subject in [Subject::Hotmem, Subject::ReadThenClear] {
        for batch in BATCHES {
            let (mut rounds, mut writes, mut lost) = (0, 0, 0);
            let last = subject != Subject::Hotmem && batch == BATCHES[BATCHES.len() - 1];
            let proves_nothing = |lost| last && lost_by_reading + lost == 0;
            while writes < enough || (proves_nothing(lost) && writes < 100 * enough) {
                refill(kernel, space, pages, entry);
                kernel.pool.told = Told::default();
                other::begin(super::space::BASE, pages);
                let before = other::writes();
                while other::writes() == before {
                    core::hint::spin_loop();
                }
                let before = other::writes();
                unmap(kernel, subject, space, pages, batch, Unmap::default());
                writes += other::writes() - before;
                other::stop();
                let dirty = &kernel.pool.dirty[..pages];
                let unseen = |(page, dirty): (usize, &bool)| !dirty && other::wrote(page);
                lost += dirty.iter().enumerate().filter(|&page| unseen(page)).count() as u64;
                rounds += 1;
            }
            let race = Race { subject: subject.name(), batch, rounds, writes, lost };
            let _ = writeln!(Console::new(), "{race}");
            match subject {
                Subject::Hotmem if lost == 0 => {
                    report.ok(format_args!("no dirty bit lost, batches of {batch}"));
                }
                Subject::Hotmem => report.not_ok(format_args!("{lost} dirty bits lost")),
                _ => lost_by_reading += lost,
            }
        }
    }
    if lost_by_reading > 0 {
        report.ok("reading first loses dirty bits");
    } else {
        report.not_ok("nothing is lost by reading first: the race proves nothing");
    }
    drop_tables(kernel, space);
}
