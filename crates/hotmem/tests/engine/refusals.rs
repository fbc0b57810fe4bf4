//! Tests that a call with bad input returns a precise error and leaves the machine unchanged.

use hotmem::geometry::{FRAME_SIZE, PFN_LIMIT};
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::Raw as _;
use hotmem_testkit::RawReserved as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::ForwardingMapping;
use hotmem_testkit::forwarding::TestMapping;
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::{
    BITMAP_WORD_FRAMES, Memory, PAGEBLOCK, REMOTE, SECTION, Snapshot, pfn, range,
};

/// The numbers of sections of boot memory, and of all memory.
const BOOT_SECTIONS: u64 = 1;
const SECTIONS: u64 = 6;
/// The first frames of sections in these states. The first three sections are announced.
const ONLINE: u64 = 2 * SECTION;
const OFFLINE: u64 = 3 * SECTION;
const ABSENT: u64 = 4 * SECTION;
const UNKNOWN: u64 = 5 * SECTION;

struct Machine<'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: Hotplug<'f, OneCpu, ForwardingMapping<Tables>>,
    region: RegionId,
    allocations: Vec<PfnRange>,
}

impl Machine<'_> {
    /// Makes a call that must be refused, and checks that the machine is unchanged.
    fn refuses<T: PartialEq + std::fmt::Debug, E: PartialEq + std::fmt::Debug>(
        &mut self,
        error: E,
        act: impl FnOnce(&mut Self) -> Result<T, E>,
    ) {
        let before = Snapshot::of(&self.hotplug, SECTIONS * SECTION, &self.allocations);
        assert_eq!(act(self), Err(error));
        assert_eq!(Snapshot::of(&self.hotplug, SECTIONS * SECTION, &self.allocations), before);
    }

    fn alloc(&mut self, request: AllocRequest) -> PfnRange {
        let allocated = self.frames.alloc_range(request).expect("enough memory is free");
        self.allocations.push(allocated);
        allocated
    }

    /// Allocates every frame.
    fn exhaust(&mut self) {
        while let Ok(allocated) = self.frames.alloc_range(AllocRequest::frames(1).movable()) {
            self.allocations.push(allocated);
        }
    }
}

/// Runs `test` on a machine with a section in each state.
fn on_a_machine(test: impl FnOnce(&mut Machine<'_>)) {
    let memory = Memory::new(SECTIONS * SECTION);
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: Bytes(BOOT_SECTIONS * SECTION * FRAME_SIZE) }];
    let map = BootMap::from(&ram);
    let mut hotplug =
        hotmem_testkit::start(&frames, ForwardingMapping::new(memory.direct_map()), map).unwrap();
    let region = hotplug.announce(range(ONLINE, 3 * SECTION)).unwrap();
    hotplug.add(range(ONLINE, 2 * SECTION)).unwrap();
    hotplug.online(range(ONLINE, SECTION), OnlineType::Movable, &mut NoHooks).unwrap();
    test(&mut Machine { frames: &frames, hotplug, region, allocations: vec![] });
}

#[test]
fn addresses_that_wrap_or_pass_the_limit_never_become_ranges() {
    let beyond = |start, len| AddrError::BeyondPhysicalLimit { start, len: Bytes(len) };
    let limit = PFN_LIMIT * FRAME_SIZE;
    for (start, len) in [(u64::MAX, 1), (0, u64::MAX), (limit, 1), (limit - 4096, 8192)] {
        assert_eq!(PfnRange::from_bytes(start, Bytes(len)), Err(beyond(start, len)));
    }
    let unaligned = AddrError::Unaligned { start: 1, len: Bytes(4096) };
    assert_eq!(PfnRange::from_bytes(1, Bytes(4096)), Err(unaligned));
    assert_eq!(PfnRange::with_len(Pfn::LIMIT, 1), None);
    assert_eq!(PfnRange::with_len(pfn(1), u64::MAX), None);
    assert_eq!(PfnRange::new(pfn(2), pfn(1)), None);
    assert_eq!(Pfn::new(PFN_LIMIT + 1), None);
}

#[test]
fn announcing_with_bad_ranges_is_refused() {
    on_a_machine(|m| {
        let announced = range(ONLINE, 3 * SECTION);
        let empty = range(UNKNOWN, 0);
        m.refuses(
            AnnounceError::Range(RangeError { range: empty, kind: RangeErrorKind::Unaligned }),
            |m| m.hotplug.announce(empty),
        );
        let odd = range(UNKNOWN + 1, PAGEBLOCK);
        m.refuses(
            AnnounceError::Range(RangeError { range: odd, kind: RangeErrorKind::Unaligned }),
            |m| m.hotplug.announce(odd),
        );
        let odd = range(UNKNOWN, PAGEBLOCK - 1);
        m.refuses(
            AnnounceError::Range(RangeError { range: odd, kind: RangeErrorKind::Unaligned }),
            |m| m.hotplug.announce(odd),
        );
        for overlapping in [
            announced,
            range(ONLINE, PAGEBLOCK),
            range(ABSENT, PAGEBLOCK),
            range(ONLINE - PAGEBLOCK, 2 * PAGEBLOCK),
            range(UNKNOWN - PAGEBLOCK, 2 * PAGEBLOCK),
            range(ONLINE - SECTION, 5 * SECTION),
        ] {
            let error = AnnounceError::Range(RangeError {
                range: announced,
                kind: RangeErrorKind::Announced,
            });
            m.refuses(error, |m| m.hotplug.announce(overlapping));
        }
        let boot = m.hotplug.regions().next().unwrap().1;
        m.refuses(
            AnnounceError::Range(RangeError { range: boot, kind: RangeErrorKind::Announced }),
            |m| m.hotplug.announce(range(0, PAGEBLOCK)),
        );
    });
}

#[test]
fn hundreds_of_ranges_can_be_announced_and_withdrawn() {
    on_a_machine(|m| {
        m.hotplug.online(range(OFFLINE, SECTION), OnlineType::Kernel, &mut NoHooks).unwrap();
        let blocks = (0..200).map(|i| range(UNKNOWN + 2 * i * PAGEBLOCK, PAGEBLOCK));
        let announced = blocks.map(|block| m.hotplug.announce(block).unwrap());
        let announced: Vec<_> = announced.collect();
        assert_eq!(m.hotplug.regions().count(), announced.len() + 2);
        announced.into_iter().for_each(|region| m.hotplug.withdraw(region).unwrap());
        assert_eq!(m.hotplug.regions().count(), 2);
        m.hotplug.announce(range(UNKNOWN, 400 * PAGEBLOCK)).unwrap();
        m.hotplug.announce(range(REMOTE, PAGEBLOCK)).unwrap();
    });
}

#[test]
fn adding_memory_of_a_second_node_to_a_section_is_refused() {
    on_a_machine(|m| {
        let node = NodeId(1);
        m.hotplug.announce(range(UNKNOWN, SECTION)).unwrap();
        let first = range(UNKNOWN + PAGEBLOCK, PAGEBLOCK);
        let beside = AddRequest { node: Some(node), ..range(UNKNOWN, PAGEBLOCK).into() };
        let error = AddError::Range(RangeError { range: first, kind: RangeErrorKind::OtherNode });
        // The refusal is the same while the memory of the first node is being added, is present, or
        // is device memory.
        let addition = m.hotplug.prepare_add(first).unwrap();
        m.refuses(error, |m| m.hotplug.add(beside));
        m.hotplug.commit_add(addition).unwrap();
        m.refuses(error, |m| m.hotplug.prepare_add(beside).map(drop));
        m.refuses(error, |m| m.hotplug.add(AddRequest { device: true, ..beside }));
        m.hotplug.remove(first).unwrap();
        m.hotplug.add(AddRequest { device: true, ..first.into() }).unwrap();
        m.refuses(error, |m| m.hotplug.add(beside));
        m.hotplug.detach_raw(first).unwrap();
        m.hotplug.add(beside).unwrap();
        let nodes = [UNKNOWN, UNKNOWN + PAGEBLOCK].map(|frame| m.frames.node_of(pfn(frame)));
        assert_eq!(nodes, [Some(node), None]);
    });
}

#[test]
fn adding_without_memory_for_the_words_is_refused() {
    on_a_machine(|m| {
        let target = range(REMOTE, SECTION);
        m.hotplug.announce(target).unwrap();
        m.exhaust();
        // Use up the word reserve as well.
        let farther = range(2 * REMOTE, SECTION);
        m.hotplug.announce(farther).unwrap();
        hotmem_testkit::make_words(&mut m.hotplug, farther);
        let before = Snapshot::of(&m.hotplug, SECTIONS * SECTION, &m.allocations);
        assert!(matches!(m.hotplug.add(target), Err(AddError::NoMetadata(_))));
        assert_eq!(Snapshot::of(&m.hotplug, SECTIONS * SECTION, &m.allocations), before);
        for kernel in m.allocations.extract_if(.., |used| used.start() < pfn(SECTION)) {
            m.frames.free_range(kernel).unwrap();
        }
        m.hotplug.add(target).unwrap();
    });
}

#[test]
fn calls_for_announced_memory_that_was_never_added_are_refused() {
    on_a_machine(|m| {
        let far = range(REMOTE, 2 * SECTION);
        m.hotplug.announce(far).unwrap();
        let first = range(REMOTE, PAGEBLOCK);
        m.refuses(RangeError { range: first, kind: RangeErrorKind::NotPresent }, |m| {
            m.hotplug.remove(far)
        });
        m.refuses(RangeError { range: first, kind: RangeErrorKind::NotPresent }, |m| {
            m.hotplug.online(far, OnlineType::Kernel, &mut NoHooks)
        });
        m.refuses(RangeError { range: first, kind: RangeErrorKind::NotOnline }, |m| {
            m.hotplug.offline(far).map(drop)
        });
        m.refuses(RangeError { range: first, kind: RangeErrorKind::NotDevice }, |m| {
            m.hotplug.detach_raw(far)
        });
        let offline = range(OFFLINE, 2 * PAGEBLOCK);
        let foreign = RangeError { range: first, kind: RangeErrorKind::Foreign };
        m.refuses(foreign, |m| m.frames.free_range(range(REMOTE, 2 * PAGEBLOCK)));
        let foreign = RangeError { range: offline.split_at(pfn(OFFLINE + PAGEBLOCK)).0, ..foreign };
        m.refuses(foreign, |m| m.frames.free_range(offline));
        m.refuses(RangeError { range: first, kind: RangeErrorKind::NotOnline }, |m| {
            m.frames.isolate(far).map(drop)
        });
        assert_eq!(m.hotplug.state_at(far.start(), far.end()), (far, State::Absent));
    });
}

#[test]
fn withdrawing_memory_that_is_in_use_is_refused() {
    on_a_machine(|m| {
        let present = range(ONLINE, PAGEBLOCK);
        m.refuses(RangeError { range: present, kind: RangeErrorKind::Present }, |m| {
            m.hotplug.withdraw(m.region)
        });
        let empty = m.hotplug.announce(range(UNKNOWN, SECTION)).unwrap();
        let held = range(UNKNOWN, PAGEBLOCK);
        let coming = m.hotplug.prepare_add(held).unwrap();
        m.refuses(RangeError { range: held, kind: RangeErrorKind::Held }, |m| {
            m.hotplug.withdraw(empty)
        });
        drop(coming);
        m.hotplug.withdraw(empty).unwrap();
        let unknown =
            RangeError { range: range(UNKNOWN, SECTION), kind: RangeErrorKind::NotAnnounced };
        m.refuses(unknown, |m| m.hotplug.withdraw(empty));
    });
}

/// A kernel that needs this many frames for page tables of any range.
struct Tables(u64);

/// The value of [`Tables`] for a kernel that cannot map memory at all.
const UNMAPPABLE: u64 = u64::MAX - 1;

/// The veto of a kernel that cannot map the memory.
const CANNOT_MAP: Veto = Veto("mapped to something else");

impl TestMapping for Tables {
    fn can_map(&self, _: PfnRange) -> Result<(), Veto> {
        if self.0 == UNMAPPABLE { Err(CANNOT_MAP) } else { Ok(()) }
    }

    fn tables_needed(&self, _: PfnRange) -> u64 {
        self.0
    }
}

impl Hooks for Tables {}

#[test]
fn adding_with_bad_ranges_is_refused() {
    on_a_machine(|m| {
        let add = |m: &mut Machine<'_>, range| m.hotplug.add(range);
        for odd in [range(ABSENT, 0), range(ABSENT + 1, PAGEBLOCK), range(ABSENT, PAGEBLOCK + 1)] {
            m.refuses(
                AddError::Range(RangeError { range: odd, kind: RangeErrorKind::Unaligned }),
                |m| add(m, odd),
            );
        }
        for stray in [range(UNKNOWN, PAGEBLOCK), range(UNKNOWN - PAGEBLOCK, 2 * PAGEBLOCK)] {
            m.refuses(
                AddError::Range(RangeError { range: stray, kind: RangeErrorKind::NotAnnounced }),
                |m| add(m, stray),
            );
        }
        let last_block = range(ABSENT - PAGEBLOCK, PAGEBLOCK);
        m.refuses(
            AddError::Range(RangeError { range: last_block, kind: RangeErrorKind::Present }),
            |m| add(m, range(ABSENT - PAGEBLOCK, 2 * PAGEBLOCK)),
        );
        m.refuses(
            AddError::Range(RangeError {
                range: range(ONLINE, PAGEBLOCK),
                kind: RangeErrorKind::Present,
            }),
            |m| add(m, range(ONLINE, SECTION)),
        );
        let held = range(ABSENT + PAGEBLOCK, PAGEBLOCK);
        let coming = m.hotplug.prepare_add(held).unwrap();
        m.refuses(AddError::Range(RangeError { range: held, kind: RangeErrorKind::Held }), |m| {
            add(m, range(ABSENT, SECTION))
        });
        drop(coming);
        add(m, range(ABSENT, SECTION)).unwrap();
    });
}

#[test]
fn adding_without_frames_for_page_tables_is_refused() {
    on_a_machine(|m| {
        let target = range(ABSENT, SECTION);
        // Make the words before, so that the additions below need frames only for page tables.
        drop(m.hotplug.prepare_add(target).unwrap());
        let error = |frames, error| AddError::NoTables { frames, error };
        let much = error(SECTION, AllocError::OutOfMemory);
        m.refuses(much, |m| {
            with_kernel(&mut m.hotplug, &mut Tables(SECTION), |hotplug, _| hotplug.add(target))
        });
        let absurd = error(u64::MAX, AllocError::Bad(BadRequest::TooLong { frames: u64::MAX }));
        m.refuses(absurd, |m| {
            with_kernel(&mut m.hotplug, &mut Tables(u64::MAX), |hotplug, _| hotplug.add(target))
        });
        m.exhaust();
        let none = error(1, AllocError::OutOfMemory);
        m.refuses(none, |m| {
            with_kernel(&mut m.hotplug, &mut Tables(1), |hotplug, _| hotplug.add(target))
        });
        with_kernel(&mut m.hotplug, &mut Tables(0), |hotplug, _| hotplug.add(target)).unwrap();
    });
}

#[test]
fn adding_memory_that_the_kernel_cannot_map_is_refused() {
    on_a_machine(|m| {
        let target = range(ABSENT, SECTION);
        let vetoed =
            AddError::Range(RangeError { range: target, kind: RangeErrorKind::Vetoed(CANNOT_MAP) });
        m.refuses(vetoed, |m| {
            with_kernel(&mut m.hotplug, &mut Tables(UNMAPPABLE), |hotplug, _| hotplug.add(target))
        });
        m.hotplug.add(target).unwrap();
    });
}

#[test]
fn putting_bad_ranges_online_is_refused() {
    on_a_machine(|m| {
        let online =
            |m: &mut Machine<'_>, range| m.hotplug.online(range, OnlineType::Online, &mut NoHooks);
        for odd in [range(OFFLINE, 0), range(OFFLINE + 1, PAGEBLOCK), range(OFFLINE, PAGEBLOCK + 1)]
        {
            m.refuses(RangeError { range: odd, kind: RangeErrorKind::Unaligned }, |m| {
                online(m, odd)
            });
        }
        let absent = range(ABSENT, PAGEBLOCK);
        m.refuses(RangeError { range: absent, kind: RangeErrorKind::NotPresent }, |m| {
            online(m, range(OFFLINE, 2 * SECTION))
        });
        let stray = range(UNKNOWN, PAGEBLOCK);
        m.refuses(RangeError { range: stray, kind: RangeErrorKind::NotPresent }, |m| {
            online(m, stray)
        });
        let twice = range(OFFLINE - PAGEBLOCK, PAGEBLOCK);
        m.refuses(RangeError { range: twice, kind: RangeErrorKind::Online }, |m| {
            online(m, range(OFFLINE - PAGEBLOCK, SECTION))
        });
        let removal = m.hotplug.prepare_remove(range(OFFLINE, PAGEBLOCK)).unwrap();
        m.refuses(RangeError { range: removal.range(), kind: RangeErrorKind::Held }, |m| {
            online(m, range(OFFLINE, SECTION))
        });
        m.hotplug.abandon_remove(removal, &mut NoHooks).unwrap();
        online(m, range(OFFLINE, SECTION)).unwrap();
    });
}

#[test]
fn taking_bad_ranges_offline_is_refused() {
    on_a_machine(|m| {
        let offline = |m: &mut Machine<'_>, range| m.hotplug.offline(range).map(|_| ());
        for odd in [range(ONLINE, 0), range(ONLINE + 1, PAGEBLOCK), range(ONLINE, PAGEBLOCK + 1)] {
            m.refuses(RangeError { range: odd, kind: RangeErrorKind::Unaligned }, |m| {
                offline(m, odd)
            });
        }
        let already = range(OFFLINE, PAGEBLOCK);
        m.refuses(RangeError { range: already, kind: RangeErrorKind::NotOnline }, |m| {
            offline(m, range(ONLINE, 2 * SECTION))
        });
        let stray = range(ONLINE - PAGEBLOCK, 2 * PAGEBLOCK);
        m.refuses(RangeError { range: stray, kind: RangeErrorKind::NotOnline }, |m| {
            offline(m, stray)
        });
    });
}

#[test]
fn removing_bad_ranges_is_refused() {
    on_a_machine(|m| {
        let remove = |m: &mut Machine<'_>, range| m.hotplug.remove(range);
        for odd in [range(OFFLINE, 0), range(OFFLINE + 1, PAGEBLOCK), range(OFFLINE, PAGEBLOCK + 1)]
        {
            m.refuses(RangeError { range: odd, kind: RangeErrorKind::Unaligned }, |m| {
                remove(m, odd)
            });
        }
        let online = range(OFFLINE - PAGEBLOCK, PAGEBLOCK);
        m.refuses(RangeError { range: online, kind: RangeErrorKind::Online }, |m| {
            remove(m, range(OFFLINE - PAGEBLOCK, 2 * PAGEBLOCK))
        });
        m.refuses(RangeError { range: range(0, PAGEBLOCK), kind: RangeErrorKind::Online }, |m| {
            remove(m, range(0, SECTION))
        });
        let absent = range(ABSENT, PAGEBLOCK);
        m.refuses(RangeError { range: absent, kind: RangeErrorKind::NotPresent }, |m| {
            remove(m, range(ABSENT - PAGEBLOCK, 2 * PAGEBLOCK))
        });
        let stray = range(UNKNOWN, PAGEBLOCK);
        m.refuses(RangeError { range: stray, kind: RangeErrorKind::NotPresent }, |m| {
            remove(m, stray)
        });
        let removal = m.hotplug.prepare_remove(range(OFFLINE, PAGEBLOCK)).unwrap();
        m.refuses(RangeError { range: removal.range(), kind: RangeErrorKind::Held }, |m| {
            remove(m, range(OFFLINE, SECTION))
        });
        m.hotplug.abandon_remove(removal, &mut NoHooks).unwrap();
        remove(m, range(OFFLINE, SECTION)).unwrap();
    });
}

#[test]
fn isolating_bad_ranges_is_refused() {
    on_a_machine(|m| {
        let isolate = |m: &Machine<'_>, range| m.frames.isolate(range).map(|token| token.range());
        for odd in [range(ONLINE, 0), range(ONLINE + 1, PAGEBLOCK), range(ONLINE, PAGEBLOCK + 1)] {
            m.refuses(RangeError { range: odd, kind: RangeErrorKind::Unaligned }, |m| {
                isolate(m, odd)
            });
        }
        let offline = range(OFFLINE, PAGEBLOCK);
        m.refuses(RangeError { range: offline, kind: RangeErrorKind::NotOnline }, |m| {
            isolate(m, range(ONLINE, 2 * SECTION))
        });
        let frames = m.frames;
        let held = frames.isolate(range(ONLINE + PAGEBLOCK, PAGEBLOCK)).unwrap();
        m.refuses(RangeError { range: held.range(), kind: RangeErrorKind::Isolated }, |m| {
            isolate(m, range(ONLINE, SECTION))
        });
        held.release();
    });
}

#[test]
fn bad_allocation_requests_are_refused() {
    on_a_machine(|m| {
        let bad = |m: &mut Machine<'_>, request: AllocRequest, bad| {
            m.refuses(AllocError::Bad(bad), |m| m.frames.alloc_range(request));
        };
        bad(m, AllocRequest::frames(0), BadRequest::Empty);
        bad(m, AllocRequest::order(64), BadRequest::Empty);
        for align in [0, 3, u64::MAX] {
            bad(m, AllocRequest::frames(1).aligned(align), BadRequest::Alignment { frames: align });
        }
        for frames in [PFN_LIMIT + 1, u64::MAX] {
            bad(m, AllocRequest::frames(frames), BadRequest::TooLong { frames });
        }
        bad(m, AllocRequest::frames(1).aligned(1 << 63), BadRequest::TooLong { frames: 1 });
        bad(m, AllocRequest::frames(1).at(Pfn::LIMIT), BadRequest::Place(Pfn::LIMIT));
        bad(m, AllocRequest::frames(2).at(pfn(8)).within(..pfn(9)), BadRequest::Place(pfn(8)));
        bad(m, AllocRequest::frames(2).at(pfn(8)).aligned(16), BadRequest::Place(pfn(8)));
        let out_of_memory = AllocError::OutOfMemory;
        m.refuses(out_of_memory, |m| {
            m.frames.alloc_range(AllocRequest::frames(1).within(..Pfn::ZERO))
        });
        m.refuses(out_of_memory, |m| m.frames.alloc_range(AllocRequest::frames(PFN_LIMIT)));
        m.refuses(out_of_memory, |m| {
            m.frames.alloc_range(AllocRequest::frames(2 * SECTION).movable())
        });
        // Only the boot section is kernel memory, and a part of it is metadata.
        m.refuses(out_of_memory, |m| m.frames.alloc_range(AllocRequest::frames(SECTION)));
    });
}

#[test]
fn allocating_an_exact_place_that_is_not_free_is_refused() {
    on_a_machine(|m| {
        let at = |m: &Machine<'_>, place: PfnRange| {
            m.frames.alloc_range(AllocRequest::frames(place.frames()).at(place.start()).movable())
        };
        let not_free = AllocError::NotFree;
        let taken = at(m, range(ONLINE + PAGEBLOCK + 3, 1)).unwrap();
        m.allocations.push(taken);
        m.refuses(not_free(taken), |m| at(m, taken));
        // The frames before and after `taken` are free, and stay free.
        let block = range(ONLINE + PAGEBLOCK, PAGEBLOCK);
        m.refuses(not_free(block), |m| at(m, range(ONLINE + 1, 3 * PAGEBLOCK)));
        m.refuses(not_free(range(ONLINE + PAGEBLOCK, 4)), |m| {
            at(m, range(ONLINE + 1, PAGEBLOCK + 3))
        });
        m.refuses(not_free(range(OFFLINE, 1)), |m| at(m, range(OFFLINE, 1)));
        m.refuses(not_free(range(UNKNOWN, 1)), |m| at(m, range(UNKNOWN, 1)));
        // A request that is not movable does not get a place in movable memory.
        let kernel = AllocRequest::frames(1).at(pfn(ONLINE));
        m.refuses(not_free(range(ONLINE, 1)), |m| m.frames.alloc_range(kernel));
        let frames = m.frames;
        let held = frames.isolate(range(ONLINE, PAGEBLOCK)).unwrap();
        m.refuses(not_free(range(ONLINE, 1)), |m| at(m, range(ONLINE, 1)));
        held.release();
    });
}

#[test]
fn an_exact_place_lies_in_one_region() {
    on_a_machine(|m| {
        let next = range(UNKNOWN, PAGEBLOCK);
        m.hotplug.announce(next).unwrap();
        for part in [range(ABSENT, SECTION), next] {
            m.hotplug.add(part).unwrap();
            m.hotplug.online(part, OnlineType::Kernel, &mut NoHooks).unwrap();
        }
        let both = range(UNKNOWN - 1, 2);
        let request = AllocRequest::frames(2).at(both.start());
        m.refuses(AllocError::NotFree(both), |m| m.frames.alloc_range(request));
    });
}

#[test]
fn freeing_bad_ranges_is_refused() {
    on_a_machine(|m| {
        let refused = |range, kind| RangeError { range, kind };
        let empty = range(ONLINE, 0);
        m.refuses(refused(empty, RangeErrorKind::Empty), |m| m.frames.free_range(empty));
        for foreign in [
            range(UNKNOWN, 1),
            range(ABSENT, 1),
            range(OFFLINE + 7, 3),
            range(UNKNOWN - 1, 2),
            range(PFN_LIMIT - 1, 1),
        ] {
            m.refuses(refused(foreign, RangeErrorKind::Foreign), |m| m.frames.free_range(foreign));
        }
        for request in [
            AllocRequest::frames(1),
            AllocRequest::frames(3),
            AllocRequest::frames(PAGEBLOCK),
            AllocRequest::frames(2 * PAGEBLOCK),
        ] {
            let allocated = m.frames.alloc_range(request.movable()).unwrap();
            m.frames.free_range(allocated).unwrap();
            let first = allocated.chunks(PAGEBLOCK).next().unwrap();
            let twice = refused(first, RangeErrorKind::NotAllocated);
            m.refuses(twice, |m| m.frames.free_range(allocated));
        }
    });
}

#[test]
fn freeing_more_than_was_allocated_is_refused() {
    on_a_machine(|m| {
        let allocated = m.alloc(AllocRequest::frames(BITMAP_WORD_FRAMES).movable());
        let longer = range(allocated.start().number(), BITMAP_WORD_FRAMES + 1);
        let refused = RangeError { range: longer, kind: RangeErrorKind::NotAllocated };
        m.refuses(refused, |m| m.frames.free_range(longer));
        let two_blocks = m.alloc(AllocRequest::frames(2 * PAGEBLOCK).movable());
        let longer = range(two_blocks.start().number(), 3 * PAGEBLOCK);
        let third = range(two_blocks.start().number() + 2 * PAGEBLOCK, PAGEBLOCK);
        let refused = RangeError { range: third, kind: RangeErrorKind::NotAllocated };
        m.refuses(refused, |m| m.frames.free_range(longer));
    });
}

#[test]
fn starting_a_machine_with_a_bad_boot_map_is_refused() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(OneCpu);
    let start = |ram: &[BootRange], reserved: &[BootRange], below| {
        let map = BootMap { reserved, mapped_below: below, ..BootMap::from(ram) };
        hotmem_testkit::start(&frames, memory.direct_map(), map).map(|_| ())
    };
    let bytes = |start, len| BootRange { start, len: Bytes(len) };
    let all = bytes(0, SECTION * FRAME_SIZE);
    assert_eq!(start(&[], &[], Pfn::LIMIT), Err(BootError::NoMemory));
    assert_eq!(start(&[bytes(1, 4096)], &[], Pfn::LIMIT), Err(BootError::NoMemory));
    assert_eq!(start(&[all], &[all], Pfn::LIMIT), Err(BootError::NoMemory));
    for wrong in [bytes(u64::MAX, 2), bytes(1 << 52, 1), bytes(0, u64::MAX)] {
        let error = Err(BootError::BeyondPhysicalLimit(wrong));
        assert_eq!(start(&[all, wrong], &[], Pfn::LIMIT), error);
        assert_eq!(start(&[all], &[wrong], Pfn::LIMIT), error);
    }
    assert!(matches!(start(&[all], &[], Pfn::ZERO), Err(BootError::NoMetadata(_))));
    assert!(matches!(start(&[bytes(0, 4096)], &[], Pfn::LIMIT), Err(BootError::NoMetadata(_))));
    assert_eq!(frames.counts(), Counts::default());
    assert_eq!(start(&[all], &[], Pfn::LIMIT), Ok(()));
    assert_eq!(start(&[all], &[], Pfn::LIMIT), Err(BootError::AlreadyStarted));
    frames.validated().unwrap();
}
