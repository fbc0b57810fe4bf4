//! Tests that a step reads at most 64 sections, however large the machine is and whatever must be
//! kept back.

use super::*;
use hotmem_testkit::Raw as _;

/// The number of sections that a step reads.
const A_STEP: u64 = 64;

/// At least the number of frames that the words of a section need: in the small geometry, one for
/// four sections.
const WORDS: u64 = 1 << 11;

/// Returns the number of boot sections that have room for the words of `more` sections, and some
/// free pageblocks.
fn boot_for(sections: u64) -> u64 {
    BOOT + (sections * WORDS).div_ceil(SECTION * FRAME_SIZE)
}

/// Returns the frames of a machine with `more` sections above boot memory.
pub(super) fn all_of(sections: u64) -> PfnRange {
    range(0, (boot_for(sections) + sections) * SECTION)
}

/// Runs `test` on a machine with `more` free sections above boot memory. They have no memory, and
/// are never used.
pub(super) fn on_large_machine(
    sections: u64,
    test: impl FnOnce(&Machine<'_>, &mut Hotplug<'_, &WakeupCount>),
) {
    let boot = boot_for(sections);
    on_booted(boot, 0, |frames, hotplug, _| {
        let plugged = range(boot * SECTION, sections * SECTION);
        hotplug.announce(plugged).unwrap();
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        test(frames, hotplug);
    });
}

/// Steps until the reporter is idle, without a host. Returns the number of steps.
fn steps(reporter: &mut Reporter<'_, &WakeupCount>) -> u64 {
    let mut steps = 1;
    loop {
        match reporter.step(ms(1000)) {
            Step::Idle => return steps,
            Step::Working => steps += 1,
            step => panic!("{step:?}"),
        }
    }
}

#[test]
fn pinned_memory_is_walked_in_many_steps() {
    for sections in [1 << 10, 4 << 10] {
        on_large_machine(sections, |frames, hotplug| {
            hotplug.pin(all_of(sections), |_| {}).unwrap();
            let mut reporter = eager(frames);
            let steps = steps(&mut reporter);
            assert!(steps * A_STEP >= sections, "{sections} sections in {steps} steps");
        });
    }
}

#[test]
fn memory_that_is_kept_back_is_counted_in_many_steps() {
    for sections in [1 << 10, 4 << 10] {
        on_large_machine(sections, |frames, _| {
            let keep_free = all_of(sections).bytes();
            let settings = Settings { keep_free, ..Settings::EAGER };
            let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
            let first = steps(&mut reporter);
            assert!(first * A_STEP >= sections, "{sections} sections in {first} steps");
            // The same after a change.
            let used = frames.take_raw(AllocRequest::frames(BLOCK)).unwrap();
            frames.give_raw(used).unwrap();
            let again = steps(&mut reporter);
            assert!(again * A_STEP >= sections, "{sections} sections in {again} steps");
        });
    }
}

#[test]
fn all_memory_is_reported_though_no_step_reads_all_sections() {
    on_large_machine(1 << 10, |frames, _| {
        let settings = Settings { keep_free: frames_of(3), ..Settings::EAGER };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let (_, step) = settle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle), "{step:?}");
        let counts = frames.counts();
        assert_eq!(counts.free_whole - counts.reported, 3 * BLOCK);
    });
}
