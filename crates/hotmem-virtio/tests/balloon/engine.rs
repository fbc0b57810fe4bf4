//! The engine behind the driver, and a host that really takes what it is given: memory that
//! belongs to somebody must never change.

use crate::device::Device;
use core::time::Duration;
use hotmem::report::{Contents, ReporterError, Settings};
use hotmem::{
    BootMap, BootRange, Bytes, DirectMap, Frames, Hotplug, Migration, OneCpu, Pfn, PfnRange, Want,
};
use hotmem_virtio::balloon::{
    Driver, EngineMemory, Features, Memory, Message, Poison, Queue, Status, Step,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;

const SIZE: u64 = 256 << 20;
const BLOCK: u64 = 512;
const FLOOR: u64 = 4096;

/// 256 MiB of memory and its engine.
struct Machine {
    frames: Frames<OneCpu>,
    space: *mut u8,
}

impl Machine {
    fn layout() -> Layout {
        Layout::from_size_align(SIZE as usize, 4096).unwrap()
    }

    fn new() -> Machine {
        // SAFETY: the layout has bytes.
        let space = unsafe { alloc_zeroed(Self::layout()) };
        assert!(!space.is_null());
        Machine { frames: Frames::new(OneCpu), space }
    }

    fn boot(&self) -> Hotplug<'_, OneCpu> {
        let ram = [BootRange { start: 0, len: Bytes(SIZE) }];
        // SAFETY: all addresses in these tests are below SIZE, and nobody else uses that memory.
        let direct_map = unsafe { DirectMap::at(self.space) };
        Hotplug::bootstrap(&self.frames, direct_map, &BootMap::of_ram(&ram)).unwrap()
    }

    /// A word at the start of each frame.
    fn write(&self, range: PfnRange, word: impl Fn(u64) -> u64) {
        for pfn in range.start().number()..range.end().number() {
            // SAFETY: within the machine's memory, which has one thread.
            unsafe { self.space.add((pfn << 12) as usize).cast::<u64>().write(word(pfn)) }
        }
    }

    fn read(&self, pfn: u64) -> u64 {
        // SAFETY: as above.
        unsafe { self.space.add((pfn << 12) as usize).cast::<u64>().read() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` by the same layout.
        unsafe { dealloc(self.space, Self::layout()) }
    }
}

struct World<'f> {
    machine: &'f Machine,
    device: Device,
    driver: Driver,
    memory: EngineMemory<'f, OneCpu, 64>,
    now: Duration,
    used: Option<Queue>,
    owned: Vec<(PfnRange, u64)>,
    stamp: u64,
    /// What the host leaves in memory that is reported.
    leaves: u64,
}

const FEATURES: Features = Features::all().difference(Features::PAGE_POISON);

impl<'f> World<'f> {
    fn new(machine: &'f Machine, features: Features, settings: Settings) -> World<'f> {
        let mut memory = EngineMemory::new(&machine.frames, FLOOR);
        memory.report(features, Poison::None, settings).unwrap();
        World::with(machine, features, memory)
    }

    fn with(
        machine: &'f Machine,
        features: Features,
        memory: EngineMemory<'f, OneCpu, 64>,
    ) -> World<'f> {
        let device = Device::new(0);
        let driver = Driver::new(features, &device.config);
        let (now, used, owned, stamp) = (Duration::ZERO, None, Vec::new(), 0);
        World { machine, device, driver, memory, now, used, owned, stamp, leaves: u64::MAX }
    }

    /// The host takes what it is given for as long as it has it.
    fn scribble(&self, message: &Message) {
        let take = |range: PfnRange, leaves| self.machine.write(range, |_| leaves);
        match message {
            Message::Inflate(range) | Message::Hint(range) => take(*range, u64::MAX),
            Message::Report(ranges) => {
                ranges.as_slice().iter().for_each(|&range| take(range, self.leaves));
            }
            _ => {}
        }
    }

    fn step(&mut self) -> Step {
        let config = self.device.config;
        let step = self.driver.step(self.now, &config, self.used.take(), &mut self.memory);
        match step {
            Step::Send(message) => {
                self.scribble(&message);
                self.device.send(message);
            }
            Step::SetActual(frames) => self.device.actual = frames,
            _ => {}
        }
        // It may still do so just before it answers.
        self.device.waiting.iter().for_each(|message| self.scribble(message));
        step
    }

    /// Runs for so long.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..200_000 {
            self.used = self.used.or_else(|| self.device.answer());
            let answered = self.used.is_some();
            match self.step() {
                Step::WaitUntil(until) if !answered && self.device.waiting.is_empty() => {
                    if until > end {
                        self.now = end;
                        return;
                    }
                    self.now = until;
                }
                Step::Idle if !answered && self.device.waiting.is_empty() => {
                    self.now = end;
                    return;
                }
                Step::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
        panic!("it spins: {:?}", self.driver);
    }

    fn allocate(&mut self, frames: u64) {
        let Ok(range) = self.machine.frames.alloc(Want::frames(frames).movable()) else { return };
        self.stamp += 1;
        let stamp = self.stamp << 32;
        self.machine.write(range, |pfn| stamp | pfn);
        self.owned.push((range, stamp));
    }

    fn free(&mut self, which: usize) {
        if self.owned.is_empty() {
            return;
        }
        let (range, stamp) = self.owned.swap_remove(which % self.owned.len());
        self.verify(range, stamp);
        self.machine.frames.free(range).unwrap();
    }

    fn verify(&self, range: PfnRange, stamp: u64) {
        for pfn in range.start().number()..range.end().number() {
            assert_eq!(self.machine.read(pfn), stamp | pfn, "frame {pfn:#x} is not its owner's");
        }
    }

    /// No owned frame has changed, and the engine's books are right.
    fn check(&self) {
        self.owned.iter().for_each(|&(range, stamp)| self.verify(range, stamp));
        self.machine.frames.validate().unwrap();
    }
}

/// As usual, but for what stays free while something is out: it waits for the next occasion.
fn patient() -> Settings {
    Settings { keep_free: Bytes::ZERO, ..Settings::default() }
}

#[test]
fn what_is_freed_goes_to_the_host_by_itself() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut world = World::new(&machine, Features::PAGE_REPORTING, patient());
    world.run(Duration::from_secs(2));
    let reported = || machine.frames.counts().reported;
    let all = reported();
    assert!(all > SIZE / 4096 / 10 * 8, "{all}");
    for _ in 0..60 {
        world.allocate(BLOCK);
    }
    assert!(reported() < all);
    (0..60).for_each(|_| world.free(0));
    world.run(Duration::from_secs(2));
    assert_eq!(reported(), all);
    world.check();
}

#[test]
fn the_balloon_leaves_the_floor() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut world = World::new(&machine, Features::empty(), Settings::default());
    let free = machine.frames.counts().free;
    world.device.config.num_pages = u32::MAX;
    world.run(Duration::from_secs(10));
    let left = machine.frames.counts().free;
    assert!((FLOOR..FLOOR + BLOCK).contains(&left), "{left}");
    assert_eq!(world.device.balloon.len() as u64, free - left);
    assert_eq!(u64::from(world.device.actual), world.memory.held());
    world.device.config.num_pages = 0;
    world.run(Duration::from_secs(10));
    assert_eq!(machine.frames.counts().free, free);
    world.check();
}

#[test]
fn what_an_assigned_device_may_reach_is_given_in_no_way() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut world = World::new(&machine, FEATURES, patient());
    let pinned = PfnRange::new(Pfn::new(100 * BLOCK).unwrap(), Pfn::new(120 * BLOCK).unwrap());
    let pinned = pinned.unwrap();
    world.memory.reporter().unwrap().pin(pinned).unwrap();
    world.run(Duration::from_secs(2));
    assert!(!world.device.reported.is_empty());
    world.device.config.num_pages = 20_000;
    world.run(Duration::from_secs(10));
    assert_eq!(world.memory.held(), 20_000);
    world.device.config.free_page_hint_cmd_id = 5;
    world.run(Duration::from_secs(1));
    assert!(!world.device.hinted.is_empty());
    // The host wants the rest as well.
    world.device.config.num_pages = u32::MAX;
    world.run(Duration::from_secs(10));
    let given = world.device.reported.iter().chain(&world.device.hinted);
    assert!(given.clone().all(|range| !range.overlaps(pinned)), "{given:?}");
    let mut frames = world.device.balloon.iter().map(|&n| Pfn::new(n.into()).unwrap());
    assert!(frames.all(|frame| !pinned.contains(frame)));
    world.check();
}

#[test]
fn the_guest_takes_back_what_it_needs() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut world = World::new(&machine, Features::DEFLATE_ON_OOM, Settings::default());
    world.device.config.num_pages = 40_000;
    world.run(Duration::from_secs(1));
    world.memory.need(10_000);
    for _ in 0..200 {
        world.used = world.used.or_else(|| world.device.answer());
        world.step();
    }
    assert!(world.memory.held() <= 30_000);
    world.memory.need(0);
    world.run(Duration::from_secs(30));
    assert_eq!(world.memory.held(), 40_000);
}

#[test]
fn a_hint_is_not_needed_so_much_that_it_is_taken_from_the_device() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut world = World::new(&machine, Features::FREE_PAGE_HINT, Settings::default());
    world.device.config.free_page_hint_cmd_id = 5;
    let is_hint = |message: &Message| matches!(message, Message::Hint(_));
    while world.device.hinted.is_empty() || !world.device.waiting.iter().any(is_hint) {
        world.used = world.used.or_else(|| world.device.answer());
        world.step();
    }
    let hinted = world.memory.hinted_frames();
    world.memory.need(1);
    let with_device = world.memory.hinted_frames();
    assert!((1..hinted).contains(&with_device), "{with_device} of {hinted}");
    while machine.frames.counts().free > BLOCK {
        world.allocate(1);
    }
    // The device writes to it until it answers, and a migration may leave it behind after that.
    world.step();
    world.check();
    world.used = world.device.answer();
    world.step();
    assert_eq!(world.memory.hinted_frames(), 0);
    world.run(Duration::from_secs(1));
    world.check();
}

#[test]
fn what_stands_in_the_way_moves() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut world = World::new(&machine, Features::empty(), Settings::default());
    world.device.config.num_pages = 20_000;
    world.run(Duration::from_secs(1));
    // Beside nothing that is not the balloon's.
    let whole =
        |number: &&u32| (**number..**number + 512).all(|n| world.device.balloon.contains(&n));
    let number = *world.device.balloon.iter().filter(|n| **n % 512 == 0).find(whole).unwrap();
    let used = PfnRange::with_len(Pfn::new(u64::from(number) + 7).unwrap(), 1).unwrap();
    let block = used.align_outward(BLOCK);
    assert_eq!(world.memory.migrate(used), Some(Migration::Retry));
    // As offlining does, so that what leaves does not come back.
    let isolation = machine.frames.isolate(block).unwrap();
    world.run(Duration::from_secs(1));
    assert_eq!(isolation.in_use(), None);
    assert_eq!(world.memory.held(), 20_000);
    assert_eq!(world.memory.migrate(used), None);
    isolation.release();
}

const FILL: u32 = 0xaaaa_aaaa;
const FILLED: u64 = 0xaaaa_aaaa_aaaa_aaaa;

thread_local! { static SPACE: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) }; }

/// As a kernel does that fills what it frees.
fn fill(range: PfnRange) {
    for pfn in range.start().number()..range.end().number() {
        // SAFETY: within the memory of this thread's machine.
        unsafe { SPACE.get().add((pfn << 12) as usize).cast::<u64>().write(FILLED) }
    }
}

/// Everything that can be had, frame by frame.
fn all_frames(machine: &Machine) -> Vec<PfnRange> {
    std::iter::from_fn(|| machine.frames.alloc(Want::frames(1).movable()).ok()).collect()
}

#[test]
fn what_a_kernel_fills_is_found_filled() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    SPACE.set(machine.space);
    for frame in all_frames(&machine) {
        fill(frame);
        machine.frames.free(frame).unwrap();
    }
    let mut memory = EngineMemory::new(&machine.frames, FLOOR).filled_by(fill);
    let settings = Settings { contents: Contents::Filled(FILL), ..Settings::eager() };
    let (features, poison) = (Features::all(), Poison::Filled(FILL));
    // The host must know what it may leave in reported memory; elsewhere it leaves anything.
    let spoilt = memory.report(FEATURES, poison, settings);
    assert!(matches!(spoilt, Err(ReporterError::WouldSpoil { .. })), "{spoilt:?}");
    memory.report(features, poison, settings).unwrap();
    let mut world = World { leaves: FILLED, ..World::with(&machine, features, memory) };
    world.device.config.num_pages = 20_000;
    world.device.config.free_page_hint_cmd_id = 5;
    world.run(Duration::from_secs(10));
    assert_eq!(world.memory.held(), 20_000);
    assert!(!world.device.hinted.is_empty() && !world.device.reported.is_empty());
    world.device.config.num_pages = 0;
    world.device.config.free_page_hint_cmd_id = 1;
    world.run(Duration::from_secs(10));
    assert_eq!(world.memory.held(), 0);
    for frame in all_frames(&machine) {
        assert_eq!(machine.read(frame.start().number()), FILLED, "{frame}");
    }
}

#[test]
fn a_second_reporter_is_refused() {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let world = World::new(&machine, Features::PAGE_REPORTING, Settings::default());
    let mut other = EngineMemory::<_, 8>::new(&machine.frames, 0);
    let settings = Settings::default();
    let again = other.report(Features::PAGE_REPORTING, Poison::None, settings);
    assert_eq!(again, Err(ReporterError::AlreadyThere));
    assert_eq!(other.report(Features::empty(), Poison::None, settings), Ok(()));
    drop(world);
    assert_eq!(other.report(Features::PAGE_REPORTING, Poison::None, settings), Ok(()));
}

#[derive(Clone, Debug)]
enum Event {
    Allocate(u64),
    Free(usize),
    Target(u32),
    Hints(u32),
    Need(u64),
    Migrate(u64),
    Asleep(usize),
    Awake,
    Steps(u32),
    Run(u64),
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop_oneof![Just(1), 2..64u64, Just(BLOCK), 600..9000u64].prop_map(Event::Allocate),
        4 => any::<usize>().prop_map(Event::Free),
        1 => (0..60_000u32).prop_map(Event::Target),
        1 => (0..4u32).prop_map(Event::Hints),
        1 => (0..5000u64).prop_map(Event::Need),
        2 => (0..SIZE / 4096).prop_map(Event::Migrate),
        1 => (0..5usize).prop_map(Event::Asleep),
        1 => Just(Event::Awake),
        4 => (1..40u32).prop_map(Event::Steps),
        2 => (0..700u64).prop_map(Event::Run),
        1 => Just(Event::Reset),
    ]
}

proptest! {
    #![proptest_config(crate::cases::cases(10))]

    #[test]
    fn no_frame_is_two_s(history in vec(event(), 1..80), eager: bool) {
        let machine = Machine::new();
        let _hotplug = machine.boot();
        let settings = if eager { Settings::eager() } else { patient() };
        let mut world = World::new(&machine, FEATURES, settings);
        for event in history {
            match event {
                Event::Allocate(frames) => world.allocate(frames),
                Event::Free(which) => world.free(which),
                Event::Target(frames) => world.device.config.num_pages = frames,
                Event::Hints(command) => world.device.config.free_page_hint_cmd_id = command,
                Event::Need(frames) => world.memory.need(frames),
                Event::Migrate(pfn) => {
                    let used = PfnRange::with_len(Pfn::new(pfn).unwrap(), 1).unwrap();
                    let _ = world.memory.migrate(used);
                }
                Event::Asleep(queue) => world.device.asleep.push(Queue::ALL[queue]),
                Event::Awake => world.device.asleep.clear(),
                Event::Steps(n) => {
                    for _ in 0..n {
                        world.used = world.used.or_else(|| world.device.answer());
                        world.step();
                    }
                }
                Event::Run(ms) => {
                    world.device.asleep.clear();
                    world.run(Duration::from_millis(ms));
                }
                Event::Reset => {
                    let target = world.device.config.num_pages;
                    world.memory.device_reset();
                    world.device = Device::new(target);
                    world.driver = Driver::new(FEATURES, &world.device.config);
                    world.used = None;
                }
            }
        }
        world.check();
        world.device.asleep.clear();
        world.device.config.num_pages = 0;
        world.device.config.free_page_hint_cmd_id = 1;
        world.memory.need(0);
        world.run(Duration::from_secs(60));
        world.check();
        prop_assert_eq!(world.driver.status(), Status::Settled);
        prop_assert_eq!(world.memory.held(), 0);
        while !world.owned.is_empty() {
            world.free(0);
        }
        world.run(Duration::from_secs(60));
        let counts = machine.frames.counts();
        prop_assert_eq!(counts.isolated, 0);
        prop_assert_eq!(counts.reported, counts.free_whole);
    }
}
