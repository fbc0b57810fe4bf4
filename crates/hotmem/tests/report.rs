//! Free page reporting, driven by hand: what is reported, when, and what comes back.

mod common;

use common::{BLOCK, Memory, SECTION, pfn, range};
use hotmem::report::{
    Batch, Contents, PinError, Reporter, ReporterError, Settings, Statistics, Step,
};
use hotmem::{
    Announce, Blocker, BootMap, BootRange, Budget, Bytes, Frames, Hotplug, IsolateError, NoHooks,
    NodeId, OnlineType, PfnRange, Platform, Progress, Want, Why, geometry::FRAME_SIZE,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Sections of boot memory, and with what may be plugged above it.
const BOOT: u64 = 2;
const ALL: u64 = 4;

/// Counts how often the reporter is woken.
#[derive(Default)]
struct Bells(AtomicU32);

impl Platform for &Bells {
    fn cpu(&self) -> usize {
        0
    }

    fn wake_reporter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Machine<'m> = Frames<&'m Bells>;

/// Runs `test` on a machine of a few sections, all free but for the engine's own frames.
fn on_machine(test: impl FnOnce(&Machine<'_>, &mut Hotplug<'_, &Bells>, &Bells)) {
    on_nodes(NodeId::ZERO, test);
}

/// The same, and what may be plugged is on a node of its own.
fn on_nodes(plugged: NodeId, test: impl FnOnce(&Machine<'_>, &mut Hotplug<'_, &Bells>, &Bells)) {
    let bells = Bells::default();
    let memory = Memory::new(ALL * SECTION);
    let frames = Frames::new(&bells);
    let ram = [BootRange { start: 0, len: Bytes(BOOT * SECTION * FRAME_SIZE) }];
    let mut hotplug =
        Hotplug::bootstrap(&frames, memory.direct_map(), &BootMap::of_ram(&ram)).unwrap();
    let room = range(BOOT * SECTION, (ALL - BOOT) * SECTION);
    hotplug.announce(Announce::range(room).on_node(plugged)).unwrap();
    test(&frames, &mut hotplug, &bells);
    frames.validate().unwrap();
}

fn eager<'f, P: Platform>(frames: &'f Frames<P>) -> Reporter<'f, P> {
    Reporter::new(frames, Settings::eager(), Contents::Undefined).unwrap()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Steps until there is nothing more to do at this time, and lets the host take everything.
fn settle<P: Platform>(reporter: &mut Reporter<'_, P>, now: Duration) -> (Vec<PfnRange>, Step) {
    let mut reported = Vec::new();
    loop {
        match reporter.step(now) {
            Step::Send(batch) => {
                reported.extend_from_slice(batch.ranges());
                reporter.reported(batch);
            }
            Step::Again => {}
            step => return (reported, step),
        }
    }
}

fn send<P: Platform>(reporter: &mut Reporter<'_, P>, now: Duration) -> Batch {
    loop {
        match reporter.step(now) {
            Step::Send(batch) => return batch,
            Step::Again => {}
            step => panic!("{step:?} instead of a batch"),
        }
    }
}

fn blocks(ranges: &[PfnRange]) -> u64 {
    ranges.iter().map(|range| range.frames() / BLOCK).sum()
}

fn frames_of(blocks: u64) -> Bytes {
    Bytes(blocks * BLOCK * FRAME_SIZE)
}

#[test]
fn everything_free_is_reported_once() {
    on_machine(|frames, _, bells| {
        let mut reporter = eager(frames);
        let whole = frames.counts().free_whole;
        let (reported, step) = settle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle), "{step:?}");
        assert_eq!(blocks(&reported) * BLOCK, whole);
        let counts = frames.validate().unwrap();
        assert_eq!((counts.reported, counts.free_whole), (whole, whole));
        // Idle, and stays so.
        assert!(matches!(reporter.step(ms(100_000)), Step::Idle));
        assert_eq!(bells.0.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn what_is_used_and_freed_rings_once_and_is_reported_again() {
    on_machine(|frames, _, bells| {
        let mut reporter = eager(frames);
        settle(&mut reporter, ms(0));
        let used = frames.alloc(Want::frames(2 * BLOCK)).unwrap();
        assert_eq!(bells.0.load(Ordering::Relaxed), 0, "an allocation rings nothing");
        for block in used.chunks(BLOCK) {
            frames.free(block).unwrap();
        }
        assert_eq!(bells.0.load(Ordering::Relaxed), 1, "one ring is enough");
        let (reported, step) = settle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle));
        assert_eq!(blocks(&reported), 2);
        let done = reporter.statistics();
        assert_eq!(done.refaulted, 2);
        assert_eq!(done.reported * BLOCK, frames.counts().reported + 2 * BLOCK);
    });
}

#[test]
fn a_pageblock_that_is_split_or_used_is_not_reported() {
    on_machine(|frames, _, _| {
        let one = frames.alloc(Want::frames(1)).unwrap();
        let whole = frames.alloc(Want::frames(BLOCK)).unwrap();
        let mut reporter = eager(frames);
        let (reported, _) = settle(&mut reporter, ms(0));
        for range in reported {
            assert!(!range.overlaps(one.align_outward(BLOCK)) && !range.overlaps(whole));
        }
        frames.free(one).unwrap();
        frames.free(whole).unwrap();
    });
}

#[test]
fn what_stays_split_as_a_hint_is_reported_in_the_end() {
    on_machine(|frames, _, _| {
        let one = frames.alloc(Want::frames(1)).unwrap();
        frames.free(one).unwrap();
        let mut reporter = eager(frames);
        settle(&mut reporter, ms(0));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
        assert_eq!(frames.counts().free_whole, frames.counts().free / BLOCK * BLOCK);
    });
}

#[test]
fn batches_and_ranges_are_as_large_as_they_are_told_to_be() {
    on_machine(|frames, _, _| {
        for (batch, longest) in [(1, 1), (2, 3), (16, 2), (32, SECTION / BLOCK)] {
            let settings = Settings { batch, longest: frames_of(longest), ..Settings::eager() };
            let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
            // All of it waits again.
            let taken: Vec<_> =
                core::iter::from_fn(|| frames.alloc(Want::frames(BLOCK)).ok()).collect();
            taken.iter().for_each(|&range| frames.free(range).unwrap());
            let mut total = 0;
            let mut largest = 0;
            loop {
                match reporter.step(ms(0)) {
                    Step::Send(sent) => {
                        assert!((1..=batch).contains(&sent.ranges().len()));
                        let sections = |r: &PfnRange| r.align_outward(SECTION).frames() / SECTION;
                        assert!(sent.ranges().iter().all(|range| sections(range) == 1));
                        largest =
                            largest.max(sent.ranges().iter().map(|r| r.frames()).max().unwrap());
                        total += sent.bytes().frames();
                        reporter.reported(sent);
                    }
                    Step::Again => {}
                    Step::Idle => break,
                    step => panic!("{step:?}"),
                }
            }
            assert_eq!(total, frames.counts().free_whole);
            assert!(largest <= longest * BLOCK);
            if longest < SECTION / BLOCK {
                assert_eq!(largest, longest * BLOCK);
            }
        }
    });
}

#[test]
fn neighbours_are_merged() {
    on_machine(|frames, _, _| {
        let settings = Settings { longest: frames_of(1), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let batch = send(&mut reporter, ms(0));
        let merged: Vec<_> = batch.merged().collect();
        assert!(merged.len() < batch.ranges().len());
        assert_eq!(blocks(&merged), blocks(batch.ranges()));
        reporter.reported(batch);
    });
}

#[test]
fn memory_that_is_out_cannot_be_had() {
    on_machine(|frames, hotplug, _| {
        let mut reporter = eager(frames);
        let before = frames.counts();
        let mut out = Vec::new();
        while let Step::Send(batch) = reporter.step(ms(0)) {
            out.push(batch);
        }
        let counts = frames.validate().unwrap();
        assert_eq!(counts.reporting, before.free_whole);
        assert_eq!(counts.free_whole, 0);
        assert!(frames.alloc(Want::frames(BLOCK)).is_err());
        let first = out[0].ranges()[0];
        let first = range(first.start().number(), BLOCK);
        assert_eq!(frames.isolate(first).unwrap_err(), IsolateError::Reporting(first));

        // Offline waits for it, and goes on.
        let all = range(SECTION, SECTION / 2);
        let mut offline = hotplug.offline(all).unwrap();
        match offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
            Progress::Pending(blocker @ Blocker { why: Why::Reporting, .. }) => {
                assert!(blocker.is_temporary());
            }
            other => panic!("{other:?}"),
        }
        out.into_iter().for_each(|batch| reporter.reported(batch));
        match offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
            Progress::Done(gone) => assert_eq!(gone, all),
            other => panic!("{other:?}"),
        }
        // Online again it is like new.
        hotplug.online(all, OnlineType::Kernel, &mut NoHooks).unwrap();
        let (reported, _) = settle(&mut reporter, ms(0));
        assert_eq!(blocks(&reported), SECTION / BLOCK / 2);
    });
}

#[test]
fn memory_that_comes_later_is_reported() {
    on_machine(|frames, hotplug, bells| {
        let mut reporter = eager(frames);
        settle(&mut reporter, ms(0));
        let added = range(BOOT * SECTION, (ALL - BOOT) * SECTION);
        hotplug.add(added, &mut NoHooks).unwrap();
        hotplug.online(added, OnlineType::Movable, &mut NoHooks).unwrap();
        assert_eq!(bells.0.load(Ordering::Relaxed), 1);
        let (reported, _) = settle(&mut reporter, ms(0));
        assert_eq!(blocks(&reported), added.frames() / BLOCK);
        assert!(reported.iter().all(|&range| added.covers(range)));
        // And it goes.
        let mut offline = hotplug.offline(added).unwrap();
        let gone = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(gone, Progress::Done(added));
        hotplug.remove(added, &mut NoHooks).unwrap();
        assert!(matches!(settle(&mut reporter, ms(0)), (none, Step::Idle) if none.is_empty()));
    });
}

#[test]
fn refusals_are_retried_a_bounded_number_of_times() {
    on_machine(|frames, _, _| {
        let settings = Settings { tries: 3, retry: ms(10), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let before = frames.counts();
        let batch = send(&mut reporter, ms(0));
        reporter.failed(batch, ms(0));
        assert_eq!(frames.validate().unwrap(), before, "unreported");
        assert!(matches!(reporter.step(ms(9)), Step::WaitUntil(at) if at == ms(10)));
        let batch = send(&mut reporter, ms(10));
        reporter.failed(batch, ms(10));
        assert!(matches!(reporter.step(ms(29)), Step::WaitUntil(at) if at == ms(30)));
        // One that is taken ends the row.
        let batch = send(&mut reporter, ms(30));
        reporter.reported(batch);
        for now in [ms(30), ms(40), ms(60)] {
            let used = frames.alloc(Want::frames(BLOCK)).unwrap();
            frames.free(used).unwrap();
            let batch = send(&mut reporter, now);
            reporter.failed(batch, now);
        }
        assert!(!reporter.is_on());
        assert!(matches!(reporter.step(ms(1000)), Step::Off));
        assert_eq!(reporter.statistics().refused, 5);
        reporter.set_on(true);
        settle(&mut reporter, ms(1000));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn a_lost_batch_stays_isolated_until_the_host_is_reset() {
    on_machine(|frames, _, _| {
        let settings = Settings { batch: 1, longest: frames_of(2), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let before = frames.counts();
        let (batch, stale) = (send(&mut reporter, ms(0)), send(&mut reporter, ms(0)));
        let out = batch.bytes().frames() + stale.bytes().frames();
        drop(batch);
        let lost = frames.validate().unwrap();
        assert_eq!((lost.isolated, lost.reporting), (out, out));
        assert_eq!(lost.free, before.free - out);
        assert_eq!(reporter.reset() * BLOCK, out);
        assert_eq!(frames.validate().unwrap(), before);
        reporter.reported(stale);
        assert_eq!(frames.validate().unwrap(), before, "a void batch does nothing");
        // Also those of a reporter that is gone.
        let lost = send(&mut reporter, ms(0));
        drop(reporter);
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        assert_eq!(frames.counts().reporting, lost.bytes().frames());
        assert_eq!(reporter.reset() * BLOCK, lost.bytes().frames());
        reporter.reported(lost);
        assert_eq!(frames.validate().unwrap(), before);
    });
}

#[test]
fn a_batch_of_another_machine_does_nothing() {
    on_machine(|frames, _, _| {
        on_machine(|other, _, _| {
            let (mut here, mut there) = (eager(frames), eager(other));
            let (mine, foreign) = (send(&mut here, ms(0)), send(&mut there, ms(0)));
            let before = frames.counts();
            here.reported(foreign);
            assert_eq!(frames.validate().unwrap(), before);
            here.reported(mine);
            there.reset();
        });
    });
}

#[test]
fn there_is_one_reporter_and_it_does_not_spoil() {
    on_machine(|frames, _, _| {
        let poison = Settings { contents: Contents::Filled(0xaaaa_aaaa), ..Settings::eager() };
        for after in [Contents::Undefined, Contents::Filled(0)] {
            let refused = Reporter::new(frames, poison, after).unwrap_err();
            let relied_on = poison.contents;
            assert_eq!(refused, ReporterError::WouldSpoil { relied_on, after });
        }
        let mut first = Reporter::new(frames, poison, poison.contents).unwrap();
        let second = Reporter::new(frames, Settings::eager(), Contents::Undefined);
        assert_eq!(second.unwrap_err(), ReporterError::AlreadyThere);
        let zero = Settings { contents: Contents::Filled(0), ..Settings::eager() };
        assert!(first.set_settings(zero).is_err());
        assert_eq!(first.settings(), poison);
        drop(first);
        eager(frames);
    });
}

#[test]
fn off_is_off_and_on_finds_what_became_free_meanwhile() {
    on_machine(|frames, _, bells| {
        let mut reporter = eager(frames);
        settle(&mut reporter, ms(0));
        reporter.set_on(false);
        let used = frames.alloc(Want::frames(3 * BLOCK)).unwrap();
        frames.free(used).unwrap();
        assert!(matches!(reporter.step(ms(5)), Step::Off));
        assert_eq!(bells.0.load(Ordering::Relaxed), 0);
        reporter.set_on(true);
        let (reported, _) = settle(&mut reporter, ms(5));
        assert_eq!(blocks(&reported), 3);
    });
}

#[test]
fn what_is_out_when_it_is_switched_off_comes_back() {
    on_machine(|frames, _, _| {
        let mut reporter = eager(frames);
        let batch = send(&mut reporter, ms(0));
        reporter.set_on(false);
        reporter.reported(batch);
        assert_eq!(frames.validate().unwrap().reporting, 0);
        assert!(frames.counts().reported > 0);
    });
}

#[test]
fn young_memory_is_left_alone() {
    on_machine(|frames, _, bells| {
        let settings = Settings { delay: ms(10), dwell: ms(100), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        assert!(matches!(reporter.step(ms(0)), Step::WaitUntil(at) if at == ms(10)));
        assert!(matches!(settle(&mut reporter, ms(10)), (none, Step::WaitUntil(at))
            if none.is_empty() && at == ms(110)));
        // In use for a moment: its time starts again.
        let used = frames.alloc(Want::frames(BLOCK)).unwrap();
        frames.free(used).unwrap();
        let whole = frames.counts().free_whole / BLOCK;
        let (reported, step) = settle(&mut reporter, ms(110));
        assert!(matches!(step, Step::WaitUntil(at) if at == ms(210)), "{step:?}");
        assert_eq!(blocks(&reported), whole - 1);
        assert!(reported.iter().all(|range| !range.overlaps(used)));
        let (reported, step) = settle(&mut reporter, ms(210));
        assert_eq!(reported, [used]);
        assert!(matches!(step, Step::Idle));
        assert_eq!(bells.0.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn memory_in_constant_use_is_never_reported() {
    on_machine(|frames, _, _| {
        let settings = Settings { dwell: ms(100), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let mut now = 0;
        while !matches!(settle(&mut reporter, ms(now)), (_, Step::Idle)) {
            now += 100;
        }
        for round in 0..50 {
            let used = frames.alloc(Want::frames(4 * BLOCK)).unwrap();
            settle(&mut reporter, ms(now + round * 30));
            frames.free(used).unwrap();
            settle(&mut reporter, ms(now + round * 30));
        }
        // The first use found everything reported; later ones did not.
        assert_eq!(reporter.statistics().refaulted, 4);
    });
}

#[test]
fn a_threshold_keeps_little_things_back() {
    on_machine(|frames, _, bells| {
        let mut reporter = eager(frames);
        settle(&mut reporter, ms(0));
        reporter.set_settings(Settings { threshold: frames_of(3), ..Settings::eager() }).unwrap();
        let used = frames.alloc(Want::frames(3 * BLOCK)).unwrap();
        for (i, block) in used.chunks(BLOCK).enumerate() {
            frames.free(block).unwrap();
            let (reported, step) = settle(&mut reporter, ms(0));
            assert!(matches!(step, Step::Idle), "{step:?}");
            assert_eq!(blocks(&reported), if i == 2 { 3 } else { 0 });
        }
        // With new settings it wanted to look by itself.
        assert_eq!(bells.0.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn some_stays_free_and_unreported() {
    on_machine(|frames, _, _| {
        let settings = Settings { keep_free: frames_of(2), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let mut out = Vec::new();
        let mut step = reporter.step(ms(0));
        while let Step::Send(batch) = step {
            out.push(batch);
            assert!(frames.counts().free_whole >= 2 * BLOCK);
            step = reporter.step(ms(0));
        }
        assert_eq!(frames.counts().free_whole, 2 * BLOCK);
        out.into_iter().for_each(|batch| reporter.reported(batch));
        assert!(matches!(settle(&mut reporter, ms(0)), (none, Step::Idle) if none.is_empty()));
        let counts = frames.counts();
        assert_eq!(counts.reported, counts.free_whole - 2 * BLOCK);
        // That is what is used next, also in pieces, and what comes back stays.
        let used = frames.alloc(Want::frames(BLOCK)).unwrap();
        let one = frames.alloc(Want::frames(1)).unwrap();
        assert_eq!(reporter.statistics().refaulted, 0);
        frames.free(used).unwrap();
        frames.free(one).unwrap();
        settle(&mut reporter, ms(0));
        assert_eq!(frames.counts(), counts);
    });
}

#[test]
fn each_node_keeps_something() {
    on_nodes(NodeId::new(1).unwrap(), |frames, hotplug, _| {
        let plugged = range(BOOT * SECTION, (ALL - BOOT) * SECTION);
        hotplug.add(plugged, &mut NoHooks).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        let settings = Settings { keep_free: frames_of(3), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let (_, step) = settle(&mut reporter, ms(0));
        assert!(matches!(step, Step::Idle), "{step:?}");
        for node in [range(0, BOOT * SECTION), plugged] {
            let counts = frames.counts_in(node);
            assert_eq!(counts.free_whole - counts.reported, 3 * BLOCK, "{node}");
        }
        // What one has to spare does not help the other.
        let used: Vec<_> = (0..3)
            .map(|_| frames.alloc(Want::frames(BLOCK).movable().near(NodeId::new(1).unwrap())))
            .collect::<Result<_, _>>()
            .unwrap();
        assert!(used.iter().all(|&range| plugged.covers(range)));
        assert_eq!(reporter.statistics().refaulted, 0);
        used.into_iter().for_each(|range| frames.free(range).unwrap());
        settle(&mut reporter, ms(0));
        let counts = frames.counts_in(plugged);
        assert_eq!(counts.free_whole - counts.reported, 3 * BLOCK);
    });
}

#[test]
fn what_is_still_here_is_used_before_what_the_host_has() {
    on_machine(|frames, _, _| {
        let mut reporter = eager(frames);
        settle(&mut reporter, ms(0));
        // Whichever section is the CPU's own.
        for place in [SECTION + 2 * BLOCK, 3 * BLOCK, SECTION, BLOCK] {
            let here = frames.alloc(Want::frames(BLOCK).at(pfn(place))).unwrap();
            let refaulted = reporter.statistics().refaulted;
            frames.free(here).unwrap();
            assert_eq!(frames.alloc(Want::frames(BLOCK)).unwrap(), here);
            assert_eq!(reporter.statistics().refaulted, refaulted);
            let next = frames.alloc(Want::frames(BLOCK)).unwrap();
            assert_eq!(reporter.statistics().refaulted, refaulted + 1);
            frames.free(next).unwrap();
            settle(&mut reporter, ms(0));
            frames.free(here).unwrap();
            // Also where a pageblock must be split.
            let counts = frames.counts();
            let split = counts.free - counts.free_whole;
            let mut ones: Vec<_> =
                (0..=split).map(|_| frames.alloc(Want::frames(1)).unwrap()).collect();
            assert!(here.covers(ones.pop().unwrap()));
            assert_eq!(reporter.statistics().refaulted, refaulted + 1);
            let one = range(here.start().number(), 1);
            ones.into_iter().chain([one]).for_each(|range| frames.free(range).unwrap());
            settle(&mut reporter, ms(0));
        }
    });
}

#[test]
fn what_stayed_is_looked_at_again_when_settings_change_in_the_middle_of_a_round() {
    on_machine(|frames, hotplug, _| {
        let far = range(ALL * SECTION, BOOT * SECTION);
        hotplug.announce(Announce::range(far).on_node(NodeId::new(1).unwrap())).unwrap();
        hotplug.add(far, &mut NoHooks).unwrap();
        hotplug.online(far, OnlineType::Movable, &mut NoHooks).unwrap();
        // All but one pageblock of the far node, and all of the near one.
        let keep_free = frames_of(far.frames() / BLOCK - 1);
        let settings = Settings { keep_free, ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let batch = send(&mut reporter, ms(0));
        assert!(far.covers(batch.ranges()[0]) && blocks(batch.ranges()) == 1);
        reporter.set_settings(Settings::eager()).unwrap();
        reporter.reported(batch);
        settle(&mut reporter, ms(1));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn no_more_is_out_than_may_be() {
    on_machine(|frames, _, _| {
        let settings = Settings { most_out: frames_of(2), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let batch = send(&mut reporter, ms(0));
        assert_eq!(batch.bytes(), frames_of(2));
        assert!(matches!(reporter.step(ms(0)), Step::OutOfRoom));
        reporter.reported(batch);
        settle(&mut reporter, ms(0));
        assert_eq!(frames.counts().reported, frames.counts().free_whole);
    });
}

#[test]
fn the_rate_is_kept() {
    on_machine(|frames, _, _| {
        let settings = Settings { rate: Some(frames_of(2)), ..Settings::eager() };
        let mut reporter = Reporter::new(frames, settings, Contents::Undefined).unwrap();
        let (reported, step) = settle(&mut reporter, ms(0));
        assert_eq!(blocks(&reported), 2);
        assert!(matches!(step, Step::WaitUntil(at) if at == ms(1000)), "{step:?}");
        assert_eq!(blocks(&settle(&mut reporter, ms(999)).0), 0);
        assert_eq!(blocks(&settle(&mut reporter, ms(1000)).0), 2);
    });
}

#[test]
fn pinned_memory_is_never_reported() {
    on_machine(|frames, _, _| {
        let mut reporter = eager(frames);
        let pinned = range(BLOCK + 1, 1);
        let batch = send(&mut reporter, ms(0));
        let out = batch.ranges()[0];
        let first = range(out.start().number(), BLOCK);
        assert_eq!(reporter.pin(out), Err(PinError::Out(first)));
        reporter.failed(batch, ms(0));
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
        reporter.reported(batch);
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
