//! Tests of the reference kernel as dom0 of Xen: Xen behaves as the model of hotmem-testkit does,
//! no dirty bit is lost, and the numbers of hypercalls and flushes are as documented.

use hotmem_lab::xen::{Clock, Machine, Outcome, Xpti};

const PAGES: u64 = 4096;

fn boot(xpti: Xpti) -> Outcome {
    let machine = Machine::find(None).unwrap();
    let words = format!("mode=test pages={PAGES} writes=50000");
    let outcome = machine.boot(xpti, Clock::Cycles, &words).unwrap();
    assert_eq!(outcome.points.len(), 15, "{:?}", outcome.points);
    outcome
}

fn check(outcome: &Outcome) {
    let hotmem = |case: &str| {
        let mut figures = outcome.figures.iter().filter(|f| f.subject == "hotmem");
        figures.find(|figure| figure.case == case).unwrap_or_else(|| panic!("no case {case}"))
    };
    for case in ["xen-munmap", "xen-munmap-clean", "xen-protect"] {
        let figure = hotmem(case);
        assert_eq!((figure.hypercalls, figure.flushes), (PAGES / 512 + 1, 1), "{case}");
    }
    // Each batch is unmapped by one hypercall and one flush.
    for case in ["xen-foreign", "xen-migrate-unmap"] {
        let figure = hotmem(case);
        assert_eq!((figure.hypercalls, figure.flushes), (PAGES / 512 * 2, PAGES / 512), "{case}");
    }
    let (unhook, exit) = (hotmem("xen-unhook"), hotmem("xen-exit"));
    assert_eq!((unhook.hypercalls, unhook.flushes), (3, 1));
    assert_eq!((exit.hypercalls, exit.flushes), (1, 0), "Xen flushes by itself");
    for race in &outcome.races {
        assert!(race.subject != "hotmem" || race.lost == 0, "{race:?}");
    }
}

/// In Linux's order, table by table, there is one flush for each table. The subject that exchanges
/// entries traps for each.
#[test]
fn nothing_traps_and_an_address_space_takes_two_flushes_however_many_its_tables() {
    let interrupts = Machine::find(None).unwrap().interrupts(Xpti::On).unwrap();
    assert_eq!(interrupts.len(), 10);
    for of in interrupts {
        match of.subject.as_str() {
            "before" => assert!(of.traps >= of.tables * 512, "{of:?}"),
            _ => assert_eq!(of.traps, 0, "{of:?}"),
        }
        match of.subject.as_str() {
            "hotmem" => assert!(of.flushes <= 2, "{of:?}"),
            "linux-order" => assert!(of.flushes >= of.tables, "{of:?}"),
            _ => {}
        }
    }
}

/// Instruction counts do not depend on the load of the host.
#[test]
fn batches_take_less_than_half_of_the_instructions_of_exchanges_that_trap() {
    let machine = Machine::find(None).unwrap();
    let boot = |words: &str| machine.boot(Xpti::On, Clock::Instructions, words).unwrap().figures;
    let figures = boot(&format!("mode=bench pages={PAGES} batch=32"));
    let each = |case: &str, subject: &str| {
        let figure =
            figures.iter().find(|f| (f.case.as_str(), f.subject.as_str()) == (case, subject));
        figure.unwrap_or_else(|| panic!("no {case} of {subject}")).per_entry()
    };
    for case in ["xen-munmap", "xen-munmap-clean", "xen-protect", "xen-foreign"] {
        assert!(2.0 * each(case, "hotmem") < each(case, "before"), "{case}");
    }
    // The cheapest of the three ways to unmap a range counts, including the cost of choosing it.
    let figures = boot("mode=tables");
    let mut cases: Vec<_> = figures.iter().filter(|f| f.case.starts_with("xen-sparse")).collect();
    cases.sort_by_key(|figure| figure.case.clone());
    for of in cases.chunk_by(|one, other| one.case == other.case) {
        let least = |ours: bool| {
            let all = of.iter().filter(|figure| (figure.subject == "hotmem") == ours);
            all.map(|figure| figure.cycles).min().unwrap()
        };
        // The allowance is for reading a table to count its entries, and the directory once more.
        assert!(least(true) < least(false) + 32 * 10_000, "{of:?}");
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
