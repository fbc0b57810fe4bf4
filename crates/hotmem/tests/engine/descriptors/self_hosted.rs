//! Tests where descriptors are placed, and which removals must wait for them.

use super::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;

/// The first frame of the section that most tests add as a whole.
const WHOLE_SECTION: u64 = 3 * SECTION;

#[test]
fn a_section_holds_its_own_descriptors() {
    with_instance(|instance| {
        while instance.frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
        let section = range(WHOLE_SECTION, SECTION);
        instance.plug(section);
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let counts = instance.frames.counts_in(section);
        assert_eq!((counts.online, counts.free), (SECTION, SECTION - PAGEBLOCK));
        let of_section = Metadata { frames: descriptor_block, describes: section };
        assert!(instance.frames.metadata().any(|metadata| metadata == of_section));
        let zone = instance.hotplug.zone(NodeId::ZERO, Zone::Movable);
        assert_eq!(zone.spanned, section);
        assert!(zone.contiguous);
        // A scan counts the pageblock with descriptors as used, so it is skipped as a free place.
        let mut used = vec![];
        instance.hotplug.occupancy(section, |block, frames| used.push((block, frames)));
        assert_eq!(used[0], (descriptor_block, PAGEBLOCK));
        assert!(used[1..].iter().all(|&(_, frames)| frames == 0));
        while let Ok(allocated) = instance.frames.alloc_range(AllocRequest::frames(1).movable()) {
            assert!(!allocated.overlaps(descriptor_block));
        }
        // Descriptors of a part of a section need free memory.
        let part = range(WHOLE_SECTION + SECTION, 2 * PAGEBLOCK);
        let refused = instance.with(|hotplug, _| hotplug.add(part));
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(AddError::NoTables { frames: 2, error }));
    });
}

#[test]
fn pageblocks_with_descriptors_have_no_other_use() {
    with_instance(|instance| {
        let section = range(WHOLE_SECTION, SECTION);
        instance.plug(section);
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let before = instance.snapshot(&[]);
        for part in [descriptor_block, range(WHOLE_SECTION, 1), section] {
            assert!(matches!(instance.frames.free_range(part), Err(RangeError { .. })), "{part}");
        }
        let at = AllocRequest::frames(1).at(pfn(WHOLE_SECTION)).movable();
        assert_eq!(
            instance.frames.alloc_range(at),
            Err(AllocError::NotFree(range(WHOLE_SECTION, 1)))
        );
        assert_eq!(
            instance.hotplug.poison(pfn(WHOLE_SECTION + 1)),
            Err(RangeError { range: descriptor_block, kind: RangeErrorKind::Metadata })
        );
        let token = instance.frames.isolate(section).unwrap();
        assert_eq!(token.in_use(), None);
        let held = RangeError { range: descriptor_block, kind: RangeErrorKind::Isolated };
        assert_eq!(instance.frames.isolate(descriptor_block).err(), Some(held));
        token.release();
        assert_eq!(instance.snapshot(&[]), before);
        let token = instance.frames.isolate(section).unwrap();
        token.mark_reported().unwrap();
        assert_eq!(instance.frames.counts().reported, SECTION - PAGEBLOCK);
        instance.frames.validated().unwrap();
    });
}

#[test]
fn pageblocks_with_descriptors_are_removed_with_the_last_memory_that_they_describe() {
    with_instance(|instance| {
        let section = range(WHOLE_SECTION, SECTION);
        instance.plug(section);
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let before = instance.snapshot(&[]);
        // The pageblock with descriptors can be taken offline like any other, but is not removed.
        instance.take_offline(descriptor_block);
        let refused = instance.with(|hotplug, _| hotplug.remove(descriptor_block));
        assert_eq!(
            refused,
            Err(RangeError { range: descriptor_block, kind: RangeErrorKind::HoldsDescriptors })
        );
        assert_eq!(instance.with(|hotplug, _| hotplug.ram_to_device(descriptor_block)), refused);
        instance
            .hotplug
            .online(descriptor_block, OnlineType::AsBefore, &mut instance.kernel)
            .unwrap();
        assert_eq!(instance.snapshot(&[]), before);

        // A pageblock in use cannot be migrated, so it stays, and its descriptors stay.
        let pinned = instance
            .frames
            .alloc_range(
                AllocRequest::frames(PAGEBLOCK).at(pfn(WHOLE_SECTION + PAGEBLOCK)).movable(),
            )
            .unwrap();
        let (left, _) = instance.shrink(section, SECTION);
        assert_eq!(left, 2 * PAGEBLOCK);
        let remaining_range = range(WHOLE_SECTION, 2 * PAGEBLOCK);
        let remaining = instance.hotplug.state_at(section.start(), section.end());
        assert_eq!(remaining, (remaining_range, State::OnlineMovable));
        // Memory that is added again has its descriptors in the same place.
        instance.plug(range(WHOLE_SECTION + 2 * PAGEBLOCK, SECTION - 2 * PAGEBLOCK));
        assert_eq!(instance.snapshot(&[pinned]), {
            instance.frames.free_range(pinned).unwrap();
            let again = instance.snapshot(&[]);
            assert_eq!(again, before);
            assert_eq!(
                instance
                    .frames
                    .alloc_range(AllocRequest::frames(PAGEBLOCK).at(pinned.start()).movable()),
                Ok(pinned)
            );
            instance.snapshot(&[pinned])
        });
        instance.frames.free_range(pinned).unwrap();
        assert_eq!(instance.shrink(section, SECTION), (0, None));
        assert!(instance.kernel.descriptor_places.is_empty());
        assert!(!instance.frames.metadata().any(|metadata| metadata.frames.overlaps(section)));
    });
}

#[test]
fn descriptors_of_memory_that_stays_are_the_only_blocker() {
    with_instance(|instance| {
        instance.plug(range(WHOLE_SECTION, SECTION));
        instance.take_offline(range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK));
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let blocker = Blocker { range: descriptor_block, kind: BlockerKind::Metadata };
        assert_eq!(
            instance.shrink(range(WHOLE_SECTION, SECTION), PAGEBLOCK),
            (PAGEBLOCK, Some(blocker))
        );
    });
}

/// If pageblocks with descriptors needed bitmaps, the section's bitmaps and its descriptors would
/// prevent each other's removal for ever.
#[test]
fn pageblocks_with_descriptors_need_no_bitmaps() {
    with_instance(|instance| {
        while instance.frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
        let section = range(WHOLE_SECTION, SECTION);
        instance.plug(section);
        let last_block = range(WHOLE_SECTION + SECTION - PAGEBLOCK, PAGEBLOCK);
        let divided = instance
            .frames
            .alloc_range(AllocRequest::frames(1).at(last_block.start()).movable())
            .unwrap();
        let is_bitmaps = |metadata: Metadata| metadata.frames.frames() == 1;
        let mut in_last_block =
            instance.frames.metadata().filter(|metadata| last_block.covers(metadata.frames));
        assert!(in_last_block.any(is_bitmaps));
        instance.frames.free_range(divided).unwrap();
        let between = range(WHOLE_SECTION + PAGEBLOCK, SECTION - 2 * PAGEBLOCK);
        instance.take_offline(between);
        instance.with(|hotplug, _| hotplug.remove(between)).unwrap();
        assert_eq!(instance.shrink(section, 2 * PAGEBLOCK), (0, None));
        instance.frames.validated().unwrap();
    });
}

#[test]
fn descriptors_stay_while_memory_that_they_describe_is_being_added() {
    with_instance(|instance| {
        instance.plug(range(WHOLE_SECTION, SECTION));
        assert_eq!(
            instance.shrink(range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK), SECTION),
            (PAGEBLOCK, None)
        );
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let addition = instance
            .with(|hotplug, _| hotplug.prepare_add(range(WHOLE_SECTION + PAGEBLOCK, PAGEBLOCK)))
            .unwrap();
        assert_eq!(addition.table_runs().count(), 0);
        let blocker = Blocker { range: descriptor_block, kind: BlockerKind::Metadata };
        assert_eq!(instance.shrink(descriptor_block, PAGEBLOCK), (PAGEBLOCK, Some(blocker)));
        instance.with(|hotplug, _| hotplug.commit_add(addition));
        assert_eq!(
            instance.kernel.descriptor_places.get(&(WHOLE_SECTION / PAGEBLOCK + 1)),
            Some(&Place::ItsSection)
        );
        instance
            .with(|hotplug, _| hotplug.remove(range(WHOLE_SECTION + PAGEBLOCK, PAGEBLOCK)))
            .unwrap();
        assert_eq!(instance.shrink(descriptor_block, PAGEBLOCK), (0, None));
    });
}

#[test]
fn memory_is_not_added_while_its_descriptor_block_is_being_removed() {
    with_instance(|instance| {
        instance.plug(range(WHOLE_SECTION, SECTION));
        let rest = range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK);
        assert_eq!(instance.shrink(rest, SECTION), (PAGEBLOCK, None));
        let descriptor_block = range(WHOLE_SECTION, PAGEBLOCK);
        let device = range(WHOLE_SECTION + PAGEBLOCK, PAGEBLOCK);
        instance
            .with(|hotplug, _| hotplug.add(AddRequest { device: true, ..device.into() }))
            .unwrap();
        instance.take_offline(descriptor_block);
        let leaving = instance.with(|hotplug, _| hotplug.prepare_remove(descriptor_block)).unwrap();
        let part = range(WHOLE_SECTION + 2 * PAGEBLOCK, PAGEBLOCK);
        assert_eq!(
            instance.with(|hotplug, _| hotplug.add(part)),
            Err(AddError::Range(RangeError {
                range: descriptor_block,
                kind: RangeErrorKind::Held
            }))
        );
        let refused = instance
            .with(|hotplug, hooks| hotplug.device_to_ram_raw(device, OnlineType::Offline, hooks));
        assert_eq!(
            refused,
            Err(AddError::Range(RangeError {
                range: descriptor_block,
                kind: RangeErrorKind::Held
            }))
        );
        instance.with(|hotplug, hooks| hotplug.abandon_remove(leaving, hooks));
        instance.with(|hotplug, _| hotplug.add(part)).unwrap();
        instance
            .with(|hotplug, hooks| hotplug.device_to_ram_raw(device, OnlineType::Offline, hooks))
            .unwrap();
        instance.frames.validated().unwrap();
    });
}

#[test]
fn a_removal_is_not_split_so_that_a_part_loses_its_descriptors() {
    with_instance(|instance| {
        let sections = range(WHOLE_SECTION, 2 * SECTION);
        instance.with(|hotplug, _| hotplug.add(sections)).unwrap();
        let removal = instance.with(|hotplug, _| hotplug.prepare_remove(sections)).unwrap();
        let removal = removal.split_at(pfn(WHOLE_SECTION + PAGEBLOCK)).unwrap_err();
        assert_eq!(removal.range(), sections);
        let (removed, remaining_removal) = removal.split_at(pfn(WHOLE_SECTION + SECTION)).unwrap();
        instance.with(|hotplug, _| hotplug.commit_remove(removed));
        instance.with(|hotplug, hooks| hotplug.abandon_remove(remaining_removal, hooks));
        assert_eq!(
            instance.kernel.descriptor_blocks().collect::<Vec<_>>(),
            [range(WHOLE_SECTION + SECTION, PAGEBLOCK)]
        );
        // A removal without descriptors can be split anywhere.
        let part = range(WHOLE_SECTION, 2 * PAGEBLOCK);
        instance.with(|hotplug, _| hotplug.add(part)).unwrap();
        let removal = instance.with(|hotplug, _| hotplug.prepare_remove(part)).unwrap();
        let (removed, remaining_removal) =
            removal.split_at(pfn(WHOLE_SECTION + PAGEBLOCK)).unwrap();
        instance.with(|hotplug, _| hotplug.commit_remove(removed));
        instance.with(|hotplug, hooks| hotplug.abandon_remove(remaining_removal, hooks));
        instance.frames.validated().unwrap();
    });
}

#[test]
fn descriptors_are_written_to_device_memory_only_after_the_listeners_agree() {
    with_instance(|instance| {
        let section = range(WHOLE_SECTION, SECTION);
        instance
            .with(|hotplug, _| hotplug.add(AddRequest { device: true, ..section.into() }))
            .unwrap();
        assert!(instance.kernel.descriptor_places.is_empty());
        instance.kernel.vetoes = true;
        let refused = instance
            .with(|hotplug, hooks| hotplug.device_to_ram_raw(section, OnlineType::Movable, hooks));
        assert!(matches!(
            refused,
            Err(AddError::Range(RangeError { kind: RangeErrorKind::Vetoed(_), .. }))
        ));
        assert!(
            instance.kernel.descriptor_places.is_empty() && instance.kernel.undescribe_calls == 0
        );
        instance
            .with(|hotplug, hooks| hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks))
            .unwrap();
        assert_eq!(
            instance.kernel.descriptor_blocks().collect::<Vec<_>>(),
            [range(WHOLE_SECTION, PAGEBLOCK)]
        );
        // Poisoned memory can have descriptors, but cannot hold any.
        let bad = pfn(WHOLE_SECTION + PAGEBLOCK);
        assert_eq!(instance.hotplug.poison(bad), Ok(Poisoned::Quarantined));
        instance.with(|hotplug, _| hotplug.ram_to_device(section)).unwrap();
        assert!(instance.kernel.descriptor_places.is_empty());
        instance
            .with(|hotplug, hooks| hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks))
            .unwrap();
        instance.with(|hotplug, _| hotplug.ram_to_device(section)).unwrap();
        instance.with(|hotplug, _| hotplug.detach_raw(section)).unwrap();

        let part = range(WHOLE_SECTION, 2 * PAGEBLOCK);
        instance
            .with(|hotplug, _| hotplug.add(AddRequest { device: true, ..part.into() }))
            .unwrap();
        while instance.frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
        let refused = instance
            .with(|hotplug, hooks| hotplug.device_to_ram_raw(part, OnlineType::Offline, hooks));
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(AddError::NoTables { frames: 2, error }));
        assert_eq!(instance.hotplug.state_at(part.start(), part.end()), (part, State::Device));
    });
}

#[test]
fn device_memory_with_poison_where_descriptors_would_lie_does_not_become_ram() {
    with_instance(|instance| {
        let part = range(WHOLE_SECTION, PAGEBLOCK);
        instance.plug(part);
        instance.take_offline(part);
        let bad = range(WHOLE_SECTION + 3, 1);
        assert_eq!(instance.hotplug.poison(bad.start()), Ok(Poisoned::Quarantined));
        instance.with(|hotplug, _| hotplug.ram_to_device(part)).unwrap();
        instance
            .with(|hotplug, _| {
                hotplug.add(AddRequest {
                    device: true,
                    ..range(WHOLE_SECTION + PAGEBLOCK, SECTION - PAGEBLOCK).into()
                })
            })
            .unwrap();
        let section = range(WHOLE_SECTION, SECTION);
        let refused = instance
            .with(|hotplug, hooks| hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks));
        assert_eq!(
            refused,
            Err(AddError::Range(RangeError { range: bad, kind: RangeErrorKind::Poisoned }))
        );
        assert_eq!(
            instance.hotplug.state_at(section.start(), section.end()),
            (section, State::Device)
        );
    });
}
