//! Measures a range whose tables hold few or many entries: clears them, unhooks the tables, or
//! chooses the cheaper way.

use super::case::{drop_tables, entry, measure};
use super::console::Console;
use super::figures::Figure;
use super::space::{BASE, CONFIG, Kernel, UnmappedCounts};
use hotmem_addr::Bytes;
use hotmem_guest::report::Report;
use hotmem_pgtable::x86_64::Entry;
use hotmem_pgtable::{CoveredTables, ENTRIES, Unmap, VirtRange};
use hotmem_xen::Config;

/// The number of L1 tables of the range.
const TABLES: usize = 32;
/// The number of pages in each table; in the last case it alternates.
const CASES: [(&str, &[usize]); 9] = [
    ("xen-sparse-1", &[1]),
    ("xen-sparse-4", &[4]),
    ("xen-sparse-8", &[8]),
    ("xen-sparse-16", &[16]),
    ("xen-sparse-32", &[32]),
    ("xen-sparse-64", &[64]),
    ("xen-sparse-128", &[128]),
    ("xen-sparse-512", &[512]),
    ("xen-sparse-mixed", &[512, 1, 1, 1, 1, 1, 1, 1]),
];

pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>, runs: u64) {
    let range = |bytes| super::stop::must("a range", VirtRange::new(BASE, bytes));
    let tables_only = range(Bytes((TABLES * ENTRIES) as u64 * 4096));
    let with_directory = range(Bytes::gib(1));
    let config = Config { cpus: 2, pins_l1: true, ..CONFIG };
    let mut wrong_ranges = 0;
    for (case, mapped) in CASES {
        let is_mapped = |page: usize| page % ENTRIES < mapped[page / ENTRIES % mapped.len()];
        let pages = (0..TABLES * ENTRIES).filter(|&page| is_mapped(page));
        let (entries, dirty) = (pages.clone().count(), pages.filter(|page| page % 2 == 0).count());
        for _ in 0..runs {
            for (subject, tables, range) in [
                ("tables kept", CoveredTables::Keep, with_directory),
                ("tables freed", CoveredTables::Free, tables_only),
                ("directory freed", CoveredTables::Free, with_directory),
                ("hotmem", CoveredTables::Cheapest, with_directory),
            ] {
                let entry_of = |kernel: &Kernel, page| {
                    if is_mapped(page) { entry(kernel, page) } else { Entry::EMPTY }
                };
                let space = kernel.build(false, true, TABLES * ENTRIES, entry_of);
                let unmapped_counts =
                    measure(kernel, Figure::of(case, subject, 512, entries), |kernel| {
                        let (mut page_tables, page_owner) = kernel.tables(space, config);
                        let options = Unmap { tables, ..Unmap::default() };
                        super::stop::must(
                            "unmap_range",
                            page_tables.unmap_range(range, options, page_owner),
                        );
                    });
                let expected = UnmappedCounts { pages: entries as u64, dirty: dirty as u64 };
                wrong_ranges += u32::from(unmapped_counts != expected);
                drop_tables(kernel, space, config);
            }
        }
    }
    if wrong_ranges == 0 {
        report.ok("sparse tables unmapped, all pages received");
    } else {
        report.not_ok(format_args!("{wrong_ranges} sparse ranges unmapped wrong pages"));
    }
}
