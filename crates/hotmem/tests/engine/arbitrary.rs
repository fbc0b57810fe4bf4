//! Calls every method of the safe interface with arbitrary arguments: ranges at the edges of the
//! address space, tokens of another instance, memory that is free, poisoned or metadata, parts of
//! allocations. Checks that no call panics, that a refused call changes nothing, and that no frame
//! has two owners.
//!
//! `tests/narrow/refused_calls.rs` makes fewer kinds of calls on one instance, and compares more
//! state.
//! `HOTMEM_SEED` replays a run.

use fastrand::Rng;
use hotmem::report::{Batch, Reporter, ReporterSettings, Step};
use hotmem::*;
use hotmem_port::{CpuMagazine, FrameOwner, LinearMap, ReverseMap};
use hotmem_testkit::PFN_LIMIT;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Snapshot, env_number, pfn, range, start};
use std::num::NonZeroU64;
use std::ops::Bound;
use std::time::Duration;

const BOOT_FRAMES: u64 = 2 * SECTION;
const MEMORY_FRAMES: u64 = 6 * SECTION;
const CALLS: usize = if cfg!(miri) { 20 } else { 250 };
const RUNS: u64 = if cfg!(miri) { 1 } else { 2 };

type Owned<'f> = Allocation<'f, OneCpu>;

/// An instance, and all values of it that safe code can hold.
struct Instance<'f> {
    hotplug: Hotplug<'f, OneCpu>,
    regions: Vec<RegionId>,
    additions: Vec<Addition<'f, OneCpu>>,
    removals: Vec<Removal<'f, OneCpu>>,
    offlines: Vec<Offline<'f, OneCpu>>,
    shrinks: Vec<Shrink<'f, OneCpu>>,
    tokens: Vec<Isolation<'f, OneCpu>>,
    owned_ranges: Vec<Owned<'f>>,
    lent: LentMemory<'f, OneCpu>,
    reporter: Option<Reporter<'f, OneCpu>>,
    batches: Vec<Batch>,
    owners: ReverseMap<'f, OneCpu>,
    magazine: CpuMagazine<'f, OneCpu, 4>,
    /// The frames that the magazine has passed to the instance.
    magazine_frames: Vec<PfnRange>,
}

impl<'f> Instance<'f> {
    fn new(frames: &'f Frames<OneCpu>, memory: &Memory) -> Instance<'f> {
        let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
        let image = [BootRange { start: 4096, len: Bytes(5 * 4096) }];
        let map = BootMap { reserved: &image, ..BootMap::from(&ram) };
        Instance {
            hotplug: start(frames, memory.mapping(), map).unwrap(),
            regions: vec![],
            additions: vec![],
            removals: vec![],
            offlines: vec![],
            shrinks: vec![],
            tokens: vec![],
            owned_ranges: vec![],
            lent: LentMemory::new(frames),
            reporter: None,
            batches: vec![],
            // SAFETY: `memory` is the memory of the instance of `frames`.
            owners: unsafe { ReverseMap::new(frames, LinearMap::new(memory.start())) },
            // SAFETY: one thread uses the magazine, and no call interrupts another.
            magazine: unsafe { CpuMagazine::new(frames, AllocRequest::frames(1).movable()) },
            magazine_frames: vec![],
        }
    }

    fn frames(&self) -> &'f Frames<OneCpu> {
        self.hotplug.frames()
    }

    /// Records an allocation.
    fn record_owned(&mut self, owned: Owned<'f>) {
        self.check_new(owned.range());
        self.owned_ranges.push(owned);
    }

    /// Checks that no allocation and no metadata has frames of `range`.
    fn check_new(&self, range: PfnRange) {
        let owned = self.owned_ranges.iter().map(|owned| owned.range());
        let mut all = owned.chain(self.magazine_frames.iter().copied());
        assert!(all.all(|owned| !owned.overlaps(range)), "{range:?} has two owners");
        assert_eq!(self.lent.frames_in(range), 0, "{range:?} has two owners");
        let is_metadata = |metadata: Metadata| metadata.frames.overlaps(range);
        assert!(!self.frames().metadata().any(is_metadata), "{range:?} is metadata");
    }

    /// Calls all queries, and validates the instance.
    fn snapshot(&self) -> (Snapshot, Counts) {
        (Snapshot::of(&self.hotplug, 0, &[]), self.frames().counts())
    }
}

/// Removes a random element of `all` and returns it.
fn take_random<T>(rng: &mut Rng, all: &mut Vec<T>) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(rng.usize(..all.len())))
}

/// Returns a range of any kind: near edges of regions, sections and pageblocks, empty, unaligned,
/// or far too long.
fn random_range(rng: &mut Rng) -> PfnRange {
    let unit = [1, PAGEBLOCK, PAGEBLOCK, PAGEBLOCK, SECTION][rng.usize(..5)];
    let random_multiple = |rng: &mut Rng, max: u64| rng.u64(..=max / unit) * unit;
    let first = match rng.u8(..16) {
        0 => PFN_LIMIT - random_multiple(rng, SECTION),
        _ => random_multiple(rng, MEMORY_FRAMES),
    };
    let max_frames = PFN_LIMIT - first;
    let frames = match rng.u8(..16) {
        0 => 0,
        1 => random_multiple(rng, max_frames),
        2..8 => unit,
        _ => random_multiple(rng, 2 * SECTION),
    };
    range(first, frames.min(max_frames))
}

fn random_alloc_request(rng: &mut Rng) -> AllocRequest {
    let edge_cases = [0, 1, 1, 3, PAGEBLOCK, SECTION + 1, PFN_LIMIT, PFN_LIMIT + 1, u64::MAX];
    let number = |rng: &mut Rng| edge_cases[rng.usize(..edge_cases.len())];
    let mut request = AllocRequest::frames(number(rng));
    if rng.bool() {
        request = request.movable();
    }
    if rng.u8(..4) == 0 {
        request = request.aligned(number(rng));
    }
    let bound = |rng: &mut Rng| match rng.u8(..4) {
        0 => Bound::Included(random_range(rng).start()),
        1 => Bound::Excluded(random_range(rng).end()),
        _ => Bound::Unbounded,
    };
    request = request.within((bound(rng), bound(rng)));
    if rng.u8(..3) == 0 {
        request = request.at(random_range(rng).start());
    }
    if rng.u8(..4) == 0 {
        request = request.node(NodeChoice::Near(NodeId(rng.u32(..3))));
    }
    request
}

fn random_addition(rng: &mut Rng, range: PfnRange) -> AddRequest {
    AddRequest { device: rng.u8(..4) == 0, ..range.into() }
}

fn random_kind(rng: &mut Rng) -> OnlineType {
    use OnlineType::{AsBefore, Kernel, Movable, Offline, Online};
    [AsBefore, Kernel, Movable, Offline, Online][rng.usize(..5)]
}

/// A kernel that gives random answers.
struct Kernel<'r>(&'r mut Rng);

impl Hooks for Kernel<'_> {
    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        if self.0.u8(..6) == 0 { Err(Veto("no")) } else { Ok(()) }
    }

    fn going_offline(&mut self, _: PfnRange) -> Result<(), Veto> {
        if self.0.u8(..6) == 0 { Err(Veto("no")) } else { Ok(()) }
    }

    fn migrate(&mut self, _: PfnRange) -> Migration {
        use Migration::{Freed, Moved, Retry, Unmovable};
        [Moved, Freed, Retry, Unmovable("no")][self.0.usize(..4)]
    }
}

/// Calls a random method of the instance `local`, sometimes with a token of the instance `other`.
/// Returns whether the call was refused.
fn call<'f>(local: &mut Instance<'f>, other: &mut Instance<'f>, rng: &mut Rng) -> bool {
    let target = random_range(rng);
    let foreign = rng.u8(..4) == 0;
    macro_rules! tokens_of_either {
        ($all:ident) => {
            if foreign { &mut other.$all } else { &mut local.$all }
        };
    }
    match rng.u8(..29) {
        0 => {
            let node = NodeId(rng.u32(..3));
            let answer = local.hotplug.announce(Announce { node, ..target.into() });
            local.regions.extend(answer);
            answer.is_err()
        }
        1 => {
            let Some(region) = take_random(rng, tokens_of_either!(regions)) else { return false };
            let refused = local.hotplug.withdraw(region).is_err();
            if refused {
                tokens_of_either!(regions).push(region);
            }
            refused
        }
        2 => {
            let node = NodeId(rng.u32(..3));
            local.hotplug.add(AddRequest { node: Some(node), ..target.into() }).is_err()
        }
        3 => local.hotplug.add(target).is_err(),
        4 => match local.hotplug.prepare_add(random_addition(rng, target)) {
            Ok(addition) => {
                local.additions.push(addition);
                false
            }
            Err(_) => true,
        },
        5 => {
            let Some(addition) = take_random(rng, tokens_of_either!(additions)) else {
                return false;
            };
            local.hotplug.commit_add(addition);
            false
        }
        6 | 7 => local.hotplug.online(target, random_kind(rng), &mut Kernel(rng)).is_err(),
        8 => match local.hotplug.offline(target) {
            Ok(request) => {
                local.offlines.push(request);
                false
            }
            Err(_) => true,
        },
        9 => {
            let Some(mut request) = take_random(rng, tokens_of_either!(offlines)) else {
                return false;
            };
            let _ = request.poll(&mut local.hotplug, &mut Kernel(rng), Budget { pageblocks: 3 });
            tokens_of_either!(offlines).push(request);
            false
        }
        10 => {
            let Some(request) = take_random(rng, tokens_of_either!(offlines)) else { return false };
            request.cancel(&mut local.hotplug, &mut Kernel(rng));
            false
        }
        11 => {
            let number = |rng: &mut Rng| [0, 1, PAGEBLOCK, SECTION, u64::MAX][rng.usize(..5)];
            local.shrinks.push(Shrink::new(ShrinkOptions {
                frames: number(rng),
                unit: number(rng),
                max_run_frames: number(rng),
                within: target,
                is_persistent: rng.bool(),
            }));
            false
        }
        12 | 13 => {
            let Some(mut shrink) = take_random(rng, tokens_of_either!(shrinks)) else {
                return false;
            };
            let progress =
                shrink.poll(&mut local.hotplug, &mut Kernel(rng), Budget { pageblocks: 3 });
            tokens_of_either!(shrinks).push(shrink);
            if let Progress::Ready(removal) = progress {
                local.removals.push(removal);
            }
            false
        }
        14 => {
            let Some(shrink) = take_random(rng, tokens_of_either!(shrinks)) else { return false };
            shrink.cancel(&mut local.hotplug, &mut Kernel(rng));
            false
        }
        15 => match local.hotplug.prepare_remove(target) {
            Ok(removal) => {
                local.removals.push(removal);
                false
            }
            Err(_) => true,
        },
        16 => {
            let Some(removal) = take_random(rng, tokens_of_either!(removals)) else { return false };
            match rng.u8(..3) {
                0 => local.hotplug.abandon_remove(removal, &mut Kernel(rng)),
                1 => local.hotplug.commit_remove(removal),
                _ => match removal.split_at(target.start()) {
                    Ok((below, above)) => tokens_of_either!(removals).extend([below, above]),
                    Err(removal) => {
                        tokens_of_either!(removals).push(removal);
                        return true;
                    }
                },
            }
            false
        }
        17 => local.hotplug.remove(target).is_err(),
        18 => local.hotplug.add(AddRequest { device: true, ..target.into() }).is_err(),
        19 => local.hotplug.ram_to_device(target).is_err(),
        20 => match local.frames().isolate(target) {
            Ok(token) => {
                local.tokens.push(token);
                false
            }
            Err(_) => true,
        },
        21 => {
            let Some(token) = take_random(rng, tokens_of_either!(tokens)) else { return false };
            let _ = token.in_use();
            match rng.u8(..3) {
                0 => token.release(),
                1 => {
                    let marked = token.mark_reported();
                    return marked
                        .map_err(|(token, _)| tokens_of_either!(tokens).push(token))
                        .is_err();
                }
                _ => {
                    let remaining = local.hotplug.take_offline(token, &mut Kernel(rng));
                    return remaining
                        .map_err(|(token, _)| tokens_of_either!(tokens).push(token))
                        .is_err();
                }
            }
            false
        }
        22 | 23 => match local.frames().alloc(random_alloc_request(rng)) {
            Ok(owned) => {
                local.record_owned(owned);
                false
            }
            Err(_) => true,
        },
        28 => {
            match rng.u8(..8) {
                0 | 1 => {
                    local.magazine.drain();
                }
                2 | 3 => {
                    if let Some(frame) = take_random(rng, &mut local.magazine_frames) {
                        // SAFETY: the magazine has passed the frame to this instance.
                        unsafe { local.frames().free_raw(frame) }.unwrap();
                    }
                }
                _ => {
                    if let Ok(frame) = local.magazine.alloc() {
                        let frame = range(frame.number(), 1);
                        local.check_new(frame);
                        local.magazine_frames.push(frame);
                    }
                }
            }
            false
        }
        24 => {
            let Some(owned) = take_random(rng, &mut local.owned_ranges) else { return false };
            match rng.u8(..3) {
                0 => drop(owned),
                1 => {
                    let range = owned.into_raw();
                    // SAFETY: the frames are those of `owned`.
                    let freed = unsafe { local.frames().fill_and_free_raw(range) };
                    // A part that a split has left may be empty.
                    assert_eq!(freed.is_err(), range.is_empty(), "{range:?}: {freed:?}");
                }
                _ => {
                    let (below, above) = owned.split_at(target.start());
                    local.owned_ranges.extend([below, above]);
                }
            }
            false
        }
        25 => match rng.u8(..6) {
            0 => local.hotplug.poison(target.start()).is_err(),
            1 => local.hotplug.pin(target, |_| {}).is_err(),
            2 => !local.hotplug.unpin(target),
            3 => call_lender(local, target, rng),
            4 => local.frames().set_contents(Contents::Filled(rng.u32(..))).is_err(),
            _ => {
                let part = target
                    .split_at(pfn(target.start().number().saturating_add(3).min(PFN_LIMIT)))
                    .0;
                // Do not count an error as a refusal: the call may have added tables, which stay.
                let _ = local.owners.set(part, FrameOwner(NonZeroU64::MIN));
                false
            }
        },
        26 => {
            let Some(reporter) = &mut local.reporter else {
                let made =
                    Reporter::new(local.frames(), ReporterSettings::EAGER, Contents::Undefined);
                local.reporter = made.ok();
                return false;
            };
            match rng.u8(..4) {
                0 | 1 => {
                    if let Step::Ready(Ok(batch)) = reporter.step(Duration::from_secs(rng.u64(..)))
                    {
                        local.batches.push(batch);
                    }
                }
                2 => drop(reporter.reset()),
                _ => {
                    let Some(batch) = take_random(rng, tokens_of_either!(batches)) else {
                        return false;
                    };
                    reporter.reported(batch);
                }
            }
            false
        }
        _ => {
            let _ = local.hotplug.state_at(target.start(), target.end());
            let _ = local.frames().counts_in(target);
            let _ = (local.owners.owner(target.start()), local.frames().node_of(target.start()));
            local.hotplug.occupancy(target, |_, _| {});
            let _ = local.hotplug.memory_blocks(target.frames()).last();
            false
        }
    }
}

/// Makes one call of the lender. Returns whether it was refused and must have changed nothing.
fn call_lender(local: &mut Instance<'_>, target: PfnRange, rng: &mut Rng) -> bool {
    let lent = &mut local.lent;
    match rng.u8(..5) {
        0 | 1 => {
            // A refused call may have made bitmaps for the pageblock that it tried.
            let _ = lent.allocate(random_alloc_request(rng), &[target]);
            false
        }
        2 => lent.free(target).is_err(),
        3 => {
            let Some(run) = lent.highest_in(target, rng.u64(..1000)) else { return false };
            assert!(target.covers(run) && lent.frames_in(run) == run.frames());
            lent.free(run).unwrap();
            false
        }
        _ => {
            // Moving a node makes no difference to what is lent.
            let before = (lent.frames(), lent.frames_in(target));
            let _ = lent.move_record(target);
            assert_eq!((lent.frames(), lent.frames_in(target)), before);
            false
        }
    }
}

#[test]
fn no_call_panics_and_what_is_refused_changes_nothing() {
    let first = env_number("HOTMEM_SEED").unwrap_or(0);
    for seed in first..first + RUNS {
        let memories = [Memory::new(MEMORY_FRAMES), Memory::new(MEMORY_FRAMES)];
        let frames = [Frames::new(OneCpu), Frames::new(OneCpu)];
        let mut rng = Rng::with_seed(seed);
        let mut local = Instance::new(&frames[0], &memories[0]);
        let mut other = Instance::new(&frames[1], &memories[1]);
        for number in 0..CALLS {
            let before = [local.snapshot(), other.snapshot()];
            let refused = call(&mut local, &mut other, &mut rng);
            let after = [local.snapshot(), other.snapshot()];
            assert!(
                !refused || after == before,
                "call {number} of HOTMEM_SEED={seed} was refused and changed something"
            );
            std::mem::swap(&mut local, &mut other);
        }
        let violations = hotmem::violated_invariants();
        assert_eq!(violations.count, 0, "{violations:?}");
    }
}
