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
    Removal(Removal),
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
        (Prepared::Addition(addition), End::Commit) => hotplug.commit_add(addition).is_ok(),
        (Prepared::Addition(addition), End::Undo) => {
            drop(addition);
            false
        }
        (Prepared::Removal(removal), End::Commit) => hotplug.commit_remove(removal).is_err(),
        (Prepared::Removal(removal), End::Undo) => {
            hotplug.abandon_remove(removal, &mut NoHooks).is_ok()
        }
    }
}

#[test]
fn a_prepared_request_ends_whatever_another_request_does() {
    const REQUESTS: [Request; 2] = [Request::Add, Request::Remove];
    const ENDS: [End; 2] = [End::Commit, End::Undo];
    const YES_OR_NO: [bool; 2] = [false, true];
    for first in REQUESTS {
        for second in REQUESTS {
            for ends in
                ENDS.map(|first_end| ENDS.map(|second_end| [first_end, second_end])).concat()
            {
                for is_second_first in YES_OR_NO {
                    for has_resident in YES_OR_NO {
                        for is_used_up in YES_OR_NO {
                            let case =
                                (first, second, ends, is_second_first, has_resident, is_used_up);
                            eprintln!("{case:?}");
                            run([first, second], ends, is_second_first, has_resident, is_used_up);
                        }
                    }
                }
            }
        }
    }
}

fn run(
    requests: [Request; 2],
    ends: [End; 2],
    is_second_first: bool,
    has_resident: bool,
    is_used_up: bool,
) {
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mut hotplug = start(&frames, TableMapping::new(memory.mapping(), 2), &ram).unwrap();
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
