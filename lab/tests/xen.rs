//! Tests of the reference kernel as dom0 of Xen. The kernel checks that Xen behaves as the model in
//! hotmem-testkit. The tests check that no Dirty flag is lost, and that the numbers of hypercalls
//! and flushes are the documented ones.

use hotmem_lab::xen::{Clock, Machine, Outcome, Xpti};

const PAGES: u64 = 4096;

fn boot(xpti: Xpti) -> Outcome {
    let machine = Machine::find(None).unwrap();
    let options = format!("mode=test pages={PAGES} writes=50000");
    let outcome = machine.boot(xpti, Clock::Cycles, &options).unwrap();
    assert_eq!(outcome.points.len(), 15, "{:?}", outcome.points);
    outcome
}

/// Checks the documented numbers of hypercalls and flushes, and that no Dirty flag was lost.
fn check(outcome: &Outcome) {
    let hotmem = |case: &str| {
        let mut figures = outcome.figures.iter().filter(|f| f.subject == "hotmem");
        figures.find(|figure| figure.case == case).unwrap_or_else(|| panic!("no case {case}"))
    };
    for case in ["xen-munmap", "xen-munmap-clean", "xen-protect"] {
        let figure = hotmem(case);
        assert_eq!((figure.hypercalls, figure.flushes), (PAGES / 512 + 1, 1), "{case}");
    }
    // Each batch is unmapped by one hypercall, with one flush.
    for case in ["xen-foreign", "xen-migrate-unmap"] {
        let figure = hotmem(case);
        assert_eq!((figure.hypercalls, figure.flushes), (PAGES / 512 * 2, PAGES / 512), "{case}");
    }
    let (unhook, exit) = (hotmem("xen-unhook"), hotmem("xen-exit"));
    assert_eq!((unhook.hypercalls, unhook.flushes), (3, 1));
    assert_eq!((exit.hypercalls, exit.flushes), (1, 0), "Xen flushes without a request");
    for race in &outcome.races {
        assert!(race.subject != "hotmem" || race.lost == 0, "{race:?}");
    }
}

/// The subject `linux-order` handles one table after another and needs a flush for each. The
/// subject `before` exchanges each entry by an instruction that traps.
#[test]
fn hotmem_causes_no_traps_and_at_most_two_flushes_for_any_number_of_tables() {
    let interrupts = Machine::find(None).unwrap().interrupts(Xpti::On).unwrap();
    assert_eq!(interrupts.len(), 10);
    for operation in interrupts {
        match operation.subject.as_str() {
            "before" => assert!(operation.traps >= operation.tables * 512, "{operation:?}"),
            _ => assert_eq!(operation.traps, 0, "{operation:?}"),
        }
        match operation.subject.as_str() {
            "hotmem" => assert!(operation.flushes <= 2, "{operation:?}"),
            "linux-order" => assert!(operation.flushes >= operation.tables, "{operation:?}"),
            _ => {}
        }
    }
}

/// The test compares numbers of instructions, which do not depend on the load of the host.
#[test]
fn hotmem_takes_less_than_half_of_the_instructions_of_exchanges_that_trap() {
    let machine = Machine::find(None).unwrap();
    let boot =
        |options: &str| machine.boot(Xpti::On, Clock::Instructions, options).unwrap().figures;
    let figures = boot(&format!("mode=bench pages={PAGES} batch=32"));
    let per_entry = |case: &str, subject: &str| {
        let figure =
            figures.iter().find(|f| (f.case.as_str(), f.subject.as_str()) == (case, subject));
        figure.unwrap_or_else(|| panic!("no {case} of {subject}")).per_entry()
    };
    for case in ["xen-munmap", "xen-munmap-clean", "xen-protect", "xen-foreign"] {
        assert!(2.0 * per_entry(case, "hotmem") < per_entry(case, "before"), "{case}");
    }
    // Hotmem chooses one of three ways to unmap a range. With the cost of the choice, it must not
    // take longer than the cheapest of the three ways.
    let figures = boot("mode=tables");
    let mut cases: Vec<_> = figures.iter().filter(|f| f.case.starts_with("xen-sparse")).collect();
    cases.sort_by_key(|figure| figure.case.clone());
    for figures in cases.chunk_by(|a, b| a.case == b.case) {
        let min = |is_hotmem: bool| {
            let figures = figures.iter().filter(|f| (f.subject == "hotmem") == is_hotmem);
            figures.map(|figure| figure.cycles).min().unwrap()
        };
        // The sum allows for the choice, which reads an L1 table to count its entries, and reads
        // the L2 table a second time.
        assert!(min(true) < min(false) + 32 * 10_000, "{figures:?}");
    }
}

#[test]
fn with_xpti_the_guest_passes_and_counts_are_as_documented() {
    check(&boot(Xpti::On));
}

#[test]
fn without_xpti_the_guest_passes_and_counts_are_as_documented() {
    check(&boot(Xpti::Off));
}
