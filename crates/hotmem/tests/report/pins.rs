//! Memory that no host may have.

use super::*;

#[test]
fn pinned_memory_is_never_reported() {
    on_machine(|frames, _, _| {
        let mut reporter = eager(frames);
        let pinned = range(BLOCK + 1, 1);
        let batch = send(&mut reporter, ms(0));
        let out = batch.ranges()[0];
        let first = range(out.start().number(), BLOCK);
        assert_eq!(reporter.pin(out), Err(PinError::Out(first)));
        reporter.failed(batch, ms(0)).unwrap();
        reporter.pin(pinned).unwrap();
        let (reported, step) = settle(&mut reporter, ms(100_000));
        assert!(matches!(step, Step::Idle));
        let pinned_block = pinned.align_outward(BLOCK);
        assert!(reported.iter().all(|range| !range.overlaps(pinned_block)));
        assert_eq!(frames.counts_in(pinned_block).reported, 0);
        assert!(!reporter.unpin(range(pfn(5 * BLOCK).number(), 1)));
        assert!(reporter.unpin(pinned));
        let (reported, _) = settle(&mut reporter, ms(200_000));
        assert!(reported.contains(&pinned_block) || frames.counts_in(pinned_block).free_whole == 0);
    });
}

#[test]
fn what_is_pinned_or_reported_in_the_middle_of_a_section_does_not_go() {
    on_machine(|frames, _, _| {
        let settings = Settings { batch: 1, longest: frames_of(1), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Filled(0)).unwrap();
        let [first] = *send(&mut reporter, ms(0)).ranges() else { panic!("one range") };
        let below = |n: u64| range(first.start().number() - n * BLOCK, BLOCK);
        reporter.pin(below(1)).unwrap();
        frames.isolate(below(2)).unwrap().mark_reported().unwrap();
        assert_eq!(send(&mut reporter, ms(0)).ranges(), [below(3)]);
    });
}

#[test]
fn memory_that_is_out_cannot_be_pinned_across_regions() {
    on_machine(|frames, hotplug, _| {
        // It ends within a section, where the next region begins.
        let ends = range((ALL + 1) * SECTION, SECTION / 2);
        let begins = range(ends.end().number(), SECTION / 2);
        let both = range(ends.end().number() - BLOCK, 2 * BLOCK);
        for region in [ends, begins] {
            hotplug.announce(region).unwrap();
            hotplug.add(region, &mut NoHooks).unwrap();
            hotplug.online(region, OnlineType::Movable, &mut NoHooks).unwrap();
        }
        let mut reporter = eager(frames);
        let batch = send(&mut reporter, ms(0));
        assert!(batch.ranges().iter().any(|out| out.overlaps(both)));
        let PinError::Out(out) = reporter.pin(both).unwrap_err() else { panic!("there is room") };
        assert!(both.covers(out) && out.frames() == BLOCK);
        reporter.reported(batch).unwrap();
        reporter.pin(both).unwrap();
    });
}

#[test]
fn pins_run_out() {
    on_machine(|frames, _, _| {
        let mut reporter = eager(frames);
        for _ in 0..hotmem::report::MAX_PINS {
            reporter.pin(range(0, 1)).unwrap();
        }
        assert_eq!(reporter.pin(range(0, 1)), Err(PinError::TooMany));
        assert_eq!(reporter.statistics(), Statistics::default());
    });
}
