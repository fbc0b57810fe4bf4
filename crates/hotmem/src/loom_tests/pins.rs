//! Models pinning during every operation that gives memory to the host.

use super::machine::{BLOCK, Held, range};
use super::{Machine, model};
use crate::frames::AllocRequest;
use crate::report::{Contents, Reporter, Settings, Step};
use core::time::Duration;

const WHOLE: AllocRequest = AllocRequest::frames(BLOCK);

/// Allocates the whole second pageblock, so that only pageblock 0 is free.
fn all_but_the_first(machine: &Machine) -> Held {
    machine.alloc(WHOLE.at(range(BLOCK, 1).start()))
}

/// Returns settings for machines that are too small for a share of their free memory.
fn at_once() -> Settings {
    Settings { share: 1, ..Settings::EAGER }
}

/// Pins pageblock 0, if the host has no part of it. Returns whether it did.
fn pin(machine: &Machine) -> bool {
    machine.hotplug().pin(range(0, BLOCK), |_| {}).is_ok()
}

#[test]
fn a_pin_races_with_a_report() {
    model(|| {
        let machine = Machine::with_reporter(1);
        let rest = all_but_the_first(&machine);
        let mut reporter = Reporter::new(&*machine, at_once(), Contents::Undefined).unwrap();
        let other = machine.on_cpu(1, pin);
        let sent = loop {
            match reporter.step(Duration::ZERO) {
                Step::Ready(Ok(batch)) => break Some(batch),
                Step::Working => {}
                _ => break None,
            }
        };
        let pinned = other.join().unwrap();
        assert!(!pinned || sent.is_none(), "the host works on what is pinned");
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
        let rest = all_but_the_first(&machine);
        let other = machine.on_cpu(1, |machine| {
            let held = machine.try_alloc(WHOLE).ok()?;
            match machine.lend(held.range()) {
                Ok(()) => Some(held),
                Err(_) => {
                    machine.free(held);
                    None
                }
            }
        });
        let pinned = pin(&machine);
        let lent = other.join().unwrap();
        assert!(!pinned || lent.is_none(), "the host was given what is pinned");
        machine.check();
        lent.into_iter().chain([rest]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_pin_races_with_memory_that_is_marked_as_reported() {
    model(|| {
        let machine = Machine::new(1);
        let rest = all_but_the_first(&machine);
        let other = machine.on_cpu(1, |machine| {
            let Ok(token) = machine.isolate(range(0, BLOCK)) else { return };
            match token.mark_reported() {
                Ok(()) => {}
                Err((token, _)) => token.release(),
            }
        });
        let pinned = pin(&machine);
        other.join().unwrap();
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
        let rest = all_but_the_first(&machine);
        assert!(pin(&machine));
        let mut reporter = Reporter::new(&*machine, at_once(), Contents::Undefined).unwrap();
        let other = machine.on_cpu(1, |machine| {
            assert!(machine.hotplug().unpin(range(0, BLOCK)));
        });
        let settle = |reporter: &mut Reporter<'_, _>| loop {
            match reporter.step(Duration::ZERO) {
                Step::Ready(Ok(batch)) => reporter.reported(batch).unwrap(),
                Step::Working => {}
                _ => break,
            }
        };
        settle(&mut reporter);
        other.join().unwrap();
        // Either the reporter has found the memory, or it was woken.
        settle(&mut reporter);
        assert_eq!(machine.counts().reported, BLOCK, "what was unpinned is not reported");
        machine.free(rest);
        machine.check_empty();
    });
}
