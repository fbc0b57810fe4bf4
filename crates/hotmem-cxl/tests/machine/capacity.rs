//! Tests of dynamic capacity: with a simulated device by its mailbox, and with arbitrary events.

use crate::device::{BLOCK, BLOCKS, Device, REGION};
use crate::mailbox::command;
use hotmem_cxl::command::{self, Event, EventPage, Extent, More, Record, Region, opcode};
use hotmem_cxl::{
    CapacityError, DeviceRegisters, DynamicCapacity, EventLog, Mailbox, MailboxError, RequestKind,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn extent(first: u64, count: u64) -> Extent {
    Extent { start: REGION + first * BLOCK, len: count * BLOCK }
}

fn region() -> Region {
    Region { start: REGION, decode_len: BLOCKS * BLOCK, len: BLOCKS * BLOCK, block: BLOCK }
}

fn blocks(extents: &[Extent]) -> BTreeSet<u64> {
    let blocks =
        |one: &Extent| (one.start - REGION) / BLOCK..(one.start - REGION + one.len) / BLOCK;
    extents.iter().flat_map(blocks).collect()
}

/// A device, and a kernel that serves its events.
struct Machine<const N: usize> {
    device: Device,
    registers: DeviceRegisters,
    mailbox: Mailbox,
    capacity: DynamicCapacity<N>,
    /// Blocks that the kernel does not give back.
    in_use: BTreeSet<u64>,
    errors: Vec<CapacityError>,
}

impl<const N: usize> Machine<N> {
    fn new() -> Self {
        let mut device = Device::new();
        let (registers, mut mailbox) = DeviceRegisters::find(&mut device).unwrap();
        let payload = command::get_dynamic_config(0, 8);
        let mut answer = [0; 512];
        let code = opcode::GET_DYNAMIC_CONFIG;
        let len = command(&mut mailbox, &mut device, code, &payload, &mut answer).unwrap();
        let (regions, count) = Region::read_all(&answer[..len]).unwrap();
        assert_eq!((regions[0], count), (Some(region()), 1));
        let capacity = DynamicCapacity::new(&[region()]);
        let (in_use, errors) = (BTreeSet::new(), Vec::new());
        Machine { device, registers, mailbox, capacity, in_use, errors }
    }

    fn send(&mut self, opcode: u16, payload: &[u8]) -> Result<Vec<u8>, MailboxError> {
        let mut answer = [0; 512];
        let len = command(&mut self.mailbox, &mut self.device, opcode, payload, &mut answer)?;
        Ok(answer[..len].to_vec())
    }

    fn events(&mut self) -> Vec<Record> {
        let answer = self.send(opcode::GET_EVENTS, &command::get_events()).unwrap();
        EventPage::read(&answer).unwrap().records().collect()
    }

    /// Serves events until there are none. Sends answers in payloads of `room` bytes.
    fn serve(&mut self, room: usize) {
        while self.registers.has_events(&mut self.device, EventLog::DynamicCapacity) == Ok(true) {
            for Record { handle, event } in self.events() {
                let taken = self.capacity.take(&event);
                if taken == Err(CapacityError::Unanswered) {
                    self.answer(room);
                    self.capacity.take(&event).unwrap();
                } else {
                    self.errors.extend(taken.err());
                }
                self.send(opcode::CLEAR_EVENTS, &command::clear_event(handle)).unwrap();
                self.answer(room);
            }
        }
        assert_eq!(blocks(self.capacity.accepted()), self.device.accepted);
    }

    fn answer(&mut self, room: usize) {
        let Some((kind, _)) = self.capacity.request() else { return };
        let in_use = self.in_use.clone();
        let is_free = |extent| blocks(&[extent]).is_disjoint(&in_use);
        self.capacity.answer(|extent| kind == RequestKind::Add || is_free(extent)).unwrap();
        let mut payload = vec![0; room];
        while let Some((opcode, len)) = self.capacity.payload(&mut payload).unwrap() {
            match self.send(opcode, &payload[..len]) {
                Ok(_) => drop(self.capacity.delivered()),
                Err(_) => self.capacity.failed(),
            }
        }
    }
}

#[test]
fn extents_are_added_and_released_in_parts() {
    let mut machine = Machine::<8>::new();
    // Four extents of one request, more than the device lists at once, and two in each payload.
    for n in 0..4 {
        machine.device.report(0, 10 * n, 4, n < 3);
    }
    machine.serve(8 + 2 * 24);
    assert_eq!(machine.capacity.accepted(), [0, 10, 20, 30].map(|first| extent(first, 4)));
    // A part in the middle, and the adjacent halves of two others.
    machine.device.report(1, 1, 2, true);
    machine.device.report(1, 12, 2, false);
    machine.serve(256);
    let left = [extent(0, 1), extent(3, 1), extent(10, 2), extent(20, 4), extent(30, 4)];
    assert_eq!(machine.capacity.accepted(), left);
    machine.device.report(0, 1, 2, false);
    machine.serve(256);
    assert_eq!(machine.capacity.accepted()[0], extent(0, 4), "adjacent extents are one");
    assert_eq!(machine.errors, []);
}

#[test]
fn capacity_in_use_is_not_released() {
    let mut machine = Machine::<8>::new();
    machine.device.report(0, 0, 8, false);
    machine.serve(256);
    machine.in_use.insert(5);
    let sent = |machine: &Machine<8>| {
        machine.device.commands.iter().filter(|&&code| code == opcode::RELEASE).count()
    };
    machine.device.report(1, 4, 4, false);
    machine.serve(256);
    assert_eq!((machine.capacity.accepted(), sent(&machine)), (&[extent(0, 8)][..], 0));
    // Of several extents, those that are free are released.
    machine.device.report(1, 4, 2, true);
    machine.device.report(1, 6, 2, false);
    machine.serve(256);
    assert_eq!((machine.capacity.accepted(), sent(&machine)), (&[extent(0, 6)][..], 1));
    machine.in_use.clear();
    machine.device.report(1, 0, 6, false);
    machine.serve(256);
    assert_eq!((machine.capacity.accepted(), sent(&machine)), (&[][..], 2));
}

#[test]
fn an_answer_that_the_device_refuses_changes_nothing() {
    let mut machine = Machine::<8>::new();
    machine.device.report(0, 0, 2, false);
    let record = machine.events()[0];
    machine.capacity.take(&record.event).unwrap();
    machine.device.behaviour.code = Some(1);
    machine.answer(256);
    assert_eq!(machine.capacity.accepted(), []);
    assert_eq!(machine.capacity.request(), None);
    machine.serve(256);
    assert_eq!(machine.capacity.accepted(), [extent(0, 2)], "the event was not cleared");
    machine.capacity.take(&Event::Release(extent(0, 1), More::Last)).unwrap();
    machine.device.behaviour.code = Some(1);
    machine.answer(256);
    assert_eq!(machine.capacity.accepted(), [extent(0, 2)]);
}

#[test]
fn impossible_extents_are_refused_and_the_rest_of_the_request_counts() {
    let mut capacity = DynamicCapacity::<2>::new(&[region()]);
    let add = |extent| Event::Add(extent, More::Follows);
    let outside = |extent| Err(CapacityError::OutsideRegions(extent));
    for bad in [
        Extent { start: REGION, len: 0 },
        Extent { start: REGION - BLOCK, len: BLOCK },
        Extent { start: REGION, len: 0u64.wrapping_sub(REGION) },
        extent(BLOCKS - 1, 2),
        extent(0, BLOCKS + 1),
    ] {
        assert_eq!(capacity.take(&add(bad)), outside(bad));
    }
    let odd = Extent { start: REGION + 4096, len: BLOCK };
    let unaligned = CapacityError::Unaligned { extent: odd, block: BLOCK };
    assert_eq!(capacity.take(&add(odd)), Err(unaligned));
    assert_eq!(capacity.request(), None);
    assert_eq!(capacity.answer(|_| true), Err(CapacityError::NoRequest));
    assert_eq!(capacity.take(&add(extent(0, 2))), Ok(()));
    assert_eq!(capacity.take(&add(extent(1, 1))), Err(CapacityError::Overlaps(extent(1, 1))));
    assert_eq!(capacity.take(&add(extent(4, 1))), Ok(()));
    let full = CapacityError::Full { capacity: 2 };
    assert_eq!(capacity.take(&Event::Add(extent(6, 1), More::Last)), Err(full));
    let expected = [extent(0, 2), extent(4, 1)];
    assert_eq!(capacity.request(), Some((RequestKind::Add, &expected[..])));
    assert_eq!(capacity.take(&add(extent(8, 1))), Err(CapacityError::Unanswered));
    capacity.answer(|_| true).unwrap();
    assert_eq!(capacity.payload(&mut [0; 31]), Err(CapacityError::Buffer { len: 31 }));
    assert_eq!(capacity.payload(&mut [0; 56]), Ok(Some((opcode::ADD_RESPONSE, 56))));
    assert!(capacity.delivered());

    let release = |extent| Event::Release(extent, More::Last);
    let not_accepted = CapacityError::NotAccepted(extent(1, 2));
    assert_eq!(capacity.take(&release(extent(1, 2))), Err(not_accepted));
    assert_eq!(capacity.request(), Some((RequestKind::Release, &[][..])));
    assert_eq!(capacity.answer(|_| true), Ok(0));
    assert_eq!(capacity.payload(&mut [0; 56]), Ok(None));
    // A hole would make three extents.
    capacity.take(&Event::Release(extent(0, 1), More::Last)).unwrap();
    capacity.answer(|_| false).unwrap();
    assert_eq!(capacity.adopt(extent(0, 1)), Err(CapacityError::Overlaps(extent(0, 1))));
    assert_eq!(capacity.adopt(extent(2, 2)), Ok(()), "it joins two extents");
    assert_eq!(capacity.accepted(), [extent(0, 5)]);
    let changed = CapacityError::RegionChanged { region: 3 };
    assert_eq!(capacity.take(&Event::RegionChanged { region: 3 }), Err(changed));
    assert_eq!(capacity.take(&Event::Other), Ok(()));
}

#[test]
fn extents_without_room_are_neither_accepted_nor_released_and_the_others_are() {
    let mut machine = Machine::<2>::new();
    for first in [0, 10] {
        machine.device.report(0, first, 4, false);
        machine.serve(256);
    }
    // Of these, the second joins an extent that is accepted.
    machine.device.report(0, 20, 1, true);
    machine.device.report(0, 4, 1, false);
    machine.serve(256);
    assert_eq!(machine.capacity.accepted(), [extent(0, 5), extent(10, 4)]);
    // A hole would make three extents.
    machine.device.report(1, 2, 1, true);
    machine.device.report(1, 13, 1, false);
    machine.serve(256);
    assert_eq!(machine.capacity.accepted(), [extent(0, 5), extent(10, 3)]);
}

#[test]
fn a_request_that_is_broken_off_is_answered_before_the_next() {
    let mut capacity = DynamicCapacity::<4>::new(&[region()]);
    capacity.adopt(extent(0, 4)).unwrap();
    capacity.take(&Event::Add(extent(8, 1), More::Follows)).unwrap();
    assert_eq!(capacity.adopt(extent(20, 1)), Err(CapacityError::Unanswered));
    let forced = Event::ForcedRelease(extent(1, 20), More::Last);
    assert_eq!(capacity.take(&forced), Err(CapacityError::Unanswered));
    assert_eq!(capacity.request(), Some((RequestKind::Add, &[extent(8, 1)][..])));
    capacity.answer(|_| false).unwrap();
    assert_eq!(capacity.take(&forced), Err(CapacityError::Unanswered), "until it is delivered");
    assert_eq!(capacity.payload(&mut [0; 8]), Ok(Some((opcode::ADD_RESPONSE, 8))));
    assert!(capacity.delivered());
    assert_eq!(capacity.take(&forced), Ok(()));
    assert_eq!(capacity.request(), Some((RequestKind::ForcedRelease, &[extent(1, 3)][..])));
    assert_eq!(capacity.accepted(), [extent(0, 1)]);
    capacity.answer(|_| panic!("the kernel has no choice")).unwrap();
    assert_eq!(capacity.payload(&mut [0; 256]), Ok(None));
}

#[test]
fn a_request_whose_rest_is_lost_is_answered_as_it_has_come() {
    let mut capacity = DynamicCapacity::<4>::new(&[region()]);
    capacity.end_request();
    assert_eq!(capacity.request(), None);
    capacity.take(&Event::Add(extent(8, 1), More::Follows)).unwrap();
    assert_eq!(capacity.request(), None);
    capacity.end_request();
    assert_eq!(capacity.request(), Some((RequestKind::Add, &[extent(8, 1)][..])));
    capacity.answer(|_| true).unwrap();
    // The answer stays as it is.
    capacity.end_request();
    assert_eq!(capacity.payload(&mut [0; 64]), Ok(Some((opcode::ADD_RESPONSE, 32))));
    assert!(capacity.delivered());
    assert_eq!(capacity.accepted(), [extent(8, 1)]);
}

#[derive(Clone, Debug)]
enum Step {
    Event(u8, Extent, bool),
    Answer(u64),
    Deliver(usize),
    Fail,
}

fn step() -> impl Strategy<Value = Step> {
    let near = (0u64..20, 1u64..6).prop_map(|(first, count)| extent(first, count));
    let anywhere = (any::<u64>(), any::<u64>()).prop_map(|(start, len)| Extent { start, len });
    let bad =
        prop_oneof![anywhere, Just(extent(BLOCKS - 1, 2)), Just(Extent { start: REGION, len: 1 })];
    prop_oneof![
        6 => (0u8..4, prop_oneof![9 => near, 1 => bad], any::<bool>())
            .prop_map(|(kind, extent, more)| Step::Event(kind, extent, more)),
        3 => any::<u64>().prop_map(Step::Answer),
        4 => (0usize..120).prop_map(Step::Deliver),
        1 => Just(Step::Fail),
    ]
}

proptest! {
    /// What is accepted is exactly what was offered, selected and delivered, and not given back or
    /// taken, whatever the device asks for.
    #[test]
    fn arbitrary_events_never_confuse_the_account(
        steps in proptest::collection::vec(step(), 0..80),
    ) {
        let mut capacity = DynamicCapacity::<6>::new(&[region()]);
        let mut accepted = BTreeSet::new();
        let mut answer: Option<(RequestKind, BTreeSet<u64>)> = None;
        for step in steps {
            match step {
                Step::Event(kind, extent, more) => {
                    let more = if more { More::Follows } else { More::Last };
                    let event = match kind {
                        0 => Event::Add(extent, more),
                        1 => Event::Release(extent, more),
                        2 => Event::ForcedRelease(extent, more),
                        _ => Event::Other,
                    };
                    let taken = capacity.take(&event);
                    if let (2, Ok(())) = (kind, taken) {
                        // The model counts whole blocks.
                        if extent.start.is_multiple_of(BLOCK) && extent.len.is_multiple_of(BLOCK) {
                            let end = (extent.start + extent.len).saturating_sub(REGION) / BLOCK;
                            let gone = extent.start.saturating_sub(REGION) / BLOCK..end;
                            accepted.retain(|block| !gone.contains(block));
                        } else {
                            return Ok(());
                        }
                    }
                    if kind == 2 && matches!(taken, Err(CapacityError::Full { .. })) {
                        // The list of the device would have to be read.
                        return Ok(());
                    }
                }
                Step::Answer(mask) => {
                    let Some((kind, extents)) = capacity.request() else { continue };
                    let extents = extents.to_vec();
                    let all = blocks(&extents);
                    let total: u64 = extents.iter().map(|extent| extent.len / BLOCK).sum();
                    prop_assert_eq!(all.len() as u64, total, "no block is listed twice");
                    match kind {
                        RequestKind::Add => prop_assert!(all.is_disjoint(&accepted)),
                        RequestKind::Release => prop_assert!(all.is_subset(&accepted)),
                        RequestKind::ForcedRelease => prop_assert!(all.is_disjoint(&accepted)),
                    }
                    let selects = |extent: Extent| mask >> (extent.start / BLOCK % 64) & 1 != 0;
                    let mut selected = Vec::new();
                    let select = |extent| {
                        let is_selected = selects(extent);
                        selected.extend(is_selected.then_some(extent));
                        is_selected
                    };
                    if capacity.answer(select).is_ok() && kind != RequestKind::ForcedRelease {
                        answer = Some((kind, blocks(&selected)));
                    }
                }
                Step::Deliver(room) => {
                    let mut payload = vec![0; room];
                    let written = capacity.payload(&mut payload);
                    if capacity.delivered() {
                        prop_assert!(matches!(written, Ok(Some(_))));
                        match answer.take() {
                            Some((RequestKind::Add, blocks)) => accepted.extend(blocks),
                            Some((_, blocks)) => accepted.retain(|block| !blocks.contains(block)),
                            None => prop_assert!(false, "nothing was answered"),
                        }
                    }
                }
                Step::Fail => capacity.failed(),
            }
            prop_assert_eq!(&blocks(capacity.accepted()), &accepted);
            for pair in capacity.accepted().windows(2) {
                prop_assert!(pair[0].start + pair[0].len < pair[1].start);
            }
        }
    }
}
