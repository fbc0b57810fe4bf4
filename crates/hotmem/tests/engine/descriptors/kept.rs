//! Tests where descriptors are placed, and which removals must wait for them.

use super::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::Raw as _;
use hotmem_testkit::RawReserved as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::link::lend;

/// A section that is added as a whole.
const WHOLE: u64 = 3 * SECTION;

#[test]
fn a_section_brings_room_for_its_own_descriptors() {
    on_a_machine(|m| {
        while m.frames.take_raw(AllocRequest::frames(1)).is_ok() {}
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let kept = range(WHOLE, BLOCK);
        let counts = m.frames.counts_in(section);
        assert_eq!((counts.online, counts.free), (SECTION, SECTION - BLOCK));
        let of_section = Metadata { frames: kept, describes: section };
        assert!(m.frames.metadata().any(|metadata| metadata == of_section));
        let zone = m.hotplug.zone(NodeId::ZERO, Zone::Movable);
        assert_eq!((zone.spanned, zone.managed), (section, SECTION - BLOCK));
        assert!(zone.contiguous);
        // A scan for frames to migrate skips it.
        let mut used = vec![];
        m.hotplug.occupancy(section, |block, frames| used.push((block, frames)));
        assert_eq!(used[0], (kept, BLOCK));
        assert!(used[1..].iter().all(|&(_, frames)| frames == 0));
        while let Ok(got) = m.frames.take_raw(AllocRequest::frames(1).movable()) {
            assert!(!got.overlaps(kept));
        }
        // Descriptors of a part of a section need free memory.
        let part = range(WHOLE + SECTION, 2 * BLOCK);
        let refused = lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part));
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(AddError::NoTables { frames: 2, error }));
    });
}

#[test]
fn kept_pageblocks_have_no_other_use() {
    on_a_machine(|m| {
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let kept = range(WHOLE, BLOCK);
        let before = m.snapshot(&[]);
        for part in [kept, range(WHOLE, 1), section] {
            assert!(matches!(m.frames.give_raw(part), Err(RangeError { .. })), "{part}");
        }
        let at = AllocRequest::frames(1).at(pfn(WHOLE)).movable();
        assert_eq!(m.frames.take_raw(at), Err(AllocError::NotFree(range(WHOLE, 1))));
        assert_eq!(
            m.hotplug.poison(pfn(WHOLE + 1)),
            Err(RangeError { range: kept, kind: RangeErrorKind::Metadata })
        );
        let token = m.frames.isolate(section).unwrap();
        assert_eq!(token.in_use(), None);
        let held = RangeError { range: kept, kind: RangeErrorKind::Isolated };
        assert_eq!(m.frames.isolate(kept).err(), Some(held));
        token.release();
        assert_eq!(m.snapshot(&[]), before);
        let token = m.frames.isolate(section).unwrap();
        token.mark_reported().unwrap();
        assert_eq!(m.frames.counts().reported, SECTION - BLOCK);
        m.frames.validated().unwrap();
    });
}

#[test]
fn kept_pageblocks_leave_with_the_last_memory_that_they_describe() {
    on_a_machine(|m| {
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let kept = range(WHOLE, BLOCK);
        let before = m.snapshot(&[]);
        // It is taken offline like any other pageblock, and is not removed.
        m.take_offline(kept);
        let refused = lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.remove(kept));
        assert_eq!(refused, Err(RangeError { range: kept, kind: RangeErrorKind::Describes }));
        assert_eq!(
            lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.ram_to_device(kept)),
            refused
        );
        m.hotplug.online(kept, OnlineType::AsBefore, &mut m.kernel).unwrap();
        assert_eq!(m.snapshot(&[]), before);

        // A pinned pageblock stays, and its descriptors stay.
        let pinned = m
            .frames
            .take_raw(AllocRequest::frames(BLOCK).at(pfn(WHOLE + BLOCK)).movable())
            .unwrap();
        let (left, _) = m.shrink(section, SECTION);
        assert_eq!(left, 2 * BLOCK);
        let stays = range(WHOLE, 2 * BLOCK);
        let there = m.hotplug.state_at(section.start(), section.end());
        assert_eq!(there, (stays, State::OnlineMovable));
        // Memory that is added again has its descriptors in the same place.
        m.plug(range(WHOLE + 2 * BLOCK, SECTION - 2 * BLOCK));
        assert_eq!(m.snapshot(&[pinned]), {
            m.frames.give_raw(pinned).unwrap();
            let again = m.snapshot(&[]);
            assert_eq!(again, before);
            assert_eq!(
                m.frames.take_raw(AllocRequest::frames(BLOCK).at(pinned.start()).movable()),
                Ok(pinned)
            );
            m.snapshot(&[pinned])
        });
        m.frames.give_raw(pinned).unwrap();
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

/// Otherwise the section's bitmaps and its descriptors would prevent each other's removal for ever.
#[test]
fn kept_pageblocks_need_no_bitmaps() {
    on_a_machine(|m| {
        while m.frames.take_raw(AllocRequest::frames(1)).is_ok() {}
        let section = range(WHOLE, SECTION);
        m.plug(section);
        let last = range(WHOLE + SECTION - BLOCK, BLOCK);
        let divided =
            m.frames.take_raw(AllocRequest::frames(1).at(last.start()).movable()).unwrap();
        let is_bitmaps = |metadata: Metadata| metadata.frames.frames() == 1;
        let mut there = m.frames.metadata().filter(|metadata| last.covers(metadata.frames));
        assert!(there.any(is_bitmaps));
        m.frames.give_raw(divided).unwrap();
        let between = range(WHOLE + BLOCK, SECTION - 2 * BLOCK);
        m.take_offline(between);
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.remove(between)).unwrap();
        assert_eq!(m.shrink(section, 2 * BLOCK), (0, None));
        m.frames.validated().unwrap();
    });
}

#[test]
fn descriptors_wait_for_what_is_being_added() {
    on_a_machine(|m| {
        m.plug(range(WHOLE, SECTION));
        assert_eq!(m.shrink(range(WHOLE + BLOCK, SECTION - BLOCK), SECTION), (BLOCK, None));
        let kept = range(WHOLE, BLOCK);
        let coming = lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.prepare_add(range(WHOLE + BLOCK, BLOCK))
        })
        .unwrap();
        assert_eq!(coming.tables().frames(), 0);
        let blocker = Blocker { range: kept, why: Why::Metadata };
        assert_eq!(m.shrink(kept, BLOCK), (BLOCK, Some(blocker)));
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.commit_add(coming)).unwrap();
        assert_eq!(m.kernel.of.get(&(WHOLE / BLOCK + 1)), Some(&At::ItsSection));
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.remove(range(WHOLE + BLOCK, BLOCK))
        })
        .unwrap();
        assert_eq!(m.shrink(kept, BLOCK), (0, None));
    });
}

#[test]
fn leaving_memory_describes_no_memory_that_is_added() {
    on_a_machine(|m| {
        m.plug(range(WHOLE, SECTION));
        let rest = range(WHOLE + BLOCK, SECTION - BLOCK);
        assert_eq!(m.shrink(rest, SECTION), (BLOCK, None));
        let kept = range(WHOLE, BLOCK);
        let device = range(WHOLE + BLOCK, BLOCK);
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest { device: true, ..device.into() })
        })
        .unwrap();
        m.take_offline(kept);
        let leaving =
            lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.prepare_remove(kept)).unwrap();
        let part = range(WHOLE + 2 * BLOCK, BLOCK);
        assert_eq!(
            lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part)),
            Err(AddError::Range(RangeError { range: kept, kind: RangeErrorKind::Held }))
        );
        let refused = lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(device, OnlineType::Offline, hooks)
        });
        assert_eq!(
            refused,
            Err(AddError::Range(RangeError { range: kept, kind: RangeErrorKind::Held }))
        );
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.abandon_remove(leaving, hooks)
        })
        .unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part)).unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(device, OnlineType::Offline, hooks)
        })
        .unwrap();
        m.frames.validated().unwrap();
    });
}

#[test]
fn a_removal_is_not_split_where_the_rest_would_lose_its_descriptors() {
    on_a_machine(|m| {
        let sections = range(WHOLE, 2 * SECTION);
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(sections)).unwrap();
        let removal =
            lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.prepare_remove(sections))
                .unwrap();
        let removal = removal.split_at(pfn(WHOLE + BLOCK)).unwrap_err();
        assert_eq!(removal.range(), sections);
        let (gone, stays) = removal.split_at(pfn(WHOLE + SECTION)).unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.commit_remove(gone)).unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| hotplug.abandon_remove(stays, hooks))
            .unwrap();
        assert_eq!(m.kernel.kept().collect::<Vec<_>>(), [range(WHOLE + SECTION, BLOCK)]);
        // A removal without descriptors can be split anywhere.
        let part = range(WHOLE, 2 * BLOCK);
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.add(part)).unwrap();
        let removal =
            lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.prepare_remove(part)).unwrap();
        let (gone, stays) = removal.split_at(pfn(WHOLE + BLOCK)).unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.commit_remove(gone)).unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| hotplug.abandon_remove(stays, hooks))
            .unwrap();
        m.frames.validated().unwrap();
    });
}

#[test]
fn a_device_may_not_lose_data_to_descriptors_of_ram_that_it_does_not_become() {
    on_a_machine(|m| {
        let section = range(WHOLE, SECTION);
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest { device: true, ..section.into() })
        })
        .unwrap();
        assert!(m.kernel.of.is_empty());
        m.kernel.vetoes = true;
        let refused = lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Movable, hooks)
        });
        assert!(matches!(
            refused,
            Err(AddError::Range(RangeError { kind: RangeErrorKind::Vetoed(_), .. }))
        ));
        assert!(m.kernel.of.is_empty() && m.kernel.undescribed == 0);
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks)
        })
        .unwrap();
        assert_eq!(m.kernel.kept().collect::<Vec<_>>(), [range(WHOLE, BLOCK)]);
        // Poisoned memory can have descriptors, but cannot hold any.
        let bad = pfn(WHOLE + BLOCK);
        assert_eq!(m.hotplug.poison(bad), Ok(Poisoned::Out));
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.ram_to_device(section)).unwrap();
        assert!(m.kernel.of.is_empty());
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks)
        })
        .unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.ram_to_device(section)).unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.detach_raw(section)).unwrap();

        let part = range(WHOLE, 2 * BLOCK);
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest { device: true, ..part.into() })
        })
        .unwrap();
        while m.frames.take_raw(AllocRequest::frames(1)).is_ok() {}
        let refused = lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(part, OnlineType::Movable, hooks)
        });
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, Err(AddError::NoTables { frames: 2, error }));
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
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| hotplug.ram_to_device(part)).unwrap();
        lend(&mut m.hotplug, &mut m.kernel, |hotplug, _| {
            hotplug.add(AddRequest { device: true, ..range(WHOLE + BLOCK, SECTION - BLOCK).into() })
        })
        .unwrap();
        let section = range(WHOLE, SECTION);
        let refused = lend(&mut m.hotplug, &mut m.kernel, |hotplug, hooks| {
            hotplug.device_to_ram_raw(section, OnlineType::Offline, hooks)
        });
        assert_eq!(
            refused,
            Err(AddError::Range(RangeError { range: bad, kind: RangeErrorKind::Poisoned }))
        );
        assert_eq!(m.hotplug.state_at(section.start(), section.end()), (section, State::Device));
    });
}
