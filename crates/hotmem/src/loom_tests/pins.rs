//! Models a pin during each operation that gives memory to the host.

use super::instance::{BLOCK, ONE_BLOCK, range};
use super::{Instance, model};
use crate::frames::Contents;
use crate::report::{Reporter, ReporterSettings, Step};
use core::time::Duration;

/// Returns settings that allow all free memory to be reported: a share of the few pageblocks would
/// be 0.
fn unlimited_settings() -> ReporterSettings {
    ReporterSettings { reporting_divisor: 1, ..ReporterSettings::EAGER }
}

/// Pins pageblock 0. Returns false if the host has a part of it.
fn pin(instance: &Instance) -> bool {
    instance.hotplug().pin(range(0, BLOCK), |_| {}).is_ok()
}

#[test]
fn a_pin_races_with_a_report() {
    model(|| {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        let mut reporter =
            Reporter::new(&*instance, unlimited_settings(), Contents::Undefined).unwrap();
        let other_thread = instance.spawn_on(1, pin);
        let sent = loop {
            match reporter.step(Duration::ZERO) {
                Step::Ready(Ok(batch)) => break Some(batch),
                Step::Working => {}
                _ => break None,
            }
        };
        let pinned = other_thread.join().unwrap();
        assert!(!pinned || sent.is_none(), "the host works on pinned memory");
        sent.into_iter().for_each(|batch| reporter.reported(batch));
        instance.check();
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn a_pin_races_with_memory_that_is_lent() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let other_thread = instance.spawn_on(1, |instance| {
            let held = instance.try_alloc(ONE_BLOCK).ok()?;
            match instance.call().lend(held.range(), |_| true) {
                Ok(()) => Some(held),
                Err(_) => {
                    instance.free(held);
                    None
                }
            }
        });
        let pinned = pin(&instance);
        let lent = other_thread.join().unwrap();
        assert!(!pinned || lent.is_none(), "pinned memory was given to the host");
        instance.check();
        lent.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_loan_ends_while_another_lender_lends_in_the_same_pageblock() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [first, second] = instance.alloc_singles();
        instance.call().lend(first.range(), |_| true).unwrap();
        let returned = first.range();
        let other_thread =
            instance.spawn_on(1, move |instance| instance.call().end_lending(returned));
        instance.call().lend(second.range(), |_| true).unwrap();
        other_thread.join().unwrap();
        assert!(!pin(&instance), "lent memory can be pinned");
        [first, second, second_block].into_iter().for_each(|held| instance.free(held));
        assert!(pin(&instance), "the mark stays although all frames are free");
        instance.check_empty();
    });
}

#[test]
fn a_pin_races_with_memory_that_is_marked_as_reported() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let other_thread = instance.spawn_on(1, |instance| {
            let Ok(token) = instance.call().isolate_range(range(0, BLOCK)) else { return };
            match token.mark_reported() {
                Ok(()) => {}
                Err((token, _)) => token.release(),
            }
        });
        let pinned = pin(&instance);
        other_thread.join().unwrap();
        assert!(!pinned || instance.counts().reported == 0, "pinned memory is reported");
        instance.check();
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn unpinning_races_with_a_reporter_that_falls_asleep() {
    model(|| {
        let instance = Instance::with_reporter(1);
        let second_block = instance.alloc_second_block();
        assert!(pin(&instance));
        let mut reporter =
            Reporter::new(&*instance, unlimited_settings(), Contents::Undefined).unwrap();
        let other_thread = instance.spawn_on(1, |instance| {
            assert!(instance.hotplug().unpin(range(0, BLOCK)));
        });
        let report_until_idle = |reporter: &mut Reporter<'_, _>| loop {
            match reporter.step(Duration::ZERO) {
                Step::Ready(Ok(batch)) => reporter.reported(batch),
                Step::Working => {}
                _ => break,
            }
        };
        report_until_idle(&mut reporter);
        other_thread.join().unwrap();
        // Either the reporter has found the memory, or it was woken.
        report_until_idle(&mut reporter);
        assert_eq!(instance.counts().reported, BLOCK, "memory that was unpinned is not reported");
        instance.free(second_block);
        instance.check_empty();
    });
}
