//! Tests two requests that are in flight at the same time, in all orders: whatever a prepared
//! request has been promised, no other request takes away. The memory of the requests shares a page
//! table, and a section.

use crate::tables::{TABLE_SPAN, TableMapping};
use hotmem::*;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _};
use hotmem_testkit::{range, start};

/// The memory of two devices, and memory that stays. They share a table and a section.
const FIRST: PfnRange = range_at(SECTION);
const SECOND: PfnRange = range_at(SECTION + PAGEBLOCK);
const RESIDENT: PfnRange = range_at(SECTION + 2 * PAGEBLOCK);
const REGION: PfnRange = PfnRange::with_len(FIRST.start(), SECTION).unwrap();

const fn range_at(start: u64) -> PfnRange {
    PfnRange::with_len(Pfn::new(start).unwrap(), PAGEBLOCK).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Add,
    Remove,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Commit,
    Undo,
}

/// A request that is prepared.
enum Prepared<'f> {
    Addition(Addition<'f, Cpus>),
    Removal(Removal<'f, Cpus>),
}

type Machine<'f> = Hotplug<'f, Cpus, TableMapping>;

fn plug(hotplug: &mut Machine<'_>, memory: PfnRange) {
    hotplug.add(memory).unwrap();
    hotplug.online(memory, OnlineType::Movable, &mut NoHooks).unwrap();
}

fn prepare<'f>(hotplug: &mut Machine<'f>, request: Request, memory: PfnRange) -> Prepared<'f> {
    if request == Request::Add {
        return Prepared::Addition(hotplug.prepare_add(memory).unwrap());
    }
    match Shrink::new(memory).poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
        Progress::Ready(removal) => Prepared::Removal(removal),
        progress => panic!("{progress:?}"),
    }
}

/// Ends a request. Returns whether its memory is now present.
fn end<'f>(hotplug: &mut Machine<'f>, prepared: Prepared<'f>, end: End) -> bool {
    match (prepared, end) {
        (Prepared::Addition(addition), End::Commit) => {
            hotplug.commit_add(addition);
            true
        }
        (Prepared::Addition(addition), End::Undo) => {
            drop(addition);
            false
        }
        (Prepared::Removal(removal), End::Commit) => {
            hotplug.commit_remove(removal);
            false
        }
        (Prepared::Removal(removal), End::Undo) => {
            hotplug.abandon_remove(removal, &mut NoHooks);
            true
        }
    }
}

/// A case: two requests, how they end, and the machine on which they are in flight.
#[derive(Clone, Copy, Debug)]
struct Case {
    requests: [Request; 2],
    ends: [End; 2],
    is_second_first: bool,
    has_resident: bool,
    /// Whether no frame is free when the requests are prepared.
    is_used_up: bool,
    /// Whether the mapping frees tables when memory is unmapped.
    frees_on_unmap: bool,
}

#[test]
fn a_prepared_request_ends_whatever_another_request_does() {
    for number in 0..1 << 8 {
        let bit = |bit: u32| number >> bit & 1 != 0;
        let request = |number| if bit(number) { Request::Add } else { Request::Remove };
        let end = |number| if bit(number) { End::Commit } else { End::Undo };
        let case = Case {
            requests: [request(0), request(1)],
            ends: [end(2), end(3)],
            is_second_first: bit(4),
            has_resident: bit(5),
            is_used_up: bit(6),
            frees_on_unmap: bit(7),
        };
        eprintln!("{case:?}");
        run(case);
    }
}

fn run(case: Case) {
    let Case { requests, ends, is_second_first, has_resident, is_used_up, frees_on_unmap } = case;
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mapping = TableMapping::new(memory.mapping(), 2);
    let mapping = if frees_on_unmap { mapping.freeing_on_unmap() } else { mapping };
    let mut hotplug = start(&frames, mapping, &ram).unwrap();
    hotplug.announce(REGION).unwrap();
    if has_resident {
        plug(&mut hotplug, RESIDENT);
    }
    let ranges = [FIRST, SECOND];
    for (request, memory) in requests.into_iter().zip(ranges) {
        if request == Request::Remove {
            plug(&mut hotplug, memory);
        }
    }
    if is_used_up {
        while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    }
    let mut prepared = [0, 1].map(|nth| Some(prepare(&mut hotplug, requests[nth], ranges[nth])));
    let mut is_present = [false; 2];
    for nth in if is_second_first { [1, 0] } else { [0, 1] } {
        let prepared = prepared[nth].take().unwrap();
        is_present[nth] = end(&mut hotplug, prepared, ends[nth]);
        frames.validated().unwrap();
    }
    for (nth, memory) in ranges.into_iter().enumerate() {
        let (_, state) = hotplug.state_at(memory.start(), memory.end());
        assert_eq!(state != State::Absent, is_present[nth]);
    }
    let tables = u64::from(has_resident || is_present != [false; 2]);
    assert_eq!(hotplug.mapping().tables(), tables);
    assert_eq!(TABLE_SPAN, SECTION, "the memory shares a table");
}

/// A kernel whose own code frees page tables cannot prepare a removal that it could not undo.
#[test]
fn a_removal_is_refused_without_frames_to_undo_it() {
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mapping = TableMapping::new(memory.mapping(), 0).freeing_on_unmap();
    let mut hotplug = start(&frames, mapping, &ram).unwrap();
    hotplug.announce(REGION).unwrap();
    plug(&mut hotplug, FIRST);
    hotplug.add(SECOND).unwrap();
    let mut used = vec![];
    while let Ok(frame) = frames.alloc_range(AllocRequest::frames(1)) {
        used.push(frame);
    }
    let kind = RangeErrorKind::NoTables { frames: 1 };
    assert_eq!(hotplug.prepare_remove(SECOND).unwrap_err(), RangeError { range: SECOND, kind });
    let progress = Shrink::new(FIRST).poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    let Progress::Pending(blocker) = progress else { panic!("{progress:?}") };
    assert_eq!((blocker.range, blocker.kind), (FIRST, BlockerKind::NoTables));
    assert_eq!(hotplug.state_at(FIRST.start(), FIRST.end()).1, State::OnlineMovable);
    frames.validated().unwrap();
    // A removal that needs no undoing needs no frames.
    hotplug.remove(SECOND).unwrap();
    frames.free_range(used.pop().unwrap()).unwrap();
    hotplug.add(SECOND).unwrap();
    let removal = hotplug.prepare_remove(SECOND).unwrap();
    let (removal, rest) = removal.split_at(SECOND.start()).map(|(rest, all)| (all, rest)).unwrap();
    assert!(rest.range().is_empty());
    hotplug.abandon_remove(rest, &mut NoHooks);
    hotplug.abandon_remove(removal, &mut NoHooks);
}

#[test]
fn a_removal_with_frames_to_undo_it_is_not_split() {
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mapping = TableMapping::new(memory.mapping(), 2).freeing_on_unmap();
    let mut hotplug = start(&frames, mapping, &ram).unwrap();
    hotplug.announce(REGION).unwrap();
    hotplug.add(REGION).unwrap();
    let before = frames.counts();
    let removal = hotplug.prepare_remove(REGION).unwrap();
    let removal = removal.split_at(SECOND.start()).unwrap_err();
    assert_eq!(removal.range(), REGION);
    hotplug.commit_remove(removal);
    assert_eq!(frames.counts().used, before.used, "the frames for undoing are free again");
    hotplug.add(REGION).unwrap();
    let used = frames.counts().used;
    drop(hotplug.prepare_remove(REGION).unwrap());
    assert_eq!(frames.counts().used, used, "a dropped removal keeps no frames");
    hotplug.remove(REGION).unwrap();
    hotplug.add(REGION).unwrap();
    frames.validated().unwrap();
}
