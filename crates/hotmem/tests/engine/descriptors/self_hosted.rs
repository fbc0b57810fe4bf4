//! Tests where descriptors are placed, and which removals must wait for them.

use super::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::Raw as _;
use hotmem_testkit::RawReserved as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::with_kernel;

/// The first frame of the section that most tests add as a whole.
const WHOLE_SECTION: u64 = 3 * SECTION;

#[test]
fn a_section_holds_its_own_descriptors() {
    on_a_machine(|m| {
        while m.frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
        let section = range(WHOLE_SECTION, SECTION);
        m.plug(section);
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let counts = m.frames.counts_in(section);
        assert_eq!((counts.online, counts.free), (SECTION, SECTION - PAGEBLOCK));
        let of_section = Metadata { frames: descriptor_block, describes: section };
        assert!(m.frames.metadata().any(|metadata| metadata == of_section));
        let zone = m.hotplug.zone(NodeId::ZERO, Zone::Movable);
        assert_eq!((zone.spanned, zone.managed), (section, SECTION - PAGEBLOCK));
        assert!(zone.contiguous);
        // A scan counts the pageblock with descriptors as used, so it is skipped as a free place.
        let mut used = vec![];
        m.hotplug.occupancy(section, |block, frames| used.push((block, frames)));
        assert_eq!(used[0], (descriptor_block, PAGEBLOCK));
        assert!(used[1..].iter().all(|&(_, frames)| frames == 0));
        while let Ok(allocated) = m.frames.alloc_range(AllocRequest::frames(1).movable()) {
            assert!(!allocated.overlaps(descriptor_block));
        }
        // Descriptors of a part of a section need free memory.
        let part = range(WHOLE_SECTION + SECTION, 2 * PAGEBLOCK);
        let refused = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part));
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(AddError::NoTables { frames: 2, error }));
    });
}

#[test]
fn pageblocks_with_descriptors_have_no_other_use() {
    on_a_machine(|m| {
        let section = range(WHOLE_SECTION, SECTION);
        m.plug(section);
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let before = m.snapshot(&[]);
        for part in [descriptor_block, range(WHOLE_SECTION, 1), section] {
            assert!(matches!(m.frames.free_range(part), Err(RangeError { .. })), "{part}");
        }
        let at = AllocRequest::frames(1).at(pfn(WHOLE_SECTION)).movable();
        assert_eq!(m.frames.alloc_range(at), Err(AllocError::NotFree(range(WHOLE_SECTION, 1))));
        assert_eq!(
            m.hotplug.poison(pfn(WHOLE_SECTION + 1)),
            Err(RangeError { range: descriptor_block, kind: RangeErrorKind::Metadata })
        );
        let token = m.frames.isolate(section).unwrap();
        assert_eq!(token.in_use(), None);
        let held = RangeError { range: descriptor_block, kind: RangeErrorKind::Isolated };
        assert_eq!(m.frames.isolate(descriptor_block).err(), Some(held));
        token.release();
        assert_eq!(m.snapshot(&[]), before);
        let token = m.frames.isolate(section).unwrap();
        token.mark_reported().unwrap();
        assert_eq!(m.frames.counts().reported, SECTION - PAGEBLOCK);
        m.frames.validated().unwrap();
    });
}

#[test]
fn pageblocks_with_descriptors_are_removed_with_the_last_memory_that_they_describe() {
    on_a_machine(|m| {
        let section = range(WHOLE_SECTION, SECTION);
        m.plug(section);
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let before = m.snapshot(&[]);
        // The pageblock with descriptors can be taken offline like any other, but is not removed.
        m.take_offline(descriptor_block);
        let refused = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.remove(descriptor_block)
        });
        assert_eq!(
            refused,
            Err(RangeError { range: descriptor_block, kind: RangeErrorKind::HoldsDescriptors })
        );
        assert_eq!(
            with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug
                .ram_to_device(descriptor_block)),
            refused
        );
        m.hotplug.online(descriptor_block, OnlineType::AsBefore, &mut m.kernel).unwrap();
        assert_eq!(m.snapshot(&[]), before);

        // A pageblock in use cannot be migrated, so it stays, and its descriptors stay.
        let pinned = m
            .frames
            .alloc_range(
                AllocRequest::frames(PAGEBLOCK).at(pfn(WHOLE_SECTION + PAGEBLOCK)).movable(),
            )
            .unwrap();
        let (left, _) = m.shrink(section, SECTION);
        assert_eq!(left, 2 * PAGEBLOCK);
        let remaining_range = range(WHOLE_SECTION, 2 * PAGEBLOCK);
        let remaining = m.hotplug.state_at(section.start(), section.end());
        assert_eq!(remaining, (remaining_range, State::OnlineMovable));
        // Memory that is added again has its descriptors in the same place.
        m.plug(range(WHOLE_SECTION + 2 * PAGEBLOCK, SECTION - 2 * PAGEBLOCK));
        assert_eq!(m.snapshot(&[pinned]), {
            m.frames.free_range(pinned).unwrap();
            let again = m.snapshot(&[]);
            assert_eq!(again, before);
            assert_eq!(
                m.frames.alloc_range(AllocRequest::frames(PAGEBLOCK).at(pinned.start()).movable()),
                Ok(pinned)
            );
            m.snapshot(&[pinned])
        });
        m.frames.free_range(pinned).unwrap();
        assert_eq!(m.shrink(section, SECTION), (0, None));
        assert!(m.kernel.descriptor_places.is_empty());
        assert!(!m.frames.metadata().any(|metadata| metadata.frames.overlaps(section)));
    });
}

#[test]
fn descriptors_of_memory_that_stays_are_the_only_blocker() {
    on_a_machine(|m| {
        m.plug(range(WHOLE_SECTION, SECTION));
        m.take_offline(range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK));
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let blocker = Blocker { range: descriptor_block, kind: BlockerKind::Metadata };
        assert_eq!(m.shrink(range(WHOLE_SECTION, SECTION), PAGEBLOCK), (PAGEBLOCK, Some(blocker)));
    });
}

/// If pageblocks with descriptors needed bitmaps, the section's bitmaps and its descriptors would
/// prevent each other's removal for ever.
#[test]
fn pageblocks_with_descriptors_need_no_bitmaps() {
    on_a_machine(|m| {
        while m.frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
        let section = range(WHOLE_SECTION, SECTION);
        m.plug(section);
        let last_block = range(WHOLE_SECTION + SECTION - PAGEBLOCK, PAGEBLOCK);
        let divided =
            m.frames.alloc_range(AllocRequest::frames(1).at(last_block.start()).movable()).unwrap();
        let is_bitmaps = |metadata: Metadata| metadata.frames.frames() == 1;
        let mut in_last_block =
            m.frames.metadata().filter(|metadata| last_block.covers(metadata.frames));
        assert!(in_last_block.any(is_bitmaps));
        m.frames.free_range(divided).unwrap();
        let between = range(WHOLE_SECTION + PAGEBLOCK, SECTION - 2 * PAGEBLOCK);
        m.take_offline(between);
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.remove(between)).unwrap();
        assert_eq!(m.shrink(section, 2 * PAGEBLOCK), (0, None));
        m.frames.validated().unwrap();
    });
}

#[test]
fn descriptors_stay_while_memory_that_they_describe_is_being_added() {
    on_a_machine(|m| {
        m.plug(range(WHOLE_SECTION, SECTION));
        assert_eq!(
            m.shrink(range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK), SECTION),
            (PAGEBLOCK, None)
        );
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let addition = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.prepare_add(range(WHOLE_SECTION + PAGEBLOCK, PAGEBLOCK))
        })
        .unwrap();
        assert_eq!(addition.tables().frames(), 0);
        let blocker = Blocker { range: descriptor_block, kind: BlockerKind::Metadata };
        assert_eq!(m.shrink(descriptor_block, PAGEBLOCK), (PAGEBLOCK, Some(blocker)));
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.commit_add(addition))
            .unwrap();
        assert_eq!(
            m.kernel.descriptor_places.get(&(WHOLE_SECTION / PAGEBLOCK + 1)),
            Some(&Place::ItsSection)
        );
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.remove(range(WHOLE_SECTION + PAGEBLOCK, PAGEBLOCK))
        })
        .unwrap();
        assert_eq!(m.shrink(descriptor_block, PAGEBLOCK), (0, None));
    });
}

#[test]
fn memory_is_not_added_while_its_descriptor_block_is_being_removed() {
    on_a_machine(|m| {
        m.plug(range(WHOLE_SECTION, SECTION));
        let rest = range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK);
        assert_eq!(m.shrink(rest, SECTION), (PAGEBLOCK, None));
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let device = range(WHOLE_SECTION + PAGEBLOCK, PAGEBLOCK);
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest { device: true, ..device.into() })
        })
        .unwrap();
        m.take_offline(descriptor_block);
        let leaving = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.prepare_remove(descriptor_block)
        })
        .unwrap();
        let part = range(WHOLE_SECTION + 2 * PAGEBLOCK, PAGEBLOCK);
        assert_eq!(
            with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part)),
            Err(AddError::Range(RangeError {
                range: descriptor_block,
                kind: RangeErrorKind::Held
            }))
        );
        let refused = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(device, OnlineType::Offline, hooks)
        });
        assert_eq!(
            refused,
            Err(AddError::Range(RangeError {
                range: descriptor_block,
                kind: RangeErrorKind::Held
            }))
        );
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.abandon_remove(leaving, hooks)
        })
        .unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part)).unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(device, OnlineType::Offline, hooks)
        })
        .unwrap();
        m.frames.validated().unwrap();
    });
}

#[test]
fn a_removal_is_not_split_so_that_a_part_loses_its_descriptors() {
    on_a_machine(|m| {
        let sections = range(WHOLE_SECTION, 2 * SECTION);
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(sections)).unwrap();
        let removal = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.prepare_remove(sections)
        })
        .unwrap();
        let removal = removal.split_at(pfn(WHOLE_SECTION + PAGEBLOCK)).unwrap_err();
        assert_eq!(removal.range(), sections);
        let (removed, remaining_removal) = removal.split_at(pfn(WHOLE_SECTION + SECTION)).unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.commit_remove(removed))
            .unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.abandon_remove(remaining_removal, hooks)
        })
        .unwrap();
        assert_eq!(
            m.kernel.descriptor_blocks().collect::<Vec<_>>(),
            [range(WHOLE_SECTION + SECTION, PAGEBLOCK)]
        );
        // A removal without descriptors can be split anywhere.
        let part = range(WHOLE_SECTION, 2 * PAGEBLOCK);
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part)).unwrap();
        let removal =
            with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.prepare_remove(part))
                .unwrap();
        let (removed, remaining_removal) =
            removal.split_at(pfn(WHOLE_SECTION + PAGEBLOCK)).unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.commit_remove(removed))
            .unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.abandon_remove(remaining_removal, hooks)
        })
        .unwrap();
        m.frames.validated().unwrap();
    });
}

#[test]
fn descriptors_are_written_to_device_memory_only_after_the_listeners_agree() {
    on_a_machine(|m| {
        let section = range(WHOLE_SECTION, SECTION);
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest { device: true, ..section.into() })
        })
        .unwrap();
        assert!(m.kernel.descriptor_places.is_empty());
        m.kernel.vetoes = true;
        let refused = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Movable, hooks)
        });
        assert!(matches!(
            refused,
            Err(AddError::Range(RangeError { kind: RangeErrorKind::Vetoed(_), .. }))
        ));
        assert!(m.kernel.descriptor_places.is_empty() && m.kernel.undescribe_calls == 0);
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks)
        })
        .unwrap();
        assert_eq!(
            m.kernel.descriptor_blocks().collect::<Vec<_>>(),
            [range(WHOLE_SECTION, PAGEBLOCK)]
        );
        // Poisoned memory can have descriptors, but cannot hold any.
        let bad = pfn(WHOLE_SECTION + PAGEBLOCK);
        assert_eq!(m.hotplug.poison(bad), Ok(Poisoned::Quarantined));
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.ram_to_device(section))
            .unwrap();
        assert!(m.kernel.descriptor_places.is_empty());
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks)
        })
        .unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.ram_to_device(section))
            .unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.detach_raw(section))
            .unwrap();

        let part = range(WHOLE_SECTION, 2 * PAGEBLOCK);
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest { device: true, ..part.into() })
        })
        .unwrap();
        while m.frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
        let refused = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(part, OnlineType::Movable, hooks)
        });
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(AddError::NoTables { frames: 2, error }));
        assert_eq!(m.hotplug.state_at(part.start(), part.end()), (part, State::Device));
    });
}

#[test]
fn device_memory_with_poison_where_descriptors_would_lie_does_not_become_ram() {
    on_a_machine(|m| {
        let part = range(WHOLE_SECTION, PAGEBLOCK);
        m.plug(part);
        m.take_offline(part);
        let bad = range(WHOLE_SECTION + 3, 1);
        assert_eq!(m.hotplug.poison(bad.start()), Ok(Poisoned::Quarantined));
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.ram_to_device(part))
            .unwrap();
        with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest {
                device: true,
                ..range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK).into()
            })
        })
        .unwrap();
        let section = range(WHOLE_SECTION, SECTION);
        let refused = with_kernel(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks)
        });
        assert_eq!(
            refused,
            Err(AddError::Range(RangeError { range: bad, kind: RangeErrorKind::Poisoned }))
        );
        assert_eq!(m.hotplug.state_at(section.start(), section.end()), (section, State::Device));
    });
}
