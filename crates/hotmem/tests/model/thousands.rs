//! A random test with thousands of ranges of a few pageblocks each, which several devices announce,
//! add, remove and withdraw in any order. The model knows only the state of each pageblock.

use fastrand::Rng;
use hotmem::{
    AddRequest, Addition, AllocRequest, Announce, Budget, Frames, Group, Hotplug, NoHooks, NodeId,
    OneCpu, OnlineType, PfnRange, Progress, RegionId, Removal, State,
};
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Validated as _, boot, env_number, pfn, range};

/// The number of pageblocks above boot memory.
const BLOCKS: u64 = match (cfg!(miri), cfg!(target_pointer_width = "32")) {
    (true, _) => 40,
    // The process has few gigabytes of addresses.
    (_, true) if cfg!(not(hotmem_geometry = "small")) => 600,
    _ => 8000,
};
/// The number of sections of boot memory, which has room for all metadata.
const BOOT_SECTIONS: u64 = if cfg!(hotmem_geometry = "small") { 200 } else { 1 };
/// The numbers of operations, without and with `HOTMEM_DEEP`.
const OPERATIONS: [u64; 2] = if cfg!(miri) { [100, 1000] } else { [12_000, 200_000] };

/// A range of a device.
struct Region<'f> {
    id: RegionId,
    range: PfnRange,
    change: Change<'f>,
    state: State,
}

/// A change of a region that is prepared, and that the device has not answered.
enum Change<'f> {
    None,
    Addition(Addition<'f, OneCpu>),
    Removal(Removal<'f, OneCpu>),
}

struct Machine<'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: Hotplug<'f, OneCpu>,
    regions: Vec<Region<'f>>,
    rng: Rng,
}

fn first_frame() -> u64 {
    BOOT_SECTIONS * SECTION
}

/// Returns the node of the memory of this section.
fn node_of(range: PfnRange) -> NodeId {
    NodeId((range.start().number() / SECTION % 5) as u32)
}

impl Machine<'_> {
    fn step(&mut self, grows: bool) {
        let choice = self.rng.u8(..100);
        if self.regions.is_empty() || choice < if grows { 60 } else { 5 } {
            return self.announce();
        }
        let index = self.rng.usize(..self.regions.len());
        match self.regions[index].state {
            State::Absent => match self.regions[index].change {
                Change::None if !grows && self.rng.bool() => self.withdraw(index),
                Change::None => self.prepare_add(index),
                _ => self.finish_add(index),
            },
            State::Offline => match self.rng.u8(..3) {
                0 => self.prepare_remove(index),
                _ => self.online(index),
            },
            State::Removing => self.finish_remove(index),
            State::Online | State::OnlineMovable if !grows || self.rng.u8(..4) == 0 => {
                self.offline(index);
            }
            _ => self.allocate(index),
        }
    }

    /// Announces a range within one section.
    fn announce(&mut self) {
        let start = first_frame() + self.rng.u64(..BLOCKS) * PAGEBLOCK;
        let len = self.rng.u64(1..4) * PAGEBLOCK;
        let section = range(start / SECTION * SECTION, SECTION);
        let requested = range(start, len).intersection(section);
        let is_known = self.regions.iter().any(|region| region.range.overlaps(requested));
        let announce =
            Announce { node: node_of(requested), group: Group::None, ..requested.into() };
        let answer = self.hotplug.announce(announce);
        assert_eq!(answer.is_err(), is_known, "{requested:?}: {answer:?}");
        if let Ok(id) = answer {
            let (change, state) = (Change::None, State::Absent);
            self.regions.push(Region { id, range: requested, change, state });
        }
    }

    fn withdraw(&mut self, index: usize) {
        let region = self.regions.swap_remove(index);
        assert_eq!(self.hotplug.withdraw(region.id), Ok(()));
        assert!(self.hotplug.withdraw(region.id).is_err(), "the region is withdrawn twice");
    }

    fn prepare_add(&mut self, index: usize) {
        let region = &mut self.regions[index];
        // Boot memory is large enough for all words.
        let addition = self.hotplug.prepare_add(AddRequest::from(region.range)).unwrap();
        region.change = Change::Addition(addition);
    }

    fn finish_add(&mut self, index: usize) {
        let region = &mut self.regions[index];
        let Change::Addition(addition) = std::mem::replace(&mut region.change, Change::None) else {
            panic!("no addition is prepared")
        };
        assert!(self.hotplug.prepare_add(AddRequest::from(region.range)).is_err(), "added twice");
        match self.rng.u8(..4) {
            0 => drop(addition),
            _ => {
                self.hotplug.commit_add(addition);
                region.state = State::Offline;
            }
        }
    }

    fn online(&mut self, index: usize) {
        let region = &mut self.regions[index];
        let (kind, state) = match self.rng.bool() {
            true => (OnlineType::Movable, State::OnlineMovable),
            false => (OnlineType::Kernel, State::Online),
        };
        self.hotplug.online(region.range, kind, &mut NoHooks).unwrap();
        region.state = state;
    }

    fn offline(&mut self, index: usize) {
        let region = &mut self.regions[index];
        let mut offline = self.hotplug.offline(region.range).unwrap();
        match offline.poll(&mut self.hotplug, &mut NoHooks, Budget::UNLIMITED) {
            Progress::Ready(done) => {
                assert_eq!(done, region.range);
                region.state = State::Offline;
            }
            // Kernel memory may hold words of other regions.
            Progress::Pending(_) if region.state == State::Online => {
                offline.cancel(&mut self.hotplug, &mut NoHooks);
            }
            progress => panic!("{progress:?} of {:?}", region.range),
        }
    }

    fn prepare_remove(&mut self, index: usize) {
        let region = &mut self.regions[index];
        region.change = Change::Removal(self.hotplug.prepare_remove(region.range).unwrap());
        region.state = State::Removing;
    }

    fn finish_remove(&mut self, index: usize) {
        let region = &mut self.regions[index];
        let Change::Removal(removal) = std::mem::replace(&mut region.change, Change::None) else {
            panic!("no removal is prepared")
        };
        assert!(self.hotplug.prepare_remove(region.range).is_err(), "removed twice");
        assert!(self.hotplug.withdraw(region.id).is_err(), "withdrawn during a removal");
        if self.rng.u8(..4) == 0 {
            self.hotplug.abandon_remove(removal, &mut NoHooks);
            region.state = State::Offline;
        } else {
            self.hotplug.commit_remove(removal);
            region.state = State::Absent;
        }
    }

    /// Allocates a frame of a region, and frees it.
    fn allocate(&mut self, index: usize) {
        let Region { range: all, state, .. } = self.regions[index];
        let at = pfn(all.start().number() + self.rng.u64(..all.frames()));
        let allocation = self.frames.alloc(AllocRequest::frames(1).movable().at(at));
        // Kernel memory may hold words.
        assert!(allocation.is_ok() || state != State::OnlineMovable, "{at:?}: {allocation:?}");
    }

    /// Compares all states with the model.
    fn check(&self) {
        let counts = self.frames.validated().unwrap();
        let mut expected: Vec<_> = self.regions.iter().map(|r| (r.range, r.state)).collect();
        expected.sort_unstable_by_key(|(range, _)| range.start());
        let mut regions: Vec<_> = self.hotplug.regions().map(|(_, range)| range).collect();
        regions.sort_unstable_by_key(|range| range.start());
        assert!(regions.iter().skip(1).eq(expected.iter().map(|(range, _)| range)));
        let frames_in = |is: fn(State) -> bool| {
            let all = expected.iter().filter(|&&(_, state)| is(state));
            all.map(|(range, _)| range.frames()).sum::<u64>() + first_frame()
        };
        assert_eq!(counts.present, frames_in(|state| state != State::Absent));
        assert_eq!(
            counts.online,
            frames_in(|state| matches!(state, State::Online | State::OnlineMovable))
        );
        let mut at = pfn(first_frame());
        for (range, state) in expected {
            if at < range.start() {
                let (gap, between) = self.hotplug.state_at(at, range.start());
                assert_eq!((gap.end(), between), (range.start(), State::Unknown));
            }
            let (run, actual) = self.hotplug.state_at(range.start(), range.end());
            assert_eq!((run, actual), (range, state));
            if state != State::Absent {
                assert_eq!(self.frames.node_of(range.start()), Some(node_of(range)));
            }
            at = range.end();
        }
    }
}

#[test]
fn thousands_of_ranges_agree_with_the_model() {
    let [usual, deep] = OPERATIONS;
    let operations = if env_number("HOTMEM_DEEP").is_some() { deep } else { usual };
    let seed = env_number("HOTMEM_SEED").unwrap_or(0x5eed);
    let memory = Memory::new(first_frame() + BLOCKS * PAGEBLOCK);
    let frames = Frames::new(OneCpu);
    let hotplug = boot(&frames, &memory, first_frame());
    let mut machine =
        Machine { frames: &frames, hotplug, regions: vec![], rng: Rng::with_seed(seed) };
    let mut most = 0;
    for operation in 0..operations {
        // The machine grows, then shrinks.
        machine.step(operation % 12_000 < 7000);
        most = most.max(machine.regions.len());
        if operation % 1000 == 0 {
            machine.check();
        }
    }
    machine.check();
    println!("{most} regions");
    assert!(most as u64 > BLOCKS / 4, "the machine has at most {most} ranges");
    let violations = hotmem::violated_invariants();
    assert_eq!(violations.count, 0, "{violations:?}");
}
