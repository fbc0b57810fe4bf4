use super::*;
use crate::bench::parsed;
use std::collections::BTreeSet;
use std::sync::Mutex;

fn cases(line: &[&str]) -> Vec<Case> {
    let tables = parsed::<Args>(line).tables();
    tables.into_iter().flat_map(|(_, cases)| cases).collect()
}

/// Returns the cases that their subjects can do, except those of LLFree, which another program runs.
fn possible(line: &[&str]) -> Vec<Case> {
    let is_possible = |case: &Case| case.cannot().is_none() && case.subject != Subject::Llfree;
    cases(line).into_iter().filter(is_possible).collect()
}

#[test]
fn cases_have_the_documented_names() {
    let names: BTreeSet<_> = cases(&["--thorough"]).iter().map(Case::name).collect();
    for name in [
        "16G/order0/1thread/pair",
        "16G/order0/2threads/pair",
        "16G/order0/2threads/neighbours/pair",
        "16G/order9/2threads/bulk",
        "64T/order9/1thread/random",
        "16G/order0/2threads/remote-free",
        "16G/order0-3-9/1thread/mixed",
        "16G/order4/1thread/pair",
        "16G/12frames/1thread/divided/pair",
        "64G/order0/1thread/used99.9/random",
        "4T/order3/1thread/used99/random",
        "64G/order0/1thread/low/low-one-free/pair",
        "64G/order1/1thread/low/low-scattered/refused",
        "64G/order0/1thread/near-64/pair",
        "1T/init",
        "64T/announce-add-online",
    ] {
        assert!(names.contains(name), "no {name} in {names:?}");
    }
    assert!(!names.contains("16G/order0/1thread/neighbours/pair"), "one thread has no neighbours");
}

#[test]
fn each_subject_that_cannot_do_a_case_says_why() {
    let reason = |subject, table| {
        let cases = cases(&["--tables", table, "--subjects", subject]);
        let reasons: BTreeSet<_> = cases.iter().filter_map(Case::cannot).collect();
        reasons.into_iter().collect::<Vec<_>>().join("; ")
    };
    assert_eq!(reason("hotmem", "near-full"), "");
    assert_eq!(reason("bitmap-allocator", "near-full"), "its largest bitmap has 1 TiB");
    for peer in ["LLFree", "buddy_system_allocator", "bitmap-allocator"] {
        assert_eq!(reason(peer, "runs"), "");
        assert_eq!(reason(peer, "low"), "it has no zones and no nodes");
    }
    assert_eq!(reason("buddy-slab-allocator", "low"), "");
    assert_eq!(reason("buddy-slab-allocator", "nodes"), "it has no nodes");
    assert_eq!(reason("LLFree", "start"), "its memory cannot grow");
}

#[test]
fn options_replace_the_values_of_a_table() {
    let line = "--tables runs --sizes 1G --lengths order3,7frames --states empty --subjects hotmem";
    let names: Vec<_> =
        cases(&line.split(' ').collect::<Vec<_>>()).iter().map(Case::name).collect();
    assert_eq!(names, ["1G/order3/1thread/pair", "1G/7frames/1thread/pair"]);
}

#[test]
fn the_default_set_is_a_small_part_of_all() {
    let (default_set, all) = (cases(&[]), cases(&["--thorough"]));
    assert!(default_set.iter().all(|case| all.contains(case)));
    assert!(default_set.iter().all(|case| case.size <= Bytes::gib(4096)));
    let runs = |line: &[&str]| parsed::<Args>(line).runs;
    assert_eq!([runs(&[]), runs(&["--thorough"]), runs(&["--runs", "5"])], [3, 7, 5]);
    let subjects = |case: &Case| {
        let same = default_set.iter().filter(|other| other.name() == case.name());
        same.map(|case| case.subject.to_string()).collect::<BTreeSet<_>>()
    };
    for case in &default_set {
        for peer in [
            "hotmem",
            "LLFree",
            "buddy-slab-allocator",
            "buddy_system_allocator",
            "bitmap-allocator",
        ] {
            assert!(subjects(case).contains(peer), "no row of {peer} for {}", case.name());
        }
    }
}

#[test]
fn parsing_the_command_line_of_a_case_gives_the_case() {
    for case in cases(&["--thorough"]) {
        let parsed_args: CaseArgs = parsed(&case.arguments(5)[2..]);
        assert_eq!((parsed_args.case, parsed_args.operations), (case, 5));
    }
}

/// One test at a time measures cases, because the bitmaps of the peers are statics.
static MEASURING: Mutex<()> = Mutex::new(());

const RUN: Run = Run { operations: 1 << 8, counts_instructions: false };

#[test]
fn every_case_of_the_thorough_set_can_be_measured() {
    let _measuring = MEASURING.lock();
    // Each on a small machine on which the case fits, because the tests are not optimised.
    for (tables, size) in [
        ("basic,runs,sizes,rare,start", "4G"),
        ("near-full", "512M"),
        ("low", "5G"),
        ("nodes", "8G"),
    ] {
        for case in possible(&["--tables", tables, "--sizes", size, "--threads", "1"]) {
            let measured = case.measure(RUN);
            assert!(measured.unwrap() > 0.0, "{}, {}", case.name(), case.subject);
        }
    }
}

#[test]
fn a_case_on_the_smallest_machine_can_be_measured_and_on_a_smaller_one_it_cannot() {
    let _measuring = MEASURING.lock();
    for size in ["1G", "4G"] {
        let all = possible(&["--tables", "basic,start", "--sizes", size, "--threads", "1"]);
        assert!(all.iter().any(|case| (case.size < case.min_size()) == (size == "1G")));
        let smallest = all.into_iter().filter(|case| case.size == case.min_size());
        for case in smallest {
            assert!(case.measure(RUN).unwrap() > 0.0, "{}", case.name());
        }
    }
    let line = ["--tables", "basic", "--sizes", "1G", "--accesses", "random"];
    let [small, ..] = cases(&line)[..] else { panic!() };
    assert_eq!(small.min_size(), Bytes::gib(4));
    assert!(small.measure(RUN).unwrap_err().to_string().contains("2048 pageblocks"));
}

#[test]
fn the_used_share_of_a_near_full_machine_is_at_random_places() {
    let _measuring = MEASURING.lock();
    let line = ["--tables", "near-full", "--sizes", "4G", "--subjects", "buddy-slab-allocator"];
    let case = cases(&line)[2];
    assert_eq!(case.name(), "4G/order0/1thread/used99/random");
    let allocator = adapters::buddy_slab::BuddySlab::<false>::new(1 << 20).unwrap();
    let held = prepare::prepare(&allocator, 0, &case).unwrap();
    let free = std::iter::from_fn(|| allocator.alloc(Length::FRAME)).collect::<BTreeSet<_>>();
    assert_eq!(free.len(), (1 << 20) / 100);
    assert!(held[0].iter().all(|frame| !free.contains(frame)), "a held frame is free");
    // At random, 0.99^512 of the pageblocks have no free frame.
    let pageblocks: BTreeSet<_> = free.iter().map(|frame| frame / 512).collect();
    assert!((1980..2048).contains(&pageblocks.len()), "{}", pageblocks.len());
}
