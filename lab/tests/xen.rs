//! The reference kernel as dom0 of Xen: the real one does what the model does, loses no dirty bit,
//! and takes the hypercalls and flushes that are promised.

use hotmem_lab::xen::{Machine, Outcome, Xpti};

const PAGES: u64 = 4096;

fn boot(xpti: Xpti) -> Outcome {
    let machine = Machine::find(None).unwrap();
    let outcome = machine.boot(xpti, &format!("mode=test pages={PAGES} writes=50000")).unwrap();
    assert_eq!(outcome.points.len(), 11, "{:?}", outcome.points);
    outcome
}

fn check(outcome: &Outcome) {
    let hotmem = |case: &str| {
        let mut figures = outcome.figures.iter().filter(|f| f.subject == "hotmem");
        figures.find(|figure| figure.case == case).unwrap_or_else(|| panic!("no case {case}"))
    };
    for case in ["xen-munmap", "xen-munmap-clean", "xen-protect", "xen-foreign"] {
        let figure = hotmem(case);
        assert_eq!((figure.hypercalls, figure.flushes), (PAGES / 512 + 1, 1), "{case}");
    }
    let (unhook, exit) = (hotmem("xen-unhook"), hotmem("xen-exit"));
    assert_eq!((unhook.hypercalls, unhook.flushes), (3, 1));
    assert_eq!((exit.hypercalls, exit.flushes), (1, 0), "Xen flushes by itself");
    for race in &outcome.races {
        assert!(race.subject != "hotmem" || race.lost == 0, "{race:?}");
    }
}

/// And table by table it takes one for each, and an exchange traps for each entry.
#[test]
fn nothing_traps_and_an_address_space_takes_three_flushes_however_many_its_tables() {
    let interrupts = Machine::find(None).unwrap().interrupts(Xpti::On).unwrap();
    assert_eq!(interrupts.len(), 12);
    for of in interrupts {
        let (is_exit, entries) = (of.case == "xen-exit", of.tables * 512);
        match of.subject.as_str() {
            "before" => assert!(of.traps >= entries, "{of:?}"),
            _ => assert_eq!(of.traps, 0, "{of:?}"),
        }
        match of.subject.as_str() {
            "hotmem" => assert!(of.flushes <= 3, "{of:?}"),
            _ => assert!(!is_exit || of.flushes >= of.tables, "{of:?}"),
        }
    }
}

#[test]
fn with_isolated_page_tables() {
    check(&boot(Xpti::On));
}

#[test]
fn without() {
    check(&boot(Xpti::Off));
}
