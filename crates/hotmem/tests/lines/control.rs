//! Checks that the cost of an operation that reads the records of all CPUs grows at most linearly
//! with the number of CPUs.

use super::{MOVABLE, on_each, switch_to, with_instance};
use hotmem::counted::take_accesses;
use hotmem::report::{Reporter, ReporterSettings};
use hotmem::*;
use hotmem_testkit::{Cpus, DISTANT_PFN, RawRanges as _, SECTION, range};
use std::time::Duration;

const CPUS: [u32; 3] = [16, 64, 256];
/// Two sections for each of 256 CPUs.
const SECTIONS: u64 = 512;

/// Checks that the loads of `work` grow at most linearly with the number of CPUs. Each CPU but the
/// last has allocated a frame, in a pageblock of its own, and `work` runs on the last one.
fn check_linear_loads(
    label: &str,
    work: impl for<'f> Fn(&'f Frames<Cpus>, &mut Hotplug<'f, Cpus, AlwaysMapped>),
) {
    let loads = CPUS.map(|cpus| {
        let mut loads = 0;
        with_instance(cpus, SECTIONS, |frames, hotplug| {
            on_each(cpus - 1, |_| {
                frames.alloc_range(MOVABLE).unwrap();
            });
            switch_to(cpus as usize - 1);
            take_accesses();
            work(frames, hotplug);
            loads = take_accesses().loads;
        });
        println!("{label:20} {cpus:3} CPUs: {loads} loads");
        loads as f64
    });
    // Four times as many CPUs are added by the second step as by the first.
    let [first, second] = [loads[1] - loads[0], loads[2] - loads[1]];
    assert!(first > 0.0, "{label} does not depend on the number of CPUs");
    assert!(second <= 4.0 * 1.1 * first, "{label}: {loads:?}");
}

#[test]
fn a_first_allocation_makes_linear_loads() {
    check_linear_loads("first allocation", |frames, _| {
        frames.alloc_range(MOVABLE).unwrap();
    });
}

#[test]
fn an_allocation_that_fails_makes_linear_loads() {
    check_linear_loads("out of memory", |frames, _| {
        let too_long = AllocRequest::frames(SECTIONS * SECTION + 1).movable();
        assert_eq!(frames.alloc_range(too_long).unwrap_err(), AllocError::OutOfMemory);
    });
}

#[test]
fn reports_make_linear_loads() {
    check_linear_loads("reports", |frames, _| {
        let settings = ReporterSettings {
            wake_delay: Duration::ZERO,
            min_free_time: Duration::ZERO,
            ..ReporterSettings::default()
        };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        loop {
            match reporter.step(Duration::ZERO) {
                Progress::Ready(batch) => reporter.reported(batch.unwrap()),
                Progress::Working => {}
                Progress::Pending(_) | Progress::Idle => break,
            }
        }
    });
}

#[test]
fn a_removal_makes_linear_loads() {
    check_linear_loads("removal", |_, hotplug| {
        let last = range(DISTANT_PFN + (SECTIONS - 1) * SECTION, SECTION);
        let mut shrink = Shrink::new(last);
        let Progress::Ready(removal) = shrink.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) else {
            panic!("nothing of the last section is in use");
        };
        hotplug.commit_remove(removal);
    });
}
