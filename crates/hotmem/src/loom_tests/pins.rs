//! Models a pin during each operation that gives memory to the host.

use super::machine::{BLOCK, Held, range};
use super::{Machine, model};
use crate::frames::AllocRequest;
use crate::report::{Contents, Reporter, Settings, Step};
use core::time::Duration;

const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

/// Allocates the second pageblock as a whole, so that only the first pageblock is free.
fn alloc_second_block(machine: &Machine) -> Held {
    machine.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()))
}

/// Returns settings that allow all free memory to be reported: a share of the few pageblocks would
/// be 0.
fn unlimited_settings() -> Settings {
    Settings { reporting_divisor: 1, ..Settings::EAGER }
}

/// Pins pageblock 0. Returns false if the host has a part of it.
fn pin(machine: &Machine) -> bool {
    machine.hotplug().pin(range(0, BLOCK), |_| {}).is_ok()
}

#[test]
fn a_pin_races_with_a_report() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        let mut reporter =
            Reporter::new(&*machine, unlimited_settings(), Contents::Undefined).unwrap();
        let other_thread = machine.spawn_on(1, pin);
        let sent = loop {
            match reporter.step(Duration::ZERO) {
                Step::Ready(Ok(batch)) => break Some(batch),
                Step::Working => {}
                _ => break None,
            }
        };
        let pinned = other_thread.join().unwrap();
        assert!(!pinned || sent.is_none(), "the host works on pinned memory");
        sent.into_iter().for_each(|batch| reporter.reported(batch).unwrap());
        machine.check();
        machine.free(rest);
        machine.check_empty();
    });
}

#[test]
fn a_pin_races_with_memory_that_is_lent() {
    model(|| {
        let machine = Machine::new(1);
        let rest = alloc_second_block(&machine);
        let other_thread = machine.spawn_on(1, |machine| {
            let held = machine.try_alloc(ONE_BLOCK).ok()?;
            match machine.lend(held.range()) {
                Ok(()) => Some(held),
                Err(_) => {
                    machine.free(held);
                    None
                }
            }
        });
        let pinned = pin(&machine);
        let lent = other_thread.join().unwrap();
        assert!(!pinned || lent.is_none(), "pinned memory was given to the host");
        machine.check();
        lent.into_iter().chain([rest]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_pin_races_with_memory_that_is_marked_as_reported() {
    model(|| {
        let machine = Machine::new(1);
        let rest = alloc_second_block(&machine);
        let other_thread = machine.spawn_on(1, |machine| {
            let Ok(token) = machine.isolate_range(range(0, BLOCK)) else { return };
            match token.mark_reported() {
                Ok(()) => {}
                Err((token, _)) => token.release(),
            }
        });
        let pinned = pin(&machine);
        other_thread.join().unwrap();
        assert!(!pinned || machine.counts().reported == 0, "pinned memory is reported");
        machine.check();
        machine.free(rest);
        machine.check_empty();
    });
}

#[test]
fn unpinning_races_with_a_reporter_that_falls_asleep() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let rest = alloc_second_block(&machine);
        assert!(pin(&machine));
        let mut reporter =
            Reporter::new(&*machine, unlimited_settings(), Contents::Undefined).unwrap();
        let other_thread = machine.spawn_on(1, |machine| {
            assert!(machine.hotplug().unpin(range(0, BLOCK)));
        });
        let report_until_idle = |reporter: &mut Reporter<'_, _>| loop {
            match reporter.step(Duration::ZERO) {
                Step::Ready(Ok(batch)) => reporter.reported(batch).unwrap(),
                Step::Working => {}
                _ => break,
            }
        };
        report_until_idle(&mut reporter);
        other_thread.join().unwrap();
        // Either the reporter has found the memory, or it was woken.
        report_until_idle(&mut reporter);
        assert_eq!(machine.counts().reported, BLOCK, "memory that was unpinned is not reported");
        machine.free(rest);
        machine.check_empty();
    });
}
