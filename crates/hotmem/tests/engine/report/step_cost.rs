//! Tests that a step reads at most 64 sections, even on a large machine that has much memory which
//! must not be reported.

use super::*;
use hotmem_testkit::RawRanges as _;

/// The number of sections that a step reads.
const SECTIONS_PER_STEP: u64 = 64;

/// An upper limit of the size of a section's words, in bytes.
const SECTION_WORDS_BYTES: u64 = 1 << 11;

/// Returns a number of boot sections that is enough for the words of `sections` more sections, and
/// for some free pageblocks.
fn boot_sections_for(sections: u64) -> u64 {
    BOOT_SECTIONS + (sections * SECTION_WORDS_BYTES).div_ceil(SECTION * FRAME_SIZE)
}

/// Returns all frames of an instance with `sections` sections above boot memory.
pub(super) fn all_frames(sections: u64) -> PfnRange {
    range(0, (boot_sections_for(sections) + sections) * SECTION)
}

/// Runs `test` on an instance with `sections` free sections above boot memory. No memory backs
/// these sections, so `test` must not access their contents.
pub(super) fn with_large_instance(
    sections: u64,
    test: impl FnOnce(&TestFrames<'_>, &mut Hotplug<'_, &WakeupCount>),
) {
    let boot = boot_sections_for(sections);
    with_boot_sections(boot, 0, |frames, hotplug, _| {
        let plugged = range(boot * SECTION, sections * SECTION);
        hotplug.announce(plugged).unwrap();
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        test(frames, hotplug);
    });
}

/// Counts the steps of the reporter until it is idle. It must report nothing.
fn count_steps(reporter: &mut Reporter<'_, &WakeupCount>) -> u64 {
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
        with_large_instance(sections, |frames, hotplug| {
            hotplug.pin(all_frames(sections), |_| {}).unwrap();
            let mut reporter = eager_reporter(frames);
            let steps = count_steps(&mut reporter);
            assert!(steps * SECTIONS_PER_STEP >= sections, "{sections} sections in {steps} steps");
        });
    }
}

#[test]
fn memory_to_keep_free_is_counted_in_many_steps() {
    for sections in [1 << 10, 4 << 10] {
        with_large_instance(sections, |frames, _| {
            let keep_free = all_frames(sections).bytes();
            let settings = ReporterSettings { keep_free, ..ReporterSettings::EAGER };
            let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
            let first = count_steps(&mut reporter);
            assert!(first * SECTIONS_PER_STEP >= sections, "{sections} sections in {first} steps");
            // After a change the reporter counts again, in as many steps.
            let allocated = frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap();
            frames.free_range(allocated).unwrap();
            let again = count_steps(&mut reporter);
            assert!(again * SECTIONS_PER_STEP >= sections, "{sections} sections in {again} steps");
        });
    }
}

#[test]
fn all_memory_is_reported_though_no_step_reads_all_sections() {
    with_large_instance(1 << 10, |frames, _| {
        let settings = ReporterSettings { keep_free: size_of_blocks(3), ..ReporterSettings::EAGER };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let (_, step) = report_until_idle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle), "{step:?}");
        let counts = frames.counts();
        assert_eq!(counts.free_whole - counts.reported, 3 * PAGEBLOCK);
    });
}
