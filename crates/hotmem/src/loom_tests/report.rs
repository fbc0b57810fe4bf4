//! Models reports during each other operation.

use super::machine::{BLOCK, Held, SECTION, Threads, range};
use super::{Machine, model, model_within};
use crate::addr::PfnRange;
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::report::{Batch, Contents, Reporter, Settings, Step};
use core::time::Duration;

const ONE: AllocRequest = AllocRequest::frames(1);
const WHOLE: AllocRequest = AllocRequest::frames(BLOCK);
const NOW: Duration = Duration::ZERO;

/// Returns settings that allow all free memory to be reported: a share of the few pageblocks would
/// be 0.
fn unlimited_settings() -> Settings {
    Settings { share: 1, ..Settings::EAGER }
}

fn reporter(machine: &Machine) -> Reporter<'_, Threads> {
    Reporter::new(machine, unlimited_settings(), Contents::Undefined).unwrap()
}

/// Overwrites the memory of a batch, as the host may. loom reports if other code accesses the
/// memory at the same time.
fn overwrite_batch(machine: &Machine, batch: &Batch) {
    batch.ranges().iter().for_each(|&range| machine.overwrite(range));
}

/// Runs the reporter until it sleeps. Returns how many frames were reported.
fn report_until_idle(machine: &Machine, reporter: &mut Reporter<'_, Threads>) -> u64 {
    let mut reported = 0;
    loop {
        match reporter.step(NOW) {
            Step::Ready(Ok(batch)) => {
                overwrite_batch(machine, &batch);
                reported += batch.ranges().iter().map(|range| range.frames()).sum::<u64>();
                reporter.reported(batch).unwrap();
            }
            Step::Working => {}
            Step::Idle => return reported,
            step => panic!("{step:?}"),
        }
    }
}

/// Returns the next batch of the reporter, or `None` if the reporter sleeps or waits.
fn next_batch(reporter: &mut Reporter<'_, Threads>) -> Option<Batch> {
    loop {
        match reporter.step(NOW) {
            Step::Ready(Ok(batch)) => return Some(batch),
            Step::Working => {}
            _ => return None,
        }
    }
}

/// Checks, while no operation is in flight, that the reporter reports all free pageblocks without
/// another wakeup.
fn check_all_reported(machine: &Machine, reporter: &mut Reporter<'_, Threads>) {
    machine.validate();
    report_until_idle(machine, reporter);
    let counts = machine.counts();
    assert_eq!(counts.reported, counts.free_whole, "a free pageblock is not reported");
    assert_eq!(counts.reporting, 0);
    machine.validate();
}

/// Checks that the reporter reports all free pageblocks, and then again after `held` was freed.
fn check_all_reported_again(machine: &Machine, reporter: &mut Reporter<'_, Threads>, held: Held) {
    check_all_reported(machine, reporter);
    machine.free(held);
    check_all_reported(machine, reporter);
}

/// Allocates the second pageblock as a whole, so that only the first pageblock is free.
fn alloc_second_block(machine: &Machine) -> Held {
    machine.alloc(WHOLE.at(range(BLOCK, 1).start()))
}

/// Reports one batch, if there is any memory to report.
fn report_once(machine: &Machine, reporter: &mut Reporter<'_, Threads>) {
    if let Some(batch) = next_batch(reporter) {
        overwrite_batch(machine, &batch);
        reporter.reported(batch).unwrap();
    }
}

#[test]
fn a_report_races_with_a_split() {
    model_within(1, || {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        let mut reporter = reporter(&machine);
        let other = machine.on_cpu(1, |machine| machine.try_alloc(ONE).ok());
        report_once(&machine, &mut reporter);
        let other_held = other.join().unwrap();
        machine.check();
        other_held.into_iter().chain([rest]).for_each(|held| machine.free(held));
        check_all_reported(&machine, &mut reporter);
    });
}

#[test]
fn a_report_races_with_a_whole_allocation() {
    model_within(1, || {
        let machine = Machine::with_reporter(1);
        let mut reporter = reporter(&machine);
        let other = machine.on_cpu(1, |machine| machine.try_alloc(WHOLE).ok());
        report_once(&machine, &mut reporter);
        let other_held = other.join().unwrap();
        machine.check();
        other_held.into_iter().for_each(|held| machine.free(held));
        check_all_reported(&machine, &mut reporter);
    });
}

/// Checks an allocation while the only free pageblock is being reported. The allocation gets the
/// pageblock, or fails as "busy".
fn check_that_no_allocation_runs_out_of_memory(request: AllocRequest) {
    model_within(1, move || {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        let mut reporter = reporter(&machine);
        let other = machine.on_cpu(1, move |machine| machine.alloc_unless_busy(request));
        report_once(&machine, &mut reporter);
        let other_held = other.join().unwrap();
        other_held.into_iter().chain([rest]).for_each(|held| machine.free(held));
        check_all_reported(&machine, &mut reporter);
    });
}

#[test]
fn a_report_races_with_an_allocation_of_a_frame() {
    check_that_no_allocation_runs_out_of_memory(ONE);
}

#[test]
fn a_report_races_with_an_allocation_of_a_pageblock() {
    check_that_no_allocation_runs_out_of_memory(WHOLE);
}

#[test]
fn falling_asleep_races_with_a_whole_free() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let held = machine.alloc(WHOLE);
        let mut reporter = reporter(&machine);
        let other = machine.on_cpu(1, |machine| machine.free(held));
        report_until_idle(&machine, &mut reporter);
        other.join().unwrap();
        // Either the reporter has found the pageblock, or the free has woken the reporter.
        check_all_reported(&machine, &mut reporter);
    });
}

#[test]
fn falling_asleep_races_with_a_last_free() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        let [a] = machine.as_cpu(1, Machine::alloc_singles);
        let mut reporter = reporter(&machine);
        // The pageblock is not the hint of the CPU that frees this frame, so the free coalesces the
        // pageblock.
        let other = machine.on_cpu(0, |machine| machine.free(a));
        report_until_idle(&machine, &mut reporter);
        other.join().unwrap();
        check_all_reported_again(&machine, &mut reporter, rest);
    });
}

#[test]
fn one_of_two_frees_wakes_the_reporter() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let (a, b) = (machine.alloc(WHOLE), machine.alloc(WHOLE));
        let mut reporter = reporter(&machine);
        report_until_idle(&machine, &mut reporter);
        let other = machine.on_cpu(1, |machine| machine.free(a));
        machine.free(b);
        other.join().unwrap();
        assert!(machine.wakeup().is_on());
        assert_eq!(report_until_idle(&machine, &mut reporter), 2 * BLOCK);
    });
}

#[test]
fn switching_on_races_with_a_whole_free() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let (a, b) = (machine.alloc(WHOLE), machine.alloc(WHOLE));
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let mut reporter = reporter(&machine);
        other.join().unwrap();
        check_all_reported_again(&machine, &mut reporter, b);
    });
}

#[test]
fn a_refusal_races_with_an_allocation() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        let mut reporter = reporter(&machine);
        let other = machine.on_cpu(1, |machine| machine.try_alloc(ONE).ok());
        if let Some(batch) = next_batch(&mut reporter) {
            overwrite_batch(&machine, &batch);
            reporter.failed(batch, NOW).unwrap();
        }
        let other_held = other.join().unwrap();
        machine.check();
        assert_eq!(machine.counts().reported, 0);
        other_held.into_iter().chain([rest]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_reset_races_with_an_allocation_and_a_free() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let [a] = machine.alloc_singles();
        let mut reporter = reporter(&machine);
        let lost = next_batch(&mut reporter);
        let other = machine.on_cpu(1, |machine| {
            machine.free(a);
            machine.try_alloc(ONE).ok()
        });
        reporter.reset();
        lost.into_iter().for_each(|batch| reporter.reported(batch).unwrap());
        let other_held = other.join().unwrap();
        assert_eq!(machine.counts().reporting, 0);
        machine.check();
        other_held.into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_report_races_with_an_isolation() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        let block = range(0, BLOCK);
        let mut reporter = reporter(&machine);
        let other = machine.on_cpu(1, move |machine| match machine.isolate(block) {
            Ok(token) => {
                assert!(token.in_use().is_none());
                machine.overwrite(block);
                token.release();
            }
            Err(
                RangeError { range, kind: RangeErrorKind::Busy }
                | RangeError { range, kind: RangeErrorKind::Reporting }
                | RangeError { range, kind: RangeErrorKind::Isolated },
            ) => assert_eq!(range, block),
            Err(error) => panic!("{error}"),
        });
        report_until_idle(&machine, &mut reporter);
        other.join().unwrap();
        check_all_reported(&machine, &mut reporter);
        machine.free(rest);
        machine.check_empty();
    });
}

#[test]
fn a_report_races_with_going_offline_and_online() {
    model_within(1, || {
        let machine = Machine::with_reporter(1);
        let block: PfnRange = range(0, BLOCK);
        let rest = alloc_second_block(&machine);
        let mut reporter = reporter(&machine);
        let other = machine.on_cpu(1, move |machine| {
            if machine.take_offline(block) {
                machine.overwrite(block);
                machine.online(block, OnlineType::Kernel);
            }
        });
        report_until_idle(&machine, &mut reporter);
        other.join().unwrap();
        check_all_reported(&machine, &mut reporter);
        machine.free(rest);
        machine.check_empty();
    });
}

#[test]
fn two_cpus_allocate_reported_memory() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let mut reporter = reporter(&machine);
        report_until_idle(&machine, &mut reporter);
        let other = machine.on_cpu(1, |machine| machine.alloc(WHOLE));
        let mine = machine.alloc(ONE);
        let other = other.join().unwrap();
        assert_eq!(machine.counts().reported, 0);
        machine.free(mine);
        machine.free(other);
        check_all_reported(&machine, &mut reporter);
    });
}

#[test]
fn a_report_races_with_a_search_for_unreported_memory() {
    model_within(1, || {
        let machine = Machine::with_reporter(2);
        let mut reporter = reporter(&machine);
        report_until_idle(&machine, &mut reporter);
        // Section 0 is CPU 1's hint, and the host has all of its free memory. The host does not
        // have all of section 1.
        let mine = machine.as_cpu(1, |machine| machine.alloc(WHOLE));
        assert!(range(0, SECTION).covers(mine.range()));
        let block = machine.alloc(WHOLE.at(range(SECTION, 1).start()));
        machine.free(block);
        let other = machine.on_cpu(1, |machine| machine.alloc(WHOLE));
        report_once(&machine, &mut reporter);
        let other_held = other.join().unwrap();
        [other_held, mine].into_iter().for_each(|held| machine.free(held));
        check_all_reported(&machine, &mut reporter);
        machine.check_empty();
    });
}

#[test]
fn a_hint_is_coalesced_while_its_cpu_allocates() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        // Pageblock 0 stays split, because it is CPU 1's hint.
        machine.as_cpu(1, |machine| {
            let [a] = machine.alloc_singles();
            machine.free(a);
        });
        let other = machine.on_cpu(1, |machine| {
            let held = machine.try_alloc(ONE);
            held.into_iter().for_each(|held| machine.free(held));
        });
        machine.coalesce_all_hinted();
        other.join().unwrap();
        machine.check();
        machine.free(rest);
        machine.check_empty();
    });
}
