//! Tests that a call with bad input returns a precise error and leaves the instance unchanged.

use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::PFN_LIMIT;
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::ForwardingMapping;
use hotmem_testkit::forwarding::TestMapping;
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::{
    BITMAP_WORD_FRAMES, DISTANT_PFN, LONGEST_RUN, Memory, PAGEBLOCK, SECTION, Snapshot, pfn, range,
};

/// The numbers of sections of boot memory, and of all memory.
const BOOT_SECTIONS: u64 = 1;
const SECTIONS: u64 = 6;
/// The first frames of sections in these states. All of them are announced, except the last.
const ONLINE: u64 = 2 * SECTION;
const OFFLINE: u64 = 3 * SECTION;
const ABSENT: u64 = 4 * SECTION;
const UNKNOWN: u64 = 5 * SECTION;

struct Instance<'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: Hotplug<'f, OneCpu, ForwardingMapping<Tables>>,
    region: RegionId,
    allocations: Vec<PfnRange>,
}

impl Instance<'_> {
    /// Makes a call that must be refused, and checks that the instance is unchanged.
    fn assert_refused<T: PartialEq + std::fmt::Debug, E: PartialEq + std::fmt::Debug>(
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

/// Runs `test` on an instance with a section in each state.
fn with_instance(test: impl FnOnce(&mut Instance<'_>)) {
    let memory = Memory::new(SECTIONS * SECTION);
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: Bytes(BOOT_SECTIONS * SECTION * FRAME_SIZE) }];
    let map = BootMap::from(&ram);
    let mut hotplug =
        hotmem_testkit::start(&frames, ForwardingMapping::new(memory.direct_map()), map).unwrap();
    let region = hotplug.announce(range(ONLINE, 3 * SECTION)).unwrap();
    hotplug.add(range(ONLINE, 2 * SECTION)).unwrap();
    hotplug.online(range(ONLINE, SECTION), OnlineType::Movable, &mut NoHooks).unwrap();
    test(&mut Instance { frames: &frames, hotplug, region, allocations: vec![] });
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
    with_instance(|instance| {
        let announced = range(ONLINE, 3 * SECTION);
        let empty = range(UNKNOWN, 0);
        instance.assert_refused(
            AnnounceError::Range(RangeError { range: empty, kind: RangeErrorKind::Unaligned }),
            |instance| instance.hotplug.announce(empty),
        );
        let odd = range(UNKNOWN + 1, PAGEBLOCK);
        instance.assert_refused(
            AnnounceError::Range(RangeError { range: odd, kind: RangeErrorKind::Unaligned }),
            |instance| instance.hotplug.announce(odd),
        );
        let odd = range(UNKNOWN, PAGEBLOCK - 1);
        instance.assert_refused(
            AnnounceError::Range(RangeError { range: odd, kind: RangeErrorKind::Unaligned }),
            |instance| instance.hotplug.announce(odd),
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
            instance.assert_refused(error, |instance| instance.hotplug.announce(overlapping));
        }
        let boot = instance.hotplug.regions().next().unwrap().1;
        instance.assert_refused(
            AnnounceError::Range(RangeError { range: boot, kind: RangeErrorKind::Announced }),
            |instance| instance.hotplug.announce(range(0, PAGEBLOCK)),
        );
    });
}

#[test]
fn hundreds_of_ranges_can_be_announced_and_withdrawn() {
    with_instance(|instance| {
        instance.hotplug.online(range(OFFLINE, SECTION), OnlineType::Kernel, &mut NoHooks).unwrap();
        let blocks = (0..200).map(|i| range(UNKNOWN + 2 * i * PAGEBLOCK, PAGEBLOCK));
        let announced = blocks.map(|block| instance.hotplug.announce(block).unwrap());
        let announced: Vec<_> = announced.collect();
        assert_eq!(instance.hotplug.regions().count(), announced.len() + 2);
        announced.into_iter().for_each(|region| instance.hotplug.withdraw(region).unwrap());
        assert_eq!(instance.hotplug.regions().count(), 2);
        instance.hotplug.announce(range(UNKNOWN, 400 * PAGEBLOCK)).unwrap();
        instance.hotplug.announce(range(DISTANT_PFN, PAGEBLOCK)).unwrap();
    });
}

#[test]
fn announcing_a_part_of_a_section_of_another_node_is_refused() {
    with_instance(|instance| {
        let other = NodeId(1);
        let error =
            |range| AnnounceError::Range(RangeError { range, kind: RangeErrorKind::OtherNode });
        let half = SECTION / 2;
        let below = range(UNKNOWN, half);
        let below_region = instance.hotplug.announce(below).unwrap();
        // The part of the section that is announced is refused, whether the range begins or ends in
        // the section, and however long the range is.
        let above = Announce { node: other, ..range(UNKNOWN + half, half).into() };
        let longer = Announce { node: other, ..range(UNKNOWN + half, 2 * SECTION).into() };
        let inside = Announce { node: other, ..range(UNKNOWN + half, PAGEBLOCK).into() };
        for beside in [above, longer, inside] {
            instance.assert_refused(error(below), |instance| instance.hotplug.announce(beside));
        }
        let far = range(UNKNOWN + 3 * SECTION - half, SECTION);
        let far_region = instance.hotplug.announce(far).unwrap();
        let at_the_end = Announce { range: range(UNKNOWN + SECTION, 3 * half), ..longer };
        let part = range(UNKNOWN + 3 * SECTION - half, half);
        instance.assert_refused(error(part), |instance| instance.hotplug.announce(at_the_end));
        instance.hotplug.withdraw(far_region).unwrap();
        // Regions of the same node, and regions whose nodes vary, share a section.
        let same = instance.hotplug.announce(range(UNKNOWN + half, half)).unwrap();
        instance.hotplug.withdraw(same).unwrap();
        let varying = Announce { nodes_vary: true, ..above };
        instance.hotplug.announce(varying).unwrap();
        let on_other = AddRequest { node: Some(other), ..above.range.into() };
        instance.hotplug.add(on_other).unwrap();
        // Where there is memory, its node decides, and not the node of a region.
        instance.hotplug.withdraw(below_region).unwrap();
        let first = range(UNKNOWN + half, PAGEBLOCK);
        instance.assert_refused(error(first), |instance| instance.hotplug.announce(below));
        instance.hotplug.announce(Announce { node: other, ..below.into() }).unwrap();
    });
}

#[test]
fn adding_memory_of_a_second_node_to_a_section_is_refused() {
    with_instance(|instance| {
        let node = NodeId(1);
        instance.hotplug.announce(range(UNKNOWN, SECTION)).unwrap();
        let first = range(UNKNOWN + PAGEBLOCK, PAGEBLOCK);
        let beside = AddRequest { node: Some(node), ..range(UNKNOWN, PAGEBLOCK).into() };
        let error = AddError::Range(RangeError { range: first, kind: RangeErrorKind::OtherNode });
        // The refusal is the same while the memory of the first node is being added, is present, or
        // is device memory.
        let addition = instance.hotplug.prepare_add(first).unwrap();
        instance.assert_refused(error, |instance| instance.hotplug.add(beside));
        instance.hotplug.commit_add(addition);
        instance.assert_refused(error, |instance| instance.hotplug.prepare_add(beside).map(drop));
        instance.assert_refused(error, |instance| {
            instance.hotplug.add(AddRequest { device: true, ..beside })
        });
        instance.hotplug.remove(first).unwrap();
        instance.hotplug.add(AddRequest { device: true, ..first.into() }).unwrap();
        instance.assert_refused(error, |instance| instance.hotplug.add(beside));
        instance.hotplug.detach_raw(first).unwrap();
        instance.hotplug.add(beside).unwrap();
        let nodes = [UNKNOWN, UNKNOWN + PAGEBLOCK].map(|frame| instance.frames.node_of(pfn(frame)));
        assert_eq!(nodes, [Some(node), None]);
    });
}

#[test]
fn adding_without_memory_for_the_words_is_refused() {
    with_instance(|instance| {
        let target = range(DISTANT_PFN, SECTION);
        instance.hotplug.announce(target).unwrap();
        instance.exhaust();
        // Use up the word reserve as well.
        let farther = range(2 * DISTANT_PFN, SECTION);
        instance.hotplug.announce(farther).unwrap();
        hotmem_testkit::make_words(&mut instance.hotplug, farther);
        let before = Snapshot::of(&instance.hotplug, SECTIONS * SECTION, &instance.allocations);
        assert!(matches!(instance.hotplug.add(target), Err(AddError::NoMetadata(_))));
        assert_eq!(
            Snapshot::of(&instance.hotplug, SECTIONS * SECTION, &instance.allocations),
            before
        );
        for kernel in instance.allocations.extract_if(.., |used| used.start() < pfn(SECTION)) {
            instance.frames.free_range(kernel).unwrap();
        }
        instance.hotplug.add(target).unwrap();
    });
}

#[test]
fn calls_for_announced_memory_that_was_never_added_are_refused() {
    with_instance(|instance| {
        let far = range(DISTANT_PFN, 2 * SECTION);
        instance.hotplug.announce(far).unwrap();
        let first = range(DISTANT_PFN, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: first, kind: RangeErrorKind::NotPresent },
            |instance| instance.hotplug.remove(far),
        );
        instance.assert_refused(
            RangeError { range: first, kind: RangeErrorKind::NotPresent },
            |instance| instance.hotplug.online(far, OnlineType::Kernel, &mut NoHooks),
        );
        instance.assert_refused(
            RangeError { range: first, kind: RangeErrorKind::NotOnline },
            |instance| instance.hotplug.offline(far).map(drop),
        );
        instance.assert_refused(
            RangeError { range: first, kind: RangeErrorKind::NotDevice },
            |instance| instance.hotplug.detach_raw(far),
        );
        let offline = range(OFFLINE, 2 * PAGEBLOCK);
        let foreign = RangeError { range: first, kind: RangeErrorKind::Foreign };
        instance.assert_refused(foreign, |instance| {
            instance.frames.free_range(range(DISTANT_PFN, 2 * PAGEBLOCK))
        });
        let foreign = RangeError { range: offline.split_at(pfn(OFFLINE + PAGEBLOCK)).0, ..foreign };
        instance.assert_refused(foreign, |instance| instance.frames.free_range(offline));
        instance.assert_refused(
            RangeError { range: first, kind: RangeErrorKind::NotOnline },
            |instance| instance.frames.isolate(far).map(drop),
        );
        assert_eq!(instance.hotplug.state_at(far.start(), far.end()), (far, State::Absent));
    });
}

#[test]
fn withdrawing_memory_that_is_in_use_is_refused() {
    with_instance(|instance| {
        let present = range(ONLINE, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: present, kind: RangeErrorKind::Present },
            |instance| instance.hotplug.withdraw(instance.region),
        );
        let empty = instance.hotplug.announce(range(UNKNOWN, SECTION)).unwrap();
        let held = range(UNKNOWN, PAGEBLOCK);
        let addition = instance.hotplug.prepare_add(held).unwrap();
        instance
            .assert_refused(RangeError { range: held, kind: RangeErrorKind::Held }, |instance| {
                instance.hotplug.withdraw(empty)
            });
        drop(addition);
        instance.hotplug.withdraw(empty).unwrap();
        let unknown =
            RangeError { range: range(UNKNOWN, SECTION), kind: RangeErrorKind::NotAnnounced };
        instance.assert_refused(unknown, |instance| instance.hotplug.withdraw(empty));
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
    with_instance(|instance| {
        let add = |instance: &mut Instance<'_>, range| instance.hotplug.add(range);
        for odd in [range(ABSENT, 0), range(ABSENT + 1, PAGEBLOCK), range(ABSENT, PAGEBLOCK + 1)] {
            instance.assert_refused(
                AddError::Range(RangeError { range: odd, kind: RangeErrorKind::Unaligned }),
                |instance| add(instance, odd),
            );
        }
        for stray in [range(UNKNOWN, PAGEBLOCK), range(UNKNOWN - PAGEBLOCK, 2 * PAGEBLOCK)] {
            instance.assert_refused(
                AddError::Range(RangeError { range: stray, kind: RangeErrorKind::NotAnnounced }),
                |instance| add(instance, stray),
            );
        }
        let last_block = range(ABSENT - PAGEBLOCK, PAGEBLOCK);
        instance.assert_refused(
            AddError::Range(RangeError { range: last_block, kind: RangeErrorKind::Present }),
            |instance| add(instance, range(ABSENT - PAGEBLOCK, 2 * PAGEBLOCK)),
        );
        instance.assert_refused(
            AddError::Range(RangeError {
                range: range(ONLINE, PAGEBLOCK),
                kind: RangeErrorKind::Present,
            }),
            |instance| add(instance, range(ONLINE, SECTION)),
        );
        let held = range(ABSENT + PAGEBLOCK, PAGEBLOCK);
        let addition = instance.hotplug.prepare_add(held).unwrap();
        instance.assert_refused(
            AddError::Range(RangeError { range: held, kind: RangeErrorKind::Held }),
            |instance| add(instance, range(ABSENT, SECTION)),
        );
        drop(addition);
        add(instance, range(ABSENT, SECTION)).unwrap();
    });
}

#[test]
fn adding_without_frames_for_page_tables_is_refused() {
    with_instance(|instance| {
        let target = range(ABSENT, SECTION);
        // Make the words before, so that the additions below need frames only for page tables.
        drop(instance.hotplug.prepare_add(target).unwrap());
        let no_tables = |frames, error| AddError::NoTables { frames, error };
        let error = no_tables(SECTION, AllocError::OutOfMemory);
        instance.assert_refused(error, |instance| {
            with_kernel(&mut instance.hotplug, &mut Tables(SECTION), |hotplug, _| {
                hotplug.add(target)
            })
        });
        let error = no_tables(u64::MAX, AllocError::Bad(BadRequest::TooLong { frames: u64::MAX }));
        instance.assert_refused(error, |instance| {
            with_kernel(&mut instance.hotplug, &mut Tables(u64::MAX), |hotplug, _| {
                hotplug.add(target)
            })
        });
        instance.exhaust();
        let error = no_tables(1, AllocError::OutOfMemory);
        instance.assert_refused(error, |instance| {
            with_kernel(&mut instance.hotplug, &mut Tables(1), |hotplug, _| hotplug.add(target))
        });
        with_kernel(&mut instance.hotplug, &mut Tables(0), |hotplug, _| hotplug.add(target))
            .unwrap();
    });
}

#[test]
fn adding_memory_that_the_kernel_cannot_map_is_refused() {
    with_instance(|instance| {
        let target = range(ABSENT, SECTION);
        let vetoed =
            AddError::Range(RangeError { range: target, kind: RangeErrorKind::Vetoed(CANNOT_MAP) });
        instance.assert_refused(vetoed, |instance| {
            with_kernel(&mut instance.hotplug, &mut Tables(UNMAPPABLE), |hotplug, _| {
                hotplug.add(target)
            })
        });
        instance.hotplug.add(target).unwrap();
    });
}

#[test]
fn putting_bad_ranges_online_is_refused() {
    with_instance(|instance| {
        let online = |instance: &mut Instance<'_>, range| {
            instance.hotplug.online(range, OnlineType::Online, &mut NoHooks)
        };
        for odd in [range(OFFLINE, 0), range(OFFLINE + 1, PAGEBLOCK), range(OFFLINE, PAGEBLOCK + 1)]
        {
            instance.assert_refused(
                RangeError { range: odd, kind: RangeErrorKind::Unaligned },
                |instance| online(instance, odd),
            );
        }
        let absent = range(ABSENT, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: absent, kind: RangeErrorKind::NotPresent },
            |instance| online(instance, range(OFFLINE, 2 * SECTION)),
        );
        let stray = range(UNKNOWN, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: stray, kind: RangeErrorKind::NotPresent },
            |instance| online(instance, stray),
        );
        let twice = range(OFFLINE - PAGEBLOCK, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: twice, kind: RangeErrorKind::Online },
            |instance| online(instance, range(OFFLINE - PAGEBLOCK, SECTION)),
        );
        let removal = instance.hotplug.prepare_remove(range(OFFLINE, PAGEBLOCK)).unwrap();
        instance.assert_refused(
            RangeError { range: removal.range(), kind: RangeErrorKind::Held },
            |instance| online(instance, range(OFFLINE, SECTION)),
        );
        instance.hotplug.abandon_remove(removal, &mut NoHooks);
        online(instance, range(OFFLINE, SECTION)).unwrap();
    });
}

#[test]
fn taking_bad_ranges_offline_is_refused() {
    with_instance(|instance| {
        let offline =
            |instance: &mut Instance<'_>, range| instance.hotplug.offline(range).map(|_| ());
        for odd in [range(ONLINE, 0), range(ONLINE + 1, PAGEBLOCK), range(ONLINE, PAGEBLOCK + 1)] {
            instance.assert_refused(
                RangeError { range: odd, kind: RangeErrorKind::Unaligned },
                |instance| offline(instance, odd),
            );
        }
        let already = range(OFFLINE, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: already, kind: RangeErrorKind::NotOnline },
            |instance| offline(instance, range(ONLINE, 2 * SECTION)),
        );
        let stray = range(ONLINE - PAGEBLOCK, 2 * PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: stray, kind: RangeErrorKind::NotOnline },
            |instance| offline(instance, stray),
        );
    });
}

#[test]
fn removing_bad_ranges_is_refused() {
    with_instance(|instance| {
        let remove = |instance: &mut Instance<'_>, range| instance.hotplug.remove(range);
        for odd in [range(OFFLINE, 0), range(OFFLINE + 1, PAGEBLOCK), range(OFFLINE, PAGEBLOCK + 1)]
        {
            instance.assert_refused(
                RangeError { range: odd, kind: RangeErrorKind::Unaligned },
                |instance| remove(instance, odd),
            );
        }
        let online = range(OFFLINE - PAGEBLOCK, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: online, kind: RangeErrorKind::Online },
            |instance| remove(instance, range(OFFLINE - PAGEBLOCK, 2 * PAGEBLOCK)),
        );
        instance.assert_refused(
            RangeError { range: range(0, PAGEBLOCK), kind: RangeErrorKind::Online },
            |instance| remove(instance, range(0, SECTION)),
        );
        let absent = range(ABSENT, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: absent, kind: RangeErrorKind::NotPresent },
            |instance| remove(instance, range(ABSENT - PAGEBLOCK, 2 * PAGEBLOCK)),
        );
        let stray = range(UNKNOWN, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: stray, kind: RangeErrorKind::NotPresent },
            |instance| remove(instance, stray),
        );
        let removal = instance.hotplug.prepare_remove(range(OFFLINE, PAGEBLOCK)).unwrap();
        instance.assert_refused(
            RangeError { range: removal.range(), kind: RangeErrorKind::Held },
            |instance| remove(instance, range(OFFLINE, SECTION)),
        );
        instance.hotplug.abandon_remove(removal, &mut NoHooks);
        remove(instance, range(OFFLINE, SECTION)).unwrap();
    });
}

#[test]
fn isolating_bad_ranges_is_refused() {
    with_instance(|instance| {
        let isolate = |instance: &Instance<'_>, range| {
            instance.frames.isolate(range).map(|token| token.range())
        };
        for odd in [range(ONLINE, 0), range(ONLINE + 1, PAGEBLOCK), range(ONLINE, PAGEBLOCK + 1)] {
            instance.assert_refused(
                RangeError { range: odd, kind: RangeErrorKind::Unaligned },
                |instance| isolate(instance, odd),
            );
        }
        let offline = range(OFFLINE, PAGEBLOCK);
        instance.assert_refused(
            RangeError { range: offline, kind: RangeErrorKind::NotOnline },
            |instance| isolate(instance, range(ONLINE, 2 * SECTION)),
        );
        let frames = instance.frames;
        let held = frames.isolate(range(ONLINE + PAGEBLOCK, PAGEBLOCK)).unwrap();
        instance.assert_refused(
            RangeError { range: held.range(), kind: RangeErrorKind::Isolated },
            |instance| isolate(instance, range(ONLINE, SECTION)),
        );
        held.release();
    });
}

#[test]
fn bad_alignments_are_refused_although_the_fast_path_has_memory() {
    with_instance(|instance| {
        for frames in [1, 2, BITMAP_WORD_FRAMES + 1, LONGEST_RUN, PAGEBLOCK] {
            let request = AllocRequest::frames(frames);
            drop(instance.frames.alloc(request).unwrap());
            for align in [0, 3, u64::MAX] {
                let error = AllocError::Bad(BadRequest::Alignment { frames: align });
                instance.assert_refused(error, |instance| {
                    instance.frames.alloc_range(request.aligned(align))
                });
            }
        }
    });
}

#[test]
fn bad_allocation_requests_are_refused() {
    with_instance(|instance| {
        let bad = |instance: &mut Instance<'_>, request: AllocRequest, bad| {
            instance.assert_refused(AllocError::Bad(bad), |instance| {
                instance.frames.alloc_range(request)
            });
        };
        bad(instance, AllocRequest::frames(0), BadRequest::Empty);
        bad(instance, AllocRequest::order(64), BadRequest::Empty);
        for align in [0, 3, u64::MAX] {
            bad(
                instance,
                AllocRequest::frames(1).aligned(align),
                BadRequest::Alignment { frames: align },
            );
        }
        for frames in [PFN_LIMIT + 1, u64::MAX] {
            bad(instance, AllocRequest::frames(frames), BadRequest::TooLong { frames });
        }
        bad(instance, AllocRequest::frames(1).aligned(1 << 63), BadRequest::TooLong { frames: 1 });
        bad(instance, AllocRequest::frames(1).at(Pfn::LIMIT), BadRequest::Place(Pfn::LIMIT));
        bad(
            instance,
            AllocRequest::frames(2).at(pfn(8)).within(..pfn(9)),
            BadRequest::Place(pfn(8)),
        );
        bad(instance, AllocRequest::frames(2).at(pfn(8)).aligned(16), BadRequest::Place(pfn(8)));
        let out_of_memory = AllocError::OutOfMemory;
        instance.assert_refused(out_of_memory, |instance| {
            instance.frames.alloc_range(AllocRequest::frames(1).within(..Pfn::ZERO))
        });
        instance.assert_refused(out_of_memory, |instance| {
            instance.frames.alloc_range(AllocRequest::frames(PFN_LIMIT))
        });
        instance.assert_refused(out_of_memory, |instance| {
            instance.frames.alloc_range(AllocRequest::frames(2 * SECTION).movable())
        });
        // Only the boot section is kernel memory, and a part of it is metadata.
        instance.assert_refused(out_of_memory, |instance| {
            instance.frames.alloc_range(AllocRequest::frames(SECTION))
        });
    });
}

#[test]
fn allocating_an_exact_place_that_is_not_free_is_refused() {
    with_instance(|instance| {
        let at = |instance: &Instance<'_>, place: PfnRange| {
            instance
                .frames
                .alloc_range(AllocRequest::frames(place.frames()).at(place.start()).movable())
        };
        let not_free = AllocError::NotFree;
        let taken = at(instance, range(ONLINE + PAGEBLOCK + 3, 1)).unwrap();
        instance.allocations.push(taken);
        instance.assert_refused(not_free(taken), |instance| at(instance, taken));
        // The frames before and after `taken` are free, and stay free.
        let block = range(ONLINE + PAGEBLOCK, PAGEBLOCK);
        instance.assert_refused(not_free(block), |instance| {
            at(instance, range(ONLINE + 1, 3 * PAGEBLOCK))
        });
        instance.assert_refused(not_free(range(ONLINE + PAGEBLOCK, 4)), |instance| {
            at(instance, range(ONLINE + 1, PAGEBLOCK + 3))
        });
        instance.assert_refused(not_free(range(OFFLINE, 1)), |instance| {
            at(instance, range(OFFLINE, 1))
        });
        instance.assert_refused(not_free(range(UNKNOWN, 1)), |instance| {
            at(instance, range(UNKNOWN, 1))
        });
        // A request that is not movable does not get a place in movable memory.
        let kernel = AllocRequest::frames(1).at(pfn(ONLINE));
        instance.assert_refused(not_free(range(ONLINE, 1)), |instance| {
            instance.frames.alloc_range(kernel)
        });
        let frames = instance.frames;
        let held = frames.isolate(range(ONLINE, PAGEBLOCK)).unwrap();
        instance
            .assert_refused(not_free(range(ONLINE, 1)), |instance| at(instance, range(ONLINE, 1)));
        held.release();
    });
}

#[test]
fn an_exact_place_lies_in_one_region() {
    with_instance(|instance| {
        let next = range(UNKNOWN, PAGEBLOCK);
        instance.hotplug.announce(next).unwrap();
        for part in [range(ABSENT, SECTION), next] {
            instance.hotplug.add(part).unwrap();
            instance.hotplug.online(part, OnlineType::Kernel, &mut NoHooks).unwrap();
        }
        let both = range(UNKNOWN - 1, 2);
        let request = AllocRequest::frames(2).at(both.start());
        instance.assert_refused(AllocError::NotFree(both), |instance| {
            instance.frames.alloc_range(request)
        });
    });
}

#[test]
fn freeing_bad_ranges_is_refused() {
    with_instance(|instance| {
        let refused = |range, kind| RangeError { range, kind };
        let empty = range(ONLINE, 0);
        instance.assert_refused(refused(empty, RangeErrorKind::Empty), |instance| {
            instance.frames.free_range(empty)
        });
        for foreign in [
            range(UNKNOWN, 1),
            range(ABSENT, 1),
            range(OFFLINE + 7, 3),
            range(UNKNOWN - 1, 2),
            range(PFN_LIMIT - 1, 1),
        ] {
            instance.assert_refused(refused(foreign, RangeErrorKind::Foreign), |instance| {
                instance.frames.free_range(foreign)
            });
        }
        for request in [
            AllocRequest::frames(1),
            AllocRequest::frames(3),
            AllocRequest::frames(PAGEBLOCK),
            AllocRequest::frames(2 * PAGEBLOCK),
        ] {
            let allocated = instance.frames.alloc_range(request.movable()).unwrap();
            instance.frames.free_range(allocated).unwrap();
            let first = allocated.chunks(PAGEBLOCK).next().unwrap();
            let twice = refused(first, RangeErrorKind::NotAllocated);
            instance.assert_refused(twice, |instance| instance.frames.free_range(allocated));
        }
    });
}

#[test]
fn freeing_more_than_was_allocated_is_refused() {
    with_instance(|instance| {
        let allocated = instance.alloc(AllocRequest::frames(BITMAP_WORD_FRAMES).movable());
        let longer = range(allocated.start().number(), BITMAP_WORD_FRAMES + 1);
        let refused = RangeError { range: longer, kind: RangeErrorKind::NotAllocated };
        instance.assert_refused(refused, |instance| instance.frames.free_range(longer));
        let two_blocks = instance.alloc(AllocRequest::frames(2 * PAGEBLOCK).movable());
        let longer = range(two_blocks.start().number(), 3 * PAGEBLOCK);
        let third = range(two_blocks.start().number() + 2 * PAGEBLOCK, PAGEBLOCK);
        let refused = RangeError { range: third, kind: RangeErrorKind::NotAllocated };
        instance.assert_refused(refused, |instance| instance.frames.free_range(longer));
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
    assert_eq!(start(&[], &[], Pfn::LIMIT), Err(BootError::NoRam));
    assert_eq!(start(&[bytes(1, 4096)], &[], Pfn::LIMIT), Err(BootError::NoRam));
    assert_eq!(start(&[all], &[all], Pfn::LIMIT), Err(BootError::NoMemory));
    for wrong in [bytes(u64::MAX, 2), bytes(1 << 52, 4096), bytes(0, u64::MAX)] {
        let error = Err(BootError::BeyondPhysicalLimit(wrong));
        assert_eq!(start(&[all, wrong], &[], Pfn::LIMIT), error);
    }
    assert!(matches!(start(&[all], &[], Pfn::ZERO), Err(BootError::NoMetadata(_))));
    assert!(matches!(start(&[bytes(0, 4096)], &[], Pfn::LIMIT), Err(BootError::NoMetadata(_))));
    assert_eq!(frames.counts(), Counts::default());
    assert_eq!(start(&[all], &[], Pfn::LIMIT), Ok(()));
    assert_eq!(start(&[all], &[], Pfn::LIMIT), Err(BootError::AlreadyStarted));
    frames.validated().unwrap();
}

/// Entries of firmware's map that say nothing about memory that the engine can use.
#[test]
fn useless_entries_of_a_boot_map_are_ignored() {
    let bytes = |start, len| BootRange { start, len: Bytes(len) };
    let all = bytes(0, SECTION * FRAME_SIZE);
    let useless =
        [bytes(u64::MAX, 0), bytes(1 << 52, 0), bytes(1 << 52, 1), bytes(u64::MAX - 4095, 4095)];
    let beyond = [bytes(u64::MAX, 2), bytes(1 << 52, 1 << 30), bytes(u64::MAX - 4095, 8192)];
    let free_frames = |ram: &[BootRange], reserved: &[BootRange], nodes: &[_]| {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(SECTION));
        let map = BootMap { reserved, nodes, ..BootMap::from(ram) };
        hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
        frames.validated().unwrap().free
    };
    let expected = free_frames(&[all], &[], &[]);
    for entry in useless {
        assert_eq!(free_frames(&[all, entry], &[], &[]), expected, "{entry:?}");
    }
    for entry in useless.into_iter().chain(beyond) {
        let nodes = [(entry, NodeId(1))];
        assert_eq!(free_frames(&[all], &[entry], &nodes), expected, "{entry:?}");
    }
    // A range that wraps is reserved up to the end of the address space.
    let upper_half = bytes(all.len.0 / 2, u64::MAX);
    assert!(free_frames(&[all], &[upper_half], &[]) < SECTION / 2);
}
