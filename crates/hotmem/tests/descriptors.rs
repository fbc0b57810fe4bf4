//! Descriptors of RAM: on the memory itself where a whole section comes, in free memory otherwise,
//! and gone with what they describe.

mod common;

use common::{BLOCK, Memory, SECTION, Snapshot, numbers, pfn, range};
use fastrand::Rng;
use hotmem::*;
use std::collections::{BTreeMap, BTreeSet};

const BOOT: u64 = 2;
const ALL: u64 = 12;
const PER_SECTION: u64 = SECTION / BLOCK;

/// Where the descriptors of a pageblock are.
#[derive(PartialEq, Eq, Debug)]
enum At {
    ItsSection,
    Frame(Pfn),
}

/// A kernel that describes its RAM: a frame for each pageblock, or a pageblock for each section.
#[derive(Default)]
struct Kernel {
    of: BTreeMap<u64, At>,
    vetoes: bool,
    undescribed: usize,
}

fn blocks(range: PfnRange) -> impl Iterator<Item = u64> {
    numbers(range).step_by(usize::try_from(BLOCK).unwrap()).map(|frame| frame / BLOCK)
}

impl Kernel {
    /// Whether a section's descriptors lie in its first pageblock now.
    fn is_kept(&self, section: u64) -> bool {
        self.of.get(&(section * PER_SECTION)) == Some(&At::ItsSection)
    }

    /// What keeps its own descriptors now.
    fn kept(&self) -> impl Iterator<Item = PfnRange> {
        (0..ALL).filter(|&section| self.is_kept(section)).map(|s| range(s * SECTION, BLOCK))
    }

    fn in_section(&self, piece: PfnRange) -> bool {
        piece.frames() == SECTION || self.is_kept(piece.start().number() / SECTION)
    }
}

impl Hooks for Kernel {
    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        let parts = range.sections().filter(|&piece| !self.in_section(piece));
        parts.map(|piece| piece.frames() / BLOCK).sum()
    }

    fn keeps(&self, section: PfnRange) -> u64 {
        assert_eq!(section.frames(), SECTION);
        1
    }

    fn describe(&mut self, range: PfnRange, spare: &mut Spare) {
        for piece in range.sections() {
            let own = self.in_section(piece);
            for block in blocks(piece) {
                let at = match own {
                    true => At::ItsSection,
                    false => At::Frame(spare.take().expect("what was asked for")),
                };
                assert_eq!(self.of.insert(block, at), None, "{block} is described already");
            }
        }
    }

    fn undescribe(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.undescribed += 1;
        for block in blocks(range) {
            match self.of.remove(&block).expect("described") {
                At::Frame(frame) => free(frame),
                At::ItsSection if block % PER_SECTION == 0 => {
                    let mut others = self.of.range(block..block + PER_SECTION);
                    let others = others.find(|(b, at)| {
                        **at == At::ItsSection && !blocks(range).any(|gone| gone == **b)
                    });
                    assert_eq!(others, None, "described by memory that has gone");
                }
                At::ItsSection => {}
            }
        }
    }

    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        if self.vetoes { Err(Veto("not now")) } else { Ok(()) }
    }
}

struct Machine<'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: Hotplug<'f, OneCpu>,
    kernel: Kernel,
}

fn on_a_machine(test: impl FnOnce(&mut Machine<'_>)) {
    let memory = Memory::new(ALL * SECTION);
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: range(0, BOOT * SECTION).bytes() }];
    let map = BootMap::of_ram(&ram);
    let mut hotplug = Hotplug::bootstrap(&frames, memory.direct_map(), &map).unwrap();
    hotplug.announce(range(BOOT * SECTION, (ALL - BOOT) * SECTION)).unwrap();
    test(&mut Machine { frames: &frames, hotplug, kernel: Kernel::default() });
}

impl Machine<'_> {
    fn plug(&mut self, range: PfnRange) {
        self.hotplug.add(range, &mut self.kernel).unwrap();
        self.hotplug.online(range, OnlineType::Movable, &mut self.kernel).unwrap();
    }

    fn take_offline(&mut self, range: PfnRange) {
        let mut offline = self.hotplug.offline(range).unwrap();
        let done = offline.poll(&mut self.hotplug, &mut self.kernel, Budget::UNLIMITED);
        assert_eq!(done, Progress::Done(range));
    }

    fn snapshot(&self, used: &[PfnRange]) -> Snapshot {
        let spare = self.kernel.of.values().filter_map(|at| match at {
            At::Frame(frame) => PfnRange::with_len(*frame, 1),
            At::ItsSection => None,
        });
        let used: Vec<_> = spare.chain(used.iter().copied()).collect();
        Snapshot::of(&self.hotplug, ALL * SECTION, &used)
    }

    fn shrink(&mut self, within: PfnRange, frames: u64) -> (u64, Option<Blocker>) {
        let mut shrink = Shrink::new(within, frames, BLOCK, u64::MAX);
        loop {
            match shrink.poll(&mut self.hotplug, &mut self.kernel, Budget::UNLIMITED) {
                Shrunk::Ready(removal) => {
                    self.hotplug.commit_remove(removal, &mut self.kernel).unwrap()
                }
                Shrunk::Working => {}
                Shrunk::Done { left, blocker } => return (left, blocker),
            }
        }
    }
}

/// A section that comes as a whole.
const WHOLE: u64 = 3 * SECTION;

#[test]
fn a_section_brings_room_for_its_own_descriptors() {
    on_a_machine(|m| {
        while m.frames.alloc(Want::frames(1)).is_ok() {}
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let kept = range(WHOLE, BLOCK);
        let counts = m.frames.counts_in(section);
        assert_eq!((counts.online, counts.free), (SECTION, SECTION - BLOCK));
        let of_section = Metadata { frames: kept, describes: section };
        assert!(m.frames.metadata().any(|metadata| metadata == of_section));
        let zone = m.hotplug.zone(NodeId::ZERO, Zone::Movable);
        assert_eq!((zone.spanned, zone.managed), (section, SECTION - BLOCK));
        assert!(zone.is_contiguous());
        // Who looks for something to move passes it over.
        let mut used = vec![];
        m.hotplug.occupancy(section, |block, frames| used.push((block, frames)));
        assert_eq!(used[0], (kept, BLOCK));
        assert!(used[1..].iter().all(|&(_, frames)| frames == 0));
        assert_eq!(m.hotplug.sparsest(NodeId::ZERO, Zone::Movable), None);
        while let Ok(got) = m.frames.alloc(Want::frames(1).movable()) {
            assert!(!got.overlaps(kept));
        }
        // A part of a section needs free memory.
        let part = range(WHOLE + SECTION, 2 * BLOCK);
        let refused = m.hotplug.add(part, &mut m.kernel);
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(AddError::NoTables { frames: 2, error }));
    });
}

#[test]
fn what_is_kept_is_nobodys_else() {
    on_a_machine(|m| {
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let kept = range(WHOLE, BLOCK);
        let before = m.snapshot(&[]);
        for part in [kept, range(WHOLE, 1), section] {
            assert!(matches!(m.frames.free(part), Err(FreeError { .. })), "{part}");
        }
        let at = Want::frames(1).at(pfn(WHOLE)).movable();
        assert_eq!(m.frames.alloc(at), Err(AllocError::NotFree(range(WHOLE, 1))));
        assert_eq!(m.hotplug.poison(pfn(WHOLE + 1)), Err(PoisonError::Metadata(kept)));
        let token = m.frames.isolate(section).unwrap();
        assert_eq!(token.in_use(), None);
        let held = IsolateError::HeldByAnother(kept);
        assert_eq!(m.frames.isolate(kept).err(), Some(held));
        token.release();
        assert_eq!(m.snapshot(&[]), before);
        let token = m.frames.isolate(section).unwrap();
        token.mark_reported().unwrap();
        assert_eq!(m.frames.counts().reported, SECTION - BLOCK);
        m.frames.validate().unwrap();
    });
}

#[test]
fn what_holds_descriptors_goes_with_the_last_of_what_they_describe() {
    on_a_machine(|m| {
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let kept = range(WHOLE, BLOCK);
        let before = m.snapshot(&[]);
        // It goes offline like any other, and is not removed.
        m.take_offline(kept);
        let refused = m.hotplug.remove(kept, &mut m.kernel);
        assert_eq!(refused, Err(RemoveError::Describes(kept)));
        assert_eq!(m.hotplug.ram_to_device(kept, &mut m.kernel), refused);
        m.hotplug.online(kept, OnlineType::AsBefore, &mut m.kernel).unwrap();
        assert_eq!(m.snapshot(&[]), before);

        // What is pinned keeps itself and its descriptors.
        let pinned = m.frames.alloc(Want::frames(BLOCK).at(pfn(WHOLE + BLOCK)).movable()).unwrap();
        let (left, _) = m.shrink(section, SECTION);
        assert_eq!(left, 2 * BLOCK);
        let stays = range(WHOLE, 2 * BLOCK);
        let there = m.hotplug.state_at(section.start(), section.end());
        assert_eq!(there, (stays, State::OnlineMovable));
        // What comes again is described where it was.
        m.plug(range(WHOLE + 2 * BLOCK, SECTION - 2 * BLOCK));
        assert_eq!(m.snapshot(&[pinned]), {
            m.frames.free(pinned).unwrap();
            let again = m.snapshot(&[]);
            assert_eq!(again, before);
            assert_eq!(
                m.frames.alloc(Want::frames(BLOCK).at(pinned.start()).movable()),
                Ok(pinned)
            );
            m.snapshot(&[pinned])
        });
        m.frames.free(pinned).unwrap();
        assert_eq!(m.shrink(section, SECTION), (0, None));
        assert!(m.kernel.of.is_empty());
        assert!(!m.frames.metadata().any(|metadata| metadata.frames.overlaps(section)));
    });
}

#[test]
fn only_the_descriptors_are_in_the_way_of_what_stays() {
    on_a_machine(|m| {
        m.plug(range(WHOLE, SECTION));
        m.take_offline(range(WHOLE + BLOCK, SECTION - BLOCK));
        let kept = range(WHOLE, BLOCK);
        let blocker = Blocker { range: kept, why: Why::Metadata };
        assert_eq!(m.shrink(range(WHOLE, SECTION), BLOCK), (BLOCK, Some(blocker)));
    });
}

/// The section's lines and its descriptors would wait for each other for ever.
#[test]
fn what_holds_descriptors_needs_no_lines() {
    on_a_machine(|m| {
        while m.frames.alloc(Want::frames(1)).is_ok() {}
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let last = range(WHOLE + SECTION - BLOCK, BLOCK);
        let divided = m.frames.alloc(Want::frames(1).at(last.start()).movable()).unwrap();
        let is_lines = |metadata: Metadata| metadata.frames.frames() == 1;
        let mut there = m.frames.metadata().filter(|metadata| last.covers(metadata.frames));
        assert!(there.any(is_lines));
        m.frames.free(divided).unwrap();
        let between = range(WHOLE + BLOCK, SECTION - 2 * BLOCK);
        m.take_offline(between);
        m.hotplug.remove(between, &mut m.kernel).unwrap();
        assert_eq!(m.shrink(section, 2 * BLOCK), (0, None));
        m.frames.validate().unwrap();
    });
}

#[test]
fn descriptors_wait_for_what_is_being_added() {
    on_a_machine(|m| {
        m.plug(range(WHOLE, SECTION));
        assert_eq!(m.shrink(range(WHOLE + BLOCK, SECTION - BLOCK), SECTION), (BLOCK, None));
        let kept = range(WHOLE, BLOCK);
        let coming = m.hotplug.prepare_add(range(WHOLE + BLOCK, BLOCK), &mut m.kernel).unwrap();
        assert_eq!(coming.tables().frames(), 0);
        let blocker = Blocker { range: kept, why: Why::Metadata };
        assert_eq!(m.shrink(kept, BLOCK), (BLOCK, Some(blocker)));
        m.hotplug.commit_add(coming, &mut m.kernel).unwrap();
        assert_eq!(m.kernel.of.get(&(WHOLE / BLOCK + 1)), Some(&At::ItsSection));
        m.hotplug.remove(range(WHOLE + BLOCK, BLOCK), &mut m.kernel).unwrap();
        assert_eq!(m.shrink(kept, BLOCK), (0, None));
    });
}

#[test]
fn what_is_leaving_describes_nothing_that_comes() {
    on_a_machine(|m| {
        m.plug(range(WHOLE, SECTION));
        let rest = range(WHOLE + BLOCK, SECTION - BLOCK);
        assert_eq!(m.shrink(rest, SECTION), (BLOCK, None));
        let kept = range(WHOLE, BLOCK);
        let device = range(WHOLE + BLOCK, BLOCK);
        m.hotplug.attach(device, &mut m.kernel).unwrap();
        m.take_offline(kept);
        let leaving = m.hotplug.prepare_remove(kept, &mut m.kernel).unwrap();
        let part = range(WHOLE + 2 * BLOCK, BLOCK);
        assert_eq!(m.hotplug.add(part, &mut m.kernel), Err(AddError::Held(kept)));
        let refused = m.hotplug.device_to_ram(device, OnlineType::Offline, &mut m.kernel);
        assert_eq!(refused, Err(DeviceError::Online(OnlineError::Held(kept))));
        m.hotplug.abandon_remove(leaving, &mut m.kernel).unwrap();
        m.hotplug.add(part, &mut m.kernel).unwrap();
        m.hotplug.device_to_ram(device, OnlineType::Offline, &mut m.kernel).unwrap();
        m.frames.validate().unwrap();
    });
}

#[test]
fn a_removal_is_not_cut_where_the_descriptors_of_the_rest_would_go() {
    on_a_machine(|m| {
        let sections = range(WHOLE, 2 * SECTION);
        m.hotplug.add(sections, &mut m.kernel).unwrap();
        let removal = m.hotplug.prepare_remove(sections, &mut m.kernel).unwrap();
        let removal = removal.split_at(pfn(WHOLE + BLOCK)).unwrap_err();
        assert_eq!(removal.range(), sections);
        let (gone, stays) = removal.split_at(pfn(WHOLE + SECTION)).unwrap();
        m.hotplug.commit_remove(gone, &mut m.kernel).unwrap();
        m.hotplug.abandon_remove(stays, &mut m.kernel).unwrap();
        assert_eq!(m.kernel.kept().collect::<Vec<_>>(), [range(WHOLE + SECTION, BLOCK)]);
        // What keeps nothing is cut anywhere.
        let part = range(WHOLE, 2 * BLOCK);
        m.hotplug.add(part, &mut m.kernel).unwrap();
        let removal = m.hotplug.prepare_remove(part, &mut m.kernel).unwrap();
        let (gone, stays) = removal.split_at(pfn(WHOLE + BLOCK)).unwrap();
        m.hotplug.commit_remove(gone, &mut m.kernel).unwrap();
        m.hotplug.abandon_remove(stays, &mut m.kernel).unwrap();
        m.frames.validate().unwrap();
    });
}

#[test]
fn a_device_may_not_lose_data_to_descriptors_of_ram_that_it_does_not_become() {
    on_a_machine(|m| {
        let section = range(WHOLE, SECTION);
        m.hotplug.attach(section, &mut m.kernel).unwrap();
        assert!(m.kernel.of.is_empty());
        m.kernel.vetoes = true;
        let refused = m.hotplug.device_to_ram(section, OnlineType::Movable, &mut m.kernel);
        assert!(matches!(refused, Err(DeviceError::Online(OnlineError::Vetoed { .. }))));
        assert!(m.kernel.of.is_empty() && m.kernel.undescribed == 0);
        m.hotplug.device_to_ram(section, OnlineType::Offline, &mut m.kernel).unwrap();
        assert_eq!(m.kernel.kept().collect::<Vec<_>>(), [range(WHOLE, BLOCK)]);
        // Bad memory can be described, but does not describe.
        let bad = pfn(WHOLE + BLOCK);
        assert_eq!(m.hotplug.poison(bad), Ok(Poisoned::Out));
        m.hotplug.ram_to_device(section, &mut m.kernel).unwrap();
        assert!(m.kernel.of.is_empty());
        m.hotplug.device_to_ram(section, OnlineType::Offline, &mut m.kernel).unwrap();
        m.hotplug.ram_to_device(section, &mut m.kernel).unwrap();
        m.hotplug.detach(section, &mut m.kernel).unwrap();

        let part = range(WHOLE, 2 * BLOCK);
        m.hotplug.attach(part, &mut m.kernel).unwrap();
        while m.frames.alloc(Want::frames(1)).is_ok() {}
        let refused = m.hotplug.device_to_ram(part, OnlineType::Movable, &mut m.kernel);
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(DeviceError::NoFrames { frames: 2, error }));
        assert_eq!(m.hotplug.state_at(part.start(), part.end()), (part, State::Device));
    });
}

#[test]
fn poison_in_a_device_keeps_descriptors_out_of_its_way() {
    on_a_machine(|m| {
        let part = range(WHOLE, BLOCK);
        m.plug(part);
        m.take_offline(part);
        let bad = range(WHOLE + 3, 1);
        assert_eq!(m.hotplug.poison(bad.start()), Ok(Poisoned::Out));
        m.hotplug.ram_to_device(part, &mut m.kernel).unwrap();
        m.hotplug.attach(range(WHOLE + BLOCK, SECTION - BLOCK), &mut m.kernel).unwrap();
        let section = range(WHOLE, SECTION);
        let refused = m.hotplug.device_to_ram(section, OnlineType::Offline, &mut m.kernel);
        assert_eq!(refused, Err(DeviceError::Online(OnlineError::Poisoned(bad))));
        assert_eq!(m.hotplug.state_at(section.start(), section.end()), (section, State::Device));
    });
}

const STEPS: u32 = if cfg!(hotmem_geometry = "small") { 6000 } else { 600 };

/// A machine that lives a random life, and is looked at after each step.
#[test]
fn all_that_is_ram_is_described_and_nothing_else() {
    on_a_machine(|m| {
        let mut rng = Rng::with_seed(7);
        let hot = range(BOOT * SECTION, (ALL - BOOT) * SECTION);
        let mut used: Vec<PfnRange> = vec![];
        let mut seen = BTreeSet::new();
        for step in 0..STEPS {
            m.kernel.vetoes = rng.u8(..20) == 0;
            let (run, state) = some_run(&m.hotplug, hot, &mut rng);
            let kind = [OnlineType::Offline, OnlineType::Movable, OnlineType::Kernel];
            let kind = kind[rng.usize(..3)];
            let (hotplug, hooks) = (&mut m.hotplug, &mut m.kernel);
            match (rng.u8(..8), state) {
                (0, _) => used.extend(m.frames.alloc(Want::frames(rng.u64(1..40)).movable())),
                (1, _) if !used.is_empty() => {
                    let freed = used.swap_remove(rng.usize(..used.len()));
                    m.frames.free(freed).unwrap();
                }
                (2, _) => shrink(m, hot, &mut rng),
                (3, State::Absent) => hotplug.attach(run, hooks).unwrap(),
                (_, State::Absent) => match hotplug.add(run, hooks) {
                    Ok(()) => {
                        let _ = hotplug.online(run, kind, hooks);
                    }
                    Err(error) => assert!(matches!(error, AddError::NoTables { .. })),
                },
                (3, State::Device) => hotplug.detach(run, hooks).unwrap(),
                (_, State::Device) => {
                    let _ = hotplug.device_to_ram(run, kind, hooks);
                }
                (3, State::Offline) => {
                    seen.insert(hotplug.ram_to_device(run, hooks).is_ok());
                }
                (4, State::Offline) => {
                    seen.insert(hotplug.remove(run, hooks).is_ok());
                }
                (_, State::Offline) => {
                    let _ = hotplug.online(run, kind, hooks);
                }
                (3.., State::Online | State::OnlineMovable) => {
                    let mut offline = hotplug.offline(run).unwrap();
                    match offline.poll(hotplug, hooks, Budget::UNLIMITED) {
                        Progress::Done(_) => {}
                        _ => offline.cancel(hotplug, hooks).unwrap(),
                    }
                }
                _ => {}
            }
            if step % 8 == 0 {
                check(m, hot);
            }
        }
        assert_eq!(seen.len(), 2, "both answers occur");
        // All of it can go in the end.
        m.kernel.vetoes = false;
        for range in used {
            m.frames.free(range).unwrap();
        }
        while let Some(run) = next_run(&m.hotplug, hot, State::Device) {
            m.hotplug.detach(run, &mut m.kernel).unwrap();
        }
        while let Some(run) = next_run(&m.hotplug, hot, State::Offline) {
            m.hotplug.online(run, OnlineType::Movable, &mut m.kernel).unwrap();
        }
        let mut left = m.frames.counts_in(hot).present;
        while let less = m.shrink(hot, left).0
            && less < left
        {
            left = less;
        }
        // Descriptors in kernel memory that came later stand in the way of just that.
        let is_descriptors = |at: &At| matches!(at, At::Frame(f) if hot.contains(*f));
        assert_eq!(left != 0, m.kernel.of.values().any(is_descriptors));
        assert_eq!(left == 0, m.kernel.of.is_empty());
        check(m, hot);
    });
}

fn next_run(hotplug: &Hotplug<'_, OneCpu>, within: PfnRange, wanted: State) -> Option<PfnRange> {
    let mut rest = within;
    while !rest.is_empty() {
        let (run, state) = hotplug.state_at(rest.start(), rest.end());
        if state == wanted {
            return Some(run);
        }
        rest = rest.split_at(run.end()).1;
    }
    None
}

/// A part of memory that is all in one state, often to the ends of sections.
fn some_run(hotplug: &Hotplug<'_, OneCpu>, hot: PfnRange, rng: &mut Rng) -> (PfnRange, State) {
    let grain = if rng.bool() { BLOCK } else { SECTION };
    let start = hot.start().number() + rng.u64(..hot.frames() / grain) * grain;
    let end = (start + rng.u64(1..=2 * SECTION / grain) * grain).min(hot.end().number());
    hotplug.state_at(pfn(start), pfn(end))
}

fn shrink(m: &mut Machine<'_>, hot: PfnRange, rng: &mut Rng) {
    let unit = BLOCK << rng.u32(..=PER_SECTION.ilog2());
    let largest = [u64::MAX, unit, 3 * SECTION / 2][rng.usize(..3)];
    let mut shrink = Shrink::new(hot, rng.u64(..hot.frames()), unit, largest);
    loop {
        match shrink.poll(&mut m.hotplug, &mut m.kernel, Budget::pageblocks(8)) {
            Shrunk::Ready(removal) if rng.u8(..4) == 0 => {
                m.hotplug.abandon_remove(removal, &mut m.kernel).unwrap();
            }
            Shrunk::Ready(removal) => m.hotplug.commit_remove(removal, &mut m.kernel).unwrap(),
            Shrunk::Working if rng.u8(..8) == 0 => {
                return shrink.cancel(&mut m.hotplug, &mut m.kernel).unwrap();
            }
            Shrunk::Working => {}
            Shrunk::Done { .. } => return,
        }
    }
}

fn check(m: &Machine<'_>, hot: PfnRange) {
    m.frames.validate().unwrap();
    let state = |block: u64| m.hotplug.state_at(pfn(block * BLOCK), pfn((block + 1) * BLOCK)).1;
    for block in blocks(hot) {
        let is_ram = !matches!(state(block), State::Absent | State::Device);
        assert_eq!(m.kernel.of.contains_key(&block), is_ram, "{block}");
        let at = m.kernel.of.get(&block);
        let holds = at.is_none_or(|at| match at {
            At::ItsSection => m.kernel.is_kept(block / PER_SECTION),
            At::Frame(frame) => {
                // Nobody has freed it.
                let at = frame.align_down(BLOCK).number() / BLOCK;
                matches!(state(at), State::Online | State::OnlineMovable)
            }
        });
        assert!(holds, "{block} is described in memory that has gone");
    }
    let kept: BTreeSet<u64> = m.kernel.kept().map(|kept| kept.start().number()).collect();
    let known = m.frames.metadata().map(|metadata| metadata.frames);
    let known: BTreeSet<u64> =
        known.filter(|f| f.frames() == BLOCK).map(|f| f.start().number()).collect();
    assert_eq!(known, kept);
    assert!(kept.iter().all(|&kept| m.frames.counts_in(range(kept, BLOCK)).free == 0));
    let online = kept.iter().filter(|&&k| !matches!(state(k / BLOCK), State::Offline)).count();
    let zones = Zone::ALL.map(|zone| m.hotplug.zone(NodeId::ZERO, zone));
    let withheld: u64 = zones.iter().map(|zone| zone.online - zone.managed).sum();
    let at_boot = BOOT_RESERVED.with(|cell| *cell.get_or_init(|| withheld - online as u64 * BLOCK));
    assert_eq!(withheld, at_boot + online as u64 * BLOCK);
}

thread_local! {
    /// What was reserved at boot.
    static BOOT_RESERVED: std::cell::OnceCell<u64> = const { std::cell::OnceCell::new() };
}
