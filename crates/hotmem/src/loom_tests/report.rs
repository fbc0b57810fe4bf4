//! Models reports that run while other CPUs allocate, free, isolate memory or take it offline.

use super::instance::{BLOCK, Held, LoomPlatform, ONE_BLOCK, ONE_FRAME, SECTION, range};
use super::poison::{check_quarantined, poison};
use super::{Instance, large_model, model, model_preemptions};
use crate::addr::PfnRange;
use crate::frames::AllocRequest;
use crate::frames::Contents;
use crate::hotplug::OnlineType;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::report::{Batch, Reporter, ReporterSettings, Step};
use core::time::Duration;

const NOW: Duration = Duration::ZERO;

/// Returns settings that allow all free memory to be with the host at the same time. With the usual
/// `reporting_divisor`, the limit would be 0, because a model has only a few pageblocks.
fn unlimited_settings() -> ReporterSettings {
    ReporterSettings { reporting_divisor: 1, ..ReporterSettings::EAGER }
}

fn reporter(instance: &Instance) -> Reporter<'_, LoomPlatform> {
    Reporter::new(instance, unlimited_settings(), Contents::Undefined).unwrap()
}

/// Overwrites the memory of a batch with zeroes, as the host may. loom fails the test if other code
/// accesses the memory at the same time.
fn discard_batch(instance: &Instance, batch: &Batch) {
    batch.iter().for_each(|&range| instance.discard(range));
}

/// Gives a batch back that the host has discarded.
fn return_batch(reporter: &mut Reporter<'_, LoomPlatform>, batch: Batch) {
    reporter.reported_as(batch, |_| Contents::Filled(0));
}

/// Steps the reporter until it is idle. The host accepts every batch. Returns how many frames were
/// reported.
fn report_until_idle(instance: &Instance, reporter: &mut Reporter<'_, LoomPlatform>) -> u64 {
    let mut reported = 0;
    loop {
        match reporter.step(NOW) {
            Step::Ready(Ok(batch)) => {
                discard_batch(instance, &batch);
                reported += batch.iter().map(|range| range.frames()).sum::<u64>();
                return_batch(reporter, batch);
            }
            Step::Working => {}
            Step::Idle => return reported,
            step => panic!("{step:?}"),
        }
    }
}

/// Returns the next batch of the reporter, or `None` if the reporter sleeps or waits.
fn next_batch(reporter: &mut Reporter<'_, LoomPlatform>) -> Option<Batch> {
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
fn check_all_reported(instance: &Instance, reporter: &mut Reporter<'_, LoomPlatform>) {
    instance.validate();
    report_until_idle(instance, reporter);
    let counts = instance.counts();
    assert_eq!(counts.reported, counts.free_whole, "a free pageblock is not reported");
    assert_eq!(counts.reporting, 0);
    instance.validate();
}

/// Checks that the reporter reports all free pageblocks, and then again after `held` was freed.
fn check_all_reported_again(
    instance: &Instance,
    reporter: &mut Reporter<'_, LoomPlatform>,
    held: Held,
) {
    check_all_reported(instance, reporter);
    instance.free(held);
    check_all_reported(instance, reporter);
}

/// Reports one batch, if there is any memory to report.
fn report_once(instance: &Instance, reporter: &mut Reporter<'_, LoomPlatform>) {
    if let Some(batch) = next_batch(reporter) {
        discard_batch(instance, &batch);
        return_batch(reporter, batch);
    }
}

#[test]
fn a_report_races_with_dividing_a_pageblock() {
    model_preemptions(1, || {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        let mut reporter = reporter(&instance);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        report_once(&instance, &mut reporter);
        let other_held = other_thread.join().unwrap();
        instance.check();
        other_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        check_all_reported(&instance, &mut reporter);
    });
}

#[test]
fn a_report_races_with_a_whole_allocation() {
    model_preemptions(1, || {
        let instance = Instance::with_reporter(1);
        let mut reporter = reporter(&instance);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK).ok());
        report_once(&instance, &mut reporter);
        let other_held = other_thread.join().unwrap();
        instance.check();
        other_held.into_iter().for_each(|held| instance.free(held));
        check_all_reported(&instance, &mut reporter);
    });
}

/// Checks an allocation while the only free pageblock is being reported. The allocation gets the
/// pageblock, or fails as "busy".
fn check_that_no_allocation_runs_out_of_memory(request: AllocRequest) {
    model_preemptions(1, move || {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        let mut reporter = reporter(&instance);
        let other_thread =
            instance.spawn_on(1, move |instance| instance.alloc_unless_busy(request));
        report_once(&instance, &mut reporter);
        let other_held = other_thread.join().unwrap();
        other_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        check_all_reported(&instance, &mut reporter);
    });
}

#[test]
fn a_report_races_with_an_allocation_of_a_frame() {
    check_that_no_allocation_runs_out_of_memory(ONE_FRAME);
}

#[test]
fn a_report_races_with_an_allocation_of_a_pageblock() {
    check_that_no_allocation_runs_out_of_memory(ONE_BLOCK);
}

#[test]
fn going_to_sleep_races_with_freeing_a_pageblock() {
    large_model(|| {
        let instance = Instance::with_reporter(1);
        let held = instance.alloc(ONE_BLOCK);
        let mut reporter = reporter(&instance);
        let other_thread = instance.spawn_on(1, |instance| instance.free(held));
        report_until_idle(&instance, &mut reporter);
        other_thread.join().unwrap();
        // Either the reporter has found the pageblock, or the free has woken the reporter.
        check_all_reported(&instance, &mut reporter);
    });
}

#[test]
fn going_to_sleep_races_with_freeing_the_last_frame() {
    model(|| {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        let [a] = instance.run_as(1, Instance::alloc_singles);
        let mut reporter = reporter(&instance);
        // The pageblock is not the hint of the CPU that frees this frame, so the free coalesces the
        // pageblock.
        let other_thread = instance.spawn_on(0, |instance| instance.free(a));
        report_until_idle(&instance, &mut reporter);
        other_thread.join().unwrap();
        check_all_reported_again(&instance, &mut reporter, second_block);
    });
}

#[test]
fn one_of_two_frees_wakes_the_reporter() {
    model(|| {
        let instance = Instance::with_reporter(1);
        let (a, b) = (instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK));
        let mut reporter = reporter(&instance);
        report_until_idle(&instance, &mut reporter);
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        instance.free(b);
        other_thread.join().unwrap();
        assert!(instance.wakeup().is_on());
        assert_eq!(report_until_idle(&instance, &mut reporter), 2 * BLOCK);
    });
}

#[test]
fn starting_the_reporter_races_with_freeing_a_pageblock() {
    model(|| {
        let instance = Instance::with_reporter(1);
        let (a, b) = (instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK));
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let mut reporter = reporter(&instance);
        other_thread.join().unwrap();
        check_all_reported_again(&instance, &mut reporter, b);
    });
}

#[test]
fn a_failed_report_races_with_an_allocation() {
    large_model(|| {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        let mut reporter = reporter(&instance);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        if let Some(batch) = next_batch(&mut reporter) {
            discard_batch(&instance, &batch);
            reporter.failed(batch, NOW);
        }
        let other_held = other_thread.join().unwrap();
        instance.check();
        assert_eq!(instance.counts().reported, 0);
        other_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_reset_races_with_an_allocation_and_a_free() {
    model(|| {
        let instance = Instance::with_reporter(1);
        let [a] = instance.alloc_singles();
        let mut reporter = reporter(&instance);
        let batch_before_reset = next_batch(&mut reporter);
        let other_thread = instance.spawn_on(1, |instance| {
            instance.free(a);
            instance.try_alloc(ONE_FRAME).ok()
        });
        reporter.reset();
        batch_before_reset.into_iter().for_each(|batch| reporter.reported(batch));
        let other_held = other_thread.join().unwrap();
        assert_eq!(instance.counts().reporting, 0);
        instance.check();
        other_held.into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_report_races_with_an_isolation() {
    large_model(|| {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        let block = range(0, BLOCK);
        let mut reporter = reporter(&instance);
        let other_thread =
            instance.spawn_on(1, move |instance| match instance.call().isolate_range(block) {
                Ok(token) => {
                    assert!(token.in_use().is_none());
                    instance.overwrite(block);
                    token.release();
                }
                Err(
                    RangeError { range, kind: RangeErrorKind::Busy }
                    | RangeError { range, kind: RangeErrorKind::Reporting }
                    | RangeError { range, kind: RangeErrorKind::Isolated },
                ) => assert_eq!(range, block),
                Err(error) => panic!("{error}"),
            });
        report_until_idle(&instance, &mut reporter);
        other_thread.join().unwrap();
        check_all_reported(&instance, &mut reporter);
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn a_report_races_with_going_offline_and_online() {
    model_preemptions(1, || {
        let instance = Instance::with_reporter(1);
        let block: PfnRange = range(0, BLOCK);
        let second_block = instance.alloc_second_block();
        let mut reporter = reporter(&instance);
        let other_thread = instance.spawn_on(1, move |instance| {
            if instance.take_offline(block) {
                instance.overwrite(block);
                instance.online(block, OnlineType::Kernel);
            }
        });
        report_until_idle(&instance, &mut reporter);
        other_thread.join().unwrap();
        check_all_reported(&instance, &mut reporter);
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn two_cpus_allocate_reported_memory() {
    large_model(|| {
        let instance = Instance::with_reporter(1);
        let mut reporter = reporter(&instance);
        report_until_idle(&instance, &mut reporter);
        let other_thread = instance.spawn_on(1, |instance| instance.alloc(ONE_BLOCK));
        let main_held = instance.alloc(ONE_FRAME);
        let other_held = other_thread.join().unwrap();
        assert_eq!(instance.counts().reported, 0);
        instance.free(main_held);
        instance.free(other_held);
        check_all_reported(&instance, &mut reporter);
    });
}

#[test]
fn a_report_races_with_a_search_for_unreported_memory() {
    model_preemptions(1, || {
        let instance = Instance::with_reporter(2);
        let mut reporter = reporter(&instance);
        report_until_idle(&instance, &mut reporter);
        // All free memory of section 0, which is the hint of CPU 1, is reported. Section 1 has a
        // pageblock that is not reported.
        let main_held = instance.run_as(1, |instance| instance.alloc(ONE_BLOCK));
        assert!(range(0, SECTION).covers(main_held.range()));
        let block = instance.alloc(ONE_BLOCK.at(range(SECTION, 1).start()));
        instance.free(block);
        let other_thread = instance.spawn_on(1, |instance| instance.alloc(ONE_BLOCK));
        report_once(&instance, &mut reporter);
        let other_held = other_thread.join().unwrap();
        [other_held, main_held].into_iter().for_each(|held| instance.free(held));
        check_all_reported(&instance, &mut reporter);
        instance.check_empty();
    });
}

#[test]
fn the_pageblock_of_a_hint_is_coalesced_while_its_cpu_allocates() {
    model(|| {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        // Pageblock 0 stays divided, because it is CPU 1's hint.
        instance.run_as(1, |instance| {
            let [a] = instance.alloc_singles();
            instance.free(a);
        });
        let other_thread = instance.spawn_on(1, |instance| {
            let held = instance.try_alloc(ONE_FRAME);
            held.into_iter().for_each(|held| instance.free(held));
        });
        instance.call().coalesce_all_hinted();
        other_thread.join().unwrap();
        instance.check();
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn the_answer_that_memory_is_zero_races_with_poison_in_it() {
    model_preemptions(1, || {
        let instance = Instance::with_reporter(1);
        let mut reporter = reporter(&instance);
        let batch = next_batch(&mut reporter).unwrap();
        discard_batch(&instance, &batch);
        let other_thread = instance.spawn_on(1, |instance| poison(instance, 1));
        return_batch(&mut reporter, batch);
        other_thread.join().unwrap();
        check_quarantined(&instance, 1);
    });
}
