//! Tests which memory is given to the host, kept and taken back.

use super::*;
use hotmem::{RangeError, RangeErrorKind};

#[test]
fn freed_memory_is_reported_automatically() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut guest = Guest::new(&machine, Features::PAGE_REPORTING, settings_that_keep_none_free());
    guest.run(Duration::from_secs(2));
    let reported = || machine.frames.counts().reported;
    let initially = reported();
    assert!(initially > SIZE / 4096 / 10 * 8, "{initially}");
    for _ in 0..60 {
        guest.allocate(PAGEBLOCK_FRAMES);
    }
    assert!(reported() < initially);
    (0..60).for_each(|_| guest.free(0));
    guest.run(Duration::from_secs(2));
    assert_eq!(reported(), initially);
    guest.check();
}

/// Checks that exactly the memory that the host was given is marked as reported.
fn check_marks(guest: &Guest<'_>) {
    let mut reported = 0;
    for range in &guest.device.reported_ranges {
        reported += range.frames();
        assert_eq!(guest.machine.frames.counts_in(*range).reported, range.frames(), "{range}");
    }
    assert_eq!(
        guest.machine.frames.counts().reported,
        reported,
        "memory that was never sent is marked as reported"
    );
}

#[test]
fn only_reported_memory_is_marked_for_every_batch_size() {
    for max_ranges in [1, 16, 32] {
        let machine = Machine::new();
        let _hotplug = machine.boot();
        let mut guest =
            Guest::new(&machine, Features::PAGE_REPORTING, settings_that_keep_none_free());
        guest.driver = guest.driver.with_max_report_ranges(max_ranges);
        let settings = ReporterSettings {
            max_batch_ranges: 64,
            max_range_size: Bytes::mib(2),
            reporting_divisor: 1,
            ..settings_that_keep_none_free()
        };
        guest.memory.reporter().unwrap().settings = settings;
        guest.run(Duration::from_secs(2));
        check_marks(&guest);
        assert_eq!(machine.frames.counts().reported, machine.frames.counts().free_whole);
        guest.check();
    }
}

#[test]
fn pageblocks_that_the_host_has_initialised_as_a_whole_are_zero_when_they_are_allocated() {
    const PAGEBLOCK_BYTES: u32 = 2 << 20;
    for (initialised_bytes, zeroed_pageblocks) in
        [(0, 0), (PAGEBLOCK_BYTES - 1, 0), (PAGEBLOCK_BYTES, 1), (3 * PAGEBLOCK_BYTES + 4096, 3)]
    {
        let machine = Machine::new();
        let _hotplug = machine.boot();
        let mut guest = Guest::new(&machine, FEATURES, settings_that_keep_none_free());
        guest.initialised_bytes = initialised_bytes;
        // One report takes all memory.
        guest.memory.reporter().unwrap().settings.reporting_divisor = 1;
        guest.run(Duration::from_secs(2));
        let reports = guest.driver.counters().reports;
        while machine.frames.counts().free_whole > 0 {
            guest.allocate(PAGEBLOCK_FRAMES);
        }
        assert_eq!(guest.zeroed_frames, reports * zeroed_pageblocks * PAGEBLOCK_FRAMES);
        // The kernel has written to the memory, so it is not zero any more.
        while !guest.tagged_allocations.is_empty() {
            guest.free(0);
        }
        (0..10).for_each(|_| guest.allocate(PAGEBLOCK_FRAMES));
        assert_eq!(guest.zeroed_frames, reports * zeroed_pageblocks * PAGEBLOCK_FRAMES);
        guest.check();
    }
}

#[test]
fn lengths_of_answers_mean_nothing_without_their_feature() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut guest = Guest::new(&machine, Features::PAGE_REPORTING, settings_that_keep_none_free());
    guest.initialised_bytes = u32::MAX;
    guest.run(Duration::from_secs(2));
    (0..10).for_each(|_| guest.allocate(PAGEBLOCK_FRAMES));
    assert_eq!(guest.zeroed_frames, 0);
}

#[test]
fn a_device_that_does_not_answer_is_reset_and_its_memory_is_free() {
    for queue in [Queue::Reports, Queue::Inflate, Queue::Hints] {
        let machine = Machine::new();
        let _hotplug = machine.boot();
        let mut guest = Guest::new(&machine, FEATURES, settings_that_keep_none_free());
        let before = machine.frames.counts().free;
        guest.device.silent_queues.push(queue);
        guest.device.config.num_pages = 20_000;
        // The balloon and the hints together leave too little memory to report.
        if queue != Queue::Reports {
            guest.device.request_hints(5);
        }
        let start = guest.now;
        guest.run_until_reset(queue);
        assert!(guest.now - start < Driver::DEFAULT_ANSWER_TIMEOUT + Duration::from_secs(2));
        // A host that does not answer has so little memory that the guest can continue.
        for _ in 0..60 {
            guest.allocate(64);
        }
        assert_eq!(guest.tagged_allocations.len(), 60);
        guest.reset();
        // The engine itself may have allocated a frame for the bitmaps of each 64 MiB.
        let counts = machine.frames.counts();
        let used = before - counts.free;
        assert!((60 * 64..=60 * 64 + (SIZE >> 26)).contains(&used), "{used} frames are in use");
        assert_eq!(counts.reporting, 0);
        guest.device.silent_queues.clear();
        guest.device.request_hints(DONE);
        guest.run(Duration::from_secs(10));
        assert_eq!(guest.memory.inflated_frames(), 20_000);
        guest.check();
    }
}

#[test]
fn the_balloon_leaves_the_minimum_of_free_frames() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut guest = Guest::new(&machine, Features::empty(), ReporterSettings::default());
    let free = machine.frames.counts().free;
    guest.device.config.num_pages = u32::MAX;
    guest.run(Duration::from_secs(10));
    let left = machine.frames.counts().free;
    assert!((MIN_FREE_FRAMES..MIN_FREE_FRAMES + PAGEBLOCK_FRAMES).contains(&left), "{left}");
    // The record takes a frame for each section, and one for these.
    let recorded = free - left - guest.device.balloon.len() as u64;
    assert!(recorded <= (SIZE >> 27) + 1, "{recorded}");
    assert_eq!(u64::from(guest.device.actual_pages), guest.memory.inflated_frames());
    guest.device.config.num_pages = 0;
    guest.run(Duration::from_secs(10));
    // The engine itself may have allocated a frame for bitmaps for each 64 MiB.
    let lost = free - machine.frames.counts().free;
    assert!(lost <= SIZE >> 26, "{lost} frames are lost");
    guest.check();
}

#[test]
fn memory_that_an_assigned_device_can_access_is_not_given_away() {
    for features in [FEATURES, FEATURES.difference(Features::PAGE_REPORTING)] {
        let machine = Machine::new();
        let mut hotplug = machine.boot();
        let mut guest = Guest::new(&machine, features, settings_that_keep_none_free());
        let pinned = PfnRange::new(
            Pfn::new(100 * PAGEBLOCK_FRAMES).unwrap(),
            Pfn::new(120 * PAGEBLOCK_FRAMES).unwrap(),
        );
        let pinned = pinned.unwrap();
        hotplug.pin(pinned, |_| {}).unwrap();
        guest.run(Duration::from_secs(2));
        let reports = features.contains(Features::PAGE_REPORTING);
        assert_eq!(guest.device.reported_ranges.is_empty(), !reports);
        guest.device.config.num_pages = 20_000;
        guest.run(Duration::from_secs(10));
        assert_eq!(guest.memory.inflated_frames(), 20_000);
        guest.device.request_hints(5);
        guest.run(Duration::from_secs(1));
        assert!(!guest.device.hinted_ranges.is_empty());
        // The host requests all other memory too.
        guest.device.config.num_pages = u32::MAX;
        guest.run(Duration::from_secs(10));
        let given = guest.device.reported_ranges.iter().chain(&guest.device.hinted_ranges);
        assert!(given.clone().all(|range| !range.overlaps(pinned)), "{given:?}");
        let mut frames = guest.device.balloon.iter().map(|&n| Pfn::new(n.into()).unwrap());
        assert!(frames.all(|frame| !pinned.contains(frame)));
        guest.check();
    }
}

#[test]
fn memory_in_the_balloon_or_hinted_is_not_pinned() {
    let machine = Machine::new();
    let mut hotplug = machine.boot();
    let mut guest = Guest::new(&machine, FEATURES, settings_that_keep_none_free());
    guest.device.config.num_pages = 20_000;
    guest.device.request_hints(5);
    guest.run(Duration::from_secs(10));
    let inflated = guest.device.balloon.iter().map(|&n| u64::from(n));
    let hinted = guest.device.hinted_ranges.iter().map(|range| range.start().number());
    let given: Vec<u64> = inflated.step_by(777).chain(hinted).collect();
    let mut pin = |number: u64| {
        let frame = PfnRange::with_len(Pfn::new(number).unwrap(), 1).unwrap();
        hotplug.pin(frame, |_| {})
    };
    for &number in &given {
        let result = pin(number);
        assert!(
            matches!(result, Err(RangeError { kind: RangeErrorKind::Lent, .. })),
            "{number:#x}: {result:?}"
        );
    }
    guest.device.config.num_pages = 0;
    guest.device.request_hints(DONE);
    guest.run(Duration::from_secs(10));
    let sample = given.iter().step_by(given.len().div_ceil(16));
    assert!(sample.map(|&number| pin(number)).all(|result| result.is_ok()));
    guest.check();
}

#[test]
fn the_guest_takes_back_what_it_needs() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut guest = Guest::new(&machine, Features::DEFLATE_ON_OOM, ReporterSettings::default());
    guest.device.config.num_pages = 40_000;
    guest.run(Duration::from_secs(1));
    guest.memory.need(10_000);
    for _ in 0..200 {
        guest.answered_queue = guest.answered_queue.or_else(|| guest.device.answer());
        guest.step();
    }
    assert!(guest.memory.inflated_frames() <= 30_000);
    guest.memory.need(0);
    guest.run(Duration::from_secs(30));
    assert_eq!(guest.memory.inflated_frames(), 40_000);
}

#[test]
fn a_kernel_without_kernel_memory_gets_kernel_memory_back() {
    let machine = Machine::new();
    let (all, boot_frames) = (SIZE >> 12, SIZE >> 13);
    let mut hotplug = boot(&machine.frames, &machine.memory, boot_frames);
    plug(&mut hotplug, range(boot_frames, all - boot_frames));
    let mut guest = Guest::new(&machine, Features::DEFLATE_ON_OOM, ReporterSettings::default());
    guest.device.config.num_pages = u32::MAX;
    guest.run(Duration::from_secs(1));
    let kernel_memory: Vec<_> =
        std::iter::from_fn(|| machine.frames.alloc(AllocRequest::frames(1)).ok()).collect();
    // The engine itself may need one for the bitmaps of each 64 MiB.
    guest.memory.need(10 + (SIZE >> 26));
    guest.run(Duration::from_millis(1));
    let more = (0..10).filter_map(|_| machine.frames.alloc(AllocRequest::frames(1)).ok());
    assert_eq!(more.collect::<Vec<_>>().len(), 10, "only movable memory has come back");
    drop(kernel_memory);
    guest.memory.need(0);
    guest.check();
}

#[test]
fn a_hint_that_is_with_the_device_is_not_taken_back() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut guest = Guest::new(&machine, Features::FREE_PAGE_HINT, ReporterSettings::default());
    guest.device.request_hints(5);
    let is_hint = |message: &Message| matches!(message, Message::Hint(_));
    while guest.device.hinted_ranges.is_empty() || !guest.device.unanswered.iter().any(is_hint) {
        guest.answered_queue = guest.answered_queue.or_else(|| guest.device.answer());
        guest.step();
    }
    let hinted = guest.memory.hinted_frames();
    guest.memory.need(1);
    let with_device = guest.memory.hinted_frames();
    assert!((1..hinted).contains(&with_device), "{with_device} of {hinted}");
    while machine.frames.counts().free > PAGEBLOCK_FRAMES {
        guest.allocate(1);
    }
    // The device may write to the hinted memory until it answers. After that, a migration need not
    // copy the memory.
    guest.step();
    guest.check();
    guest.answered_queue = guest.device.answer();
    guest.step();
    assert_eq!(guest.memory.hinted_frames(), 0);
    guest.run(Duration::from_secs(1));
    guest.check();
}

#[test]
fn balloon_frames_in_memory_to_be_removed_are_replaced() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut guest = Guest::new(&machine, Features::empty(), ReporterSettings::default());
    guest.device.config.num_pages = 20_000;
    guest.run(Duration::from_secs(1));
    // Choose a pageblock that contains only frames of the balloon.
    let balloon = &guest.device.balloon;
    let is_full = |first: &&u32| (**first..**first + 512).all(|n| balloon.contains(&n));
    let first = *balloon.iter().filter(|n| **n % 512 == 0).find(is_full).unwrap();
    let used = PfnRange::with_len(Pfn::new(u64::from(first) + 7).unwrap(), 1).unwrap();
    let block = used.align_outward(PAGEBLOCK_FRAMES);
    assert_eq!(guest.memory.migrate(used), Some(Migration::Retry));
    // Isolate the pageblock, as offlining does, so that its frames are not allocated again.
    let isolation = machine.frames.isolate(block).unwrap();
    guest.run(Duration::from_secs(1));
    assert_eq!(isolation.in_use(), None);
    assert_eq!(guest.memory.inflated_frames(), 20_000);
    assert_eq!(guest.memory.migrate(used), None);
    isolation.release();
}

#[test]
fn balloon_frames_in_memory_to_be_removed_are_replaced_by_memory_that_stays() {
    let machine = Machine::new();
    let (all, boot_frames) = (SIZE >> 12, SIZE >> 13);
    let mut hotplug = boot(&machine.frames, &machine.memory, boot_frames);
    plug(&mut hotplug, range(boot_frames, all - boot_frames));
    let mut guest = Guest::new(&machine, Features::empty(), ReporterSettings::default());
    guest.device.config.num_pages = 10_000;
    guest.run(Duration::from_secs(1));
    // The balloon takes movable memory first.
    let count_hotplugged = |guest: &Guest<'_>| {
        guest.device.balloon.iter().filter(|&&n| u64::from(n) >= boot_frames).count()
    };
    let before = count_hotplugged(&guest);
    let highest = guest.device.balloon.iter().max().copied().unwrap();
    let used = range(u64::from(highest), 1);
    assert!(used.start().number() >= boot_frames);
    assert_eq!(guest.memory.migrate(used), Some(Migration::Retry));
    guest.run(Duration::from_secs(1));
    // The other hotplugged memory may be removed next, so boot memory is the better replacement.
    assert!(
        count_hotplugged(&guest) < before,
        "frames were replaced by other memory that can be removed"
    );
    assert_eq!(guest.memory.inflated_frames(), 10_000);
}

/// The value that fills free memory, as a 32-bit and as a 64-bit word.
const FILL_U32: u32 = 0xaaaa_aaaa;
const FILL_U64: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Allocates all free memory, frame by frame.
fn all_frames(machine: &Machine) -> Vec<Allocation<'_, OneCpu>> {
    std::iter::from_fn(|| machine.frames.alloc(AllocRequest::frames(1).movable()).ok()).collect()
}

#[test]
fn filled_memory_is_still_filled_when_it_is_allocated() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    for frame in all_frames(&machine) {
        machine.write(frame.range(), |_| FILL_U64);
        drop(frame);
    }
    machine.frames.set_contents(Contents::Filled(FILL_U32)).unwrap();
    let mut memory = EngineMemory::new(&machine.frames, MIN_FREE_FRAMES);
    let settings = ReporterSettings::EAGER;
    let (features, poison) = (Features::all(), Poison::Filled(FILL_U32));
    // Without PAGE_POISON, the device does not know the value, and the host may write any value to
    // reported memory.
    let refused = memory.report(FEATURES, poison, settings);
    assert!(matches!(refused, Err(ReporterError::ContentsDiffer { .. })), "{refused:?}");
    memory.report(features, poison, settings).unwrap();
    let mut guest = Guest { host_value: FILL_U64, ..Guest::with(&machine, features, memory) };
    guest.device.config.num_pages = 20_000;
    guest.device.request_hints(5);
    guest.run(Duration::from_secs(10));
    assert_eq!(guest.memory.inflated_frames(), 20_000);
    assert!(!guest.device.hinted_ranges.is_empty() && !guest.device.reported_ranges.is_empty());
    guest.device.config.num_pages = 0;
    guest.device.request_hints(DONE);
    guest.run(Duration::from_secs(10));
    assert_eq!(guest.memory.inflated_frames(), 0);
    for frame in all_frames(&machine) {
        assert_eq!(machine.read(frame.range().start().number()), FILL_U64, "{frame:?}");
    }
}

#[test]
fn a_second_reporter_is_refused() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let guest = Guest::new(&machine, Features::PAGE_REPORTING, ReporterSettings::default());
    let mut second = EngineMemory::new(&machine.frames, 0);
    let settings = ReporterSettings::default();
    let refused = second.report(Features::PAGE_REPORTING, Poison::None, settings);
    assert_eq!(refused, Err(ReporterError::HasReporter));
    assert_eq!(second.report(Features::empty(), Poison::None, settings), Ok(()));
    drop(guest);
    assert_eq!(second.report(Features::PAGE_REPORTING, Poison::None, settings), Ok(()));
}
