//! A race: another CPU sets Dirty bits while pages are unmapped.

use super::case::{drop_tables, refill};
use super::console::Console;
use super::figures::Race;
use super::space::{Kernel, UnmappedCounts};
use super::subject::{Subject, unmap};
use super::writer_cpu;
use core::fmt::Write;
use hotmem_guest::report::Report;
use hotmem_pgtable::Unmap;
use hotmem_pgtable::x86_64::{Entry, Flags};

const BATCHES: [usize; 3] = [1, 32, 512];
/// The number of pages. Once the Dirty bit of a page is set, further writes to the page prove
/// nothing. The other CPU soon has written to every page, so the race uses few pages and maps them
/// again often.
const PAGES: usize = 512;
/// The expected number of writes in a round: for the round itself and for each of its flushes.
/// Usually there are a few times as many. The number of rounds is limited to what these numbers
/// predict. Without the limit, a host without two free CPUs would need too long: the other CPU
/// hardly writes while this one unmaps, and each flush waits for the host's scheduler.
const WRITES_PER_ROUND: u64 = 250;
const WRITES_PER_FLUSH: u64 = 5;

/// Returns the entry of a page. Every second entry has the Accessed flag.
fn entry(kernel: &Kernel, number: usize) -> Entry {
    let page = Entry::new(kernel.page(number), Flags::PRESENT | Flags::USER | Flags::WRITABLE);
    if number.is_multiple_of(2) { page.with(Flags::ACCESSED) } else { page }
}

/// Races until the other CPU has written `min_writes` times while pages were unmapped. Hotmem must
/// lose no Dirty flag. The subject that reads entries before it clears them must lose some flags,
/// because the race proves nothing otherwise. If it has lost no flag before the last batch size,
/// with which a loss is most likely, that size gets up to a hundred times as many rounds.
pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>, min_writes: u64) {
    let space = kernel.build(false, false, PAGES, |_, _| Entry::EMPTY);
    let mut lost_by_reading = 0;
    for subject in [Subject::Hotmem, Subject::ReadThenClear] {
        for batch in BATCHES {
            let (mut rounds, mut writes, mut lost) = (0, 0, 0);
            let writes_per_round = WRITES_PER_ROUND + WRITES_PER_FLUSH * (PAGES / batch) as u64;
            let max_rounds = (min_writes / writes_per_round).max(1);
            let is_last = subject != Subject::Hotmem && batch == BATCHES[BATCHES.len() - 1];
            let proves_nothing = |lost| is_last && lost_by_reading + lost == 0;
            while (writes < min_writes && rounds < max_rounds)
                || (proves_nothing(lost) && rounds < 100 * max_rounds)
            {
                refill(kernel, space, PAGES, entry);
                kernel.page_owner.unmapped_counts = UnmappedCounts::default();
                writer_cpu::begin(super::space::BASE, PAGES);
                let before = writer_cpu::writes();
                while writer_cpu::writes() == before {
                    core::hint::spin_loop();
                }
                let before = writer_cpu::writes();
                unmap(kernel, subject, space, 0..PAGES, batch, Unmap::default());
                writes += writer_cpu::writes() - before;
                writer_cpu::stop();
                let dirty = &kernel.page_owner.dirty[..PAGES];
                let is_lost = |(page, dirty): (usize, &bool)| !dirty && writer_cpu::wrote(page);
                lost += dirty.iter().enumerate().filter(|&page| is_lost(page)).count() as u64;
                // A page that the owner does not receive counts as lost too.
                lost += (PAGES as u64).abs_diff(kernel.page_owner.unmapped_counts.pages);
                rounds += 1;
            }
            let race = Race { subject: subject.name(), batch, rounds, writes, lost_bits: lost };
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
    drop_tables(kernel, space, super::space::CONFIG);
}
