//! Makes arbitrary calls, most of them invalid, on machines in arbitrary states. Checks that a
//! refused call leaves the machine and all its counts unchanged.
//!
//! `HOTMEM_SEED` replays a machine.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::PFN_LIMIT;
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::forwarding::{ForwardingMapping, TestMapping, with_kernel};
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Snapshot, env_number, numbers, pfn, range};
use std::collections::BTreeSet;

/// The numbers of frames of a machine, and of its boot memory.
const MEMORY_FRAMES: u64 = 6 * SECTION;
const BOOT_FRAMES: u64 = 2 * SECTION;
/// The numbers of calls on a machine, and of machines.
const CALLS: u64 = if cfg!(miri) { 20 } else { 150 };
const MACHINES: u64 = if cfg!(miri) { 1 } else { 6 };

/// A kernel that sometimes refuses, and sometimes needs more frames than the machine has.
struct Kernel(Rng);

impl TestMapping for Kernel {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        let seed = self.0.get_seed();
        [0, 0, 0, 1, SECTION, u64::MAX][(seed % 6) as usize]
    }

    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        self.tables_needed(range) / 2
    }
}

impl Hooks for Kernel {
    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        if self.0.u8(..4) == 0 { Err(Veto("no")) } else { Ok(()) }
    }
}

struct Machine<'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: Hotplug<'f, OneCpu, ForwardingMapping<Kernel>>,
    kernel: Kernel,
    rng: Rng,
    regions: Vec<RegionId>,
    /// Frames that the kernel owns, including those that boot reserved.
    used_frames: BTreeSet<u64>,
    /// Whether the last call may have joined or divided pageblocks before it was refused.
    may_have_divided: bool,
    /// The names of the calls that were refused.
    refused_call_names: BTreeSet<&'static str>,
}

impl Machine<'_> {
    fn snapshot(&self) -> Snapshot {
        let used: Vec<_> = self.used_frames.iter().map(|&frame| range(frame, 1)).collect();
        Snapshot::of(&self.hotplug, MEMORY_FRAMES, &used)
    }

    /// Returns a range of any kind: near edges of regions, sections and pageblocks, empty,
    /// unaligned, or far too long.
    fn random_range(&mut self) -> PfnRange {
        let grain = [1, PAGEBLOCK, PAGEBLOCK, PAGEBLOCK, SECTION][self.rng.usize(..5)];
        let multiple = |rng: &mut Rng, limit: u64| rng.u64(..=limit / grain) * grain;
        let start = match self.rng.u8(..16) {
            0 => PFN_LIMIT - multiple(&mut self.rng, SECTION),
            _ => multiple(&mut self.rng, MEMORY_FRAMES),
        };
        let max_frames = PFN_LIMIT - start;
        let frames = match self.rng.u8(..16) {
            0 => 0,
            1 => multiple(&mut self.rng, max_frames),
            2..6 => grain,
            _ => multiple(&mut self.rng, 2 * SECTION),
        };
        range(start, frames.min(max_frames))
    }

    fn random_alloc_request(&mut self) -> AllocRequest {
        let edge_cases = [0, 1, 3, PAGEBLOCK, SECTION + 1, PFN_LIMIT, PFN_LIMIT + 1, u64::MAX];
        let edge_case = |rng: &mut Rng| edge_cases[rng.usize(..edge_cases.len())];
        let mut request = AllocRequest::frames(edge_case(&mut self.rng));
        if self.rng.bool() {
            request = request.movable();
        }
        if self.rng.u8(..3) == 0 {
            request = request.aligned(edge_case(&mut self.rng));
        }
        if self.rng.u8(..3) == 0 {
            request = request.within(..self.random_range().end());
        }
        if self.rng.u8(..3) == 0 {
            request = request.at(self.random_range().start());
        }
        if self.rng.u8(..4) == 0 {
            request = request.node(NodeChoice::Only(NodeId(self.rng.u32(..3))));
        }
        request
    }

    fn random_kind(&mut self) -> OnlineType {
        use OnlineType::{AsBefore, Kernel, Movable, Offline, Online};
        [AsBefore, Kernel, Movable, Offline, Online][self.rng.usize(..5)]
    }

    /// Makes a random call. Returns its name, and whether it was refused.
    fn call(&mut self) -> (&'static str, bool) {
        let (requested, kind) = (self.random_range(), self.random_kind());
        let Machine { frames, hotplug, kernel, .. } = self;
        match self.rng.u8(..19) {
            0 => {
                let node = NodeId(self.rng.u32(..3));
                let group = [Group::None, Group::Static, Group::Dynamic { unit: 3 }];
                let group = group[self.rng.usize(..3)];
                let answer = hotplug.announce(Announce { node, group, ..requested.into() });
                self.regions.extend(answer);
                ("announce", answer.is_err())
            }
            1 => {
                let answer = with_kernel(hotplug, kernel, |hotplug, _| hotplug.add(requested));
                self.may_have_divided = matches!(answer, Err(AddError::NoMetadata(_)));
                ("add", answer.is_err())
            }
            2 => {
                let answer =
                    with_kernel(hotplug, kernel, |hotplug, _| hotplug.prepare_add(requested))
                        .map(drop);
                self.may_have_divided = matches!(answer, Err(AddError::NoMetadata(_)));
                ("prepare_add", answer.is_err())
            }
            3 | 4 => {
                // With the type `Offline` the call does nothing, and is not refused.
                ("online", hotplug.online(requested, kind, kernel).is_err())
            }
            5 => match hotplug.offline(requested) {
                Err(_) => ("offline", true),
                Ok(mut request) => {
                    match request.poll(hotplug, kernel, Budget::UNLIMITED) {
                        Progress::Ready(_) => {}
                        _ => request.cancel(hotplug, kernel),
                    }
                    ("offline", false)
                }
            },
            6 => (
                "remove",
                with_kernel(hotplug, kernel, |hotplug, _| hotplug.remove(requested)).is_err(),
            ),
            7 => match with_kernel(hotplug, kernel, |hotplug, _| hotplug.prepare_remove(requested))
            {
                Err(_) => ("prepare_remove", true),
                Ok(removal) => {
                    with_kernel(hotplug, kernel, |hotplug, hooks| {
                        hotplug.abandon_remove(removal, hooks)
                    });
                    ("prepare_remove", false)
                }
            },
            8 => (
                "attach",
                with_kernel(hotplug, kernel, |hotplug, _| {
                    hotplug.add(AddRequest { device: true, ..requested.into() })
                })
                .is_err(),
            ),
            9 => (
                "detach",
                with_kernel(hotplug, kernel, |hotplug, _| hotplug.detach_raw(requested)).is_err(),
            ),
            10 => (
                "device_to_ram",
                with_kernel(hotplug, kernel, |hotplug, hooks| {
                    hotplug.device_to_ram_raw(requested, kind, hooks)
                })
                .is_err(),
            ),
            11 => (
                "ram_to_device",
                with_kernel(hotplug, kernel, |hotplug, _| hotplug.ram_to_device(requested))
                    .is_err(),
            ),
            12 => match frames.isolate(requested) {
                Err(_) => ("isolate", true),
                Ok(token) => {
                    token.release();
                    ("isolate", false)
                }
            },
            13 | 14 => {
                let request = self.random_alloc_request();
                let answer = self.frames.alloc_range(request);
                // A search for several pageblocks joins divided pageblocks whose frames are all
                // free.
                self.may_have_divided = answer.is_err();
                self.used_frames.extend(answer.into_iter().flat_map(numbers));
                ("alloc", answer.is_err())
            }
            15 => {
                // The engine does not refuse to free metadata and holes, so do not try that.
                let may_free = numbers(requested.intersection(range(0, BOOT_FRAMES)))
                    .all(|f| self.used_frames.contains(&f))
                    || numbers(requested).any(|f| f < MEMORY_FRAMES && self.is_free(f));
                let answer = if may_free { self.frames.free_range(requested) } else { Ok(()) };
                if answer.is_ok() && may_free {
                    numbers(requested).for_each(|frame| assert!(self.used_frames.remove(&frame)));
                }
                ("free", answer.is_err())
            }
            16 => {
                let Some(&region) = self.rng.choice(&self.regions) else { return ("none", false) };
                ("withdraw", hotplug.withdraw(region).is_err())
            }
            17 => {
                let node = NodeId(self.rng.u32(..3));
                let request = AddRequest { node: Some(node), ..requested.into() };
                let answer = with_kernel(hotplug, kernel, |hotplug, _| hotplug.add(request));
                self.may_have_divided = matches!(answer, Err(AddError::NoMetadata(_)));
                ("add on a node", answer.is_err())
            }
            _ => {
                let frame = pfn(requested.start().number());
                ("poison", self.rng.u8(..4) == 0 && hotplug.poison(frame).is_err())
            }
        }
    }

    fn is_free(&self, frame: u64) -> bool {
        let metadata = self.frames.metadata();
        !self.used_frames.contains(&frame) && { metadata }
            .all(|metadata| !metadata.frames.contains(pfn(frame)))
    }

    fn run(&mut self) {
        for _ in 0..CALLS {
            let before = self.snapshot();
            let rng = self.rng.clone();
            self.may_have_divided = false;
            let (name, refused) = self.call();
            if refused {
                self.refused_call_names.insert(name);
                let (mut now, mut before) = (self.snapshot(), before);
                if self.may_have_divided {
                    (now, before) = (now.ignoring_divisions(), before.ignoring_divisions());
                }
                assert!(now == before, "a refused {name} changed something: {rng:?}");
            }
        }
    }
}

#[test]
fn a_refused_call_changes_nothing() {
    let first = env_number("HOTMEM_SEED").unwrap_or(0);
    let mut refused = BTreeSet::new();
    for seed in first..first + MACHINES {
        let memory = Memory::new(MEMORY_FRAMES);
        let frames = Frames::new(OneCpu);
        let bytes =
            |range: PfnRange| BootRange { start: range.start().phys_addr(), len: range.bytes() };
        let (ram, ramdisk) = ([bytes(range(0, BOOT_FRAMES))], range(SECTION - 5, 3 * PAGEBLOCK));
        let map = BootMap { reserved: &[bytes(ramdisk)], ..BootMap::from(&ram) };
        let hotplug =
            hotmem_testkit::start(&frames, ForwardingMapping::new(memory.direct_map()), map)
                .unwrap();
        let mut machine = Machine {
            frames: &frames,
            hotplug,
            kernel: Kernel(Rng::with_seed(seed)),
            rng: Rng::with_seed(seed),
            regions: vec![],
            used_frames: numbers(ramdisk).collect(),
            may_have_divided: false,
            refused_call_names: BTreeSet::new(),
        };
        machine.run();
        refused.append(&mut machine.refused_call_names);
    }
    let violations = hotmem::violated_invariants();
    assert_eq!(violations.count, 0, "{violations:?}");
    assert!(cfg!(miri) || refused.len() >= 16, "only {refused:?} was ever refused");
}
