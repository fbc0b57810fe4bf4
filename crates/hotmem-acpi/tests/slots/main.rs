//! Tests of memory slots against a host that changes them at any access, and against registers that
//! answer arbitrarily.

mod host;

use host::{Deed, Host, Memory, Registers, SLOTS, Slot};
use hotmem_acpi::{
    Change, Dimm, EjectError, Fault, MemorySlots, Model, SlotRegisters, StatusWidth, TooManySlots,
    count_qemu_slots,
};
use hotmem_addr::{Bytes, PfnRange};
use proptest::prelude::*;
use std::{cell::RefCell, rc::Rc};

const GIB: u64 = 1 << 30;
/// The number of slots as the guest knows it.
const COUNT: u32 = 4;
const _: () = assert!(COUNT as usize == SLOTS);

fn machine() -> (Rc<RefCell<Host>>, MemorySlots<Registers, SLOTS>) {
    let host = Rc::new(RefCell::new(Host::default()));
    let registers = Registers(host.clone());
    let slots = MemorySlots::new(registers, Model::QEMU, COUNT).unwrap();
    (host, slots)
}

fn memory(start: u64) -> Memory {
    Memory { start, len: GIB, proximity: 3 }
}

fn dimm(memory: Memory) -> Dimm {
    let range = PfnRange::from_bytes(memory.start, Bytes(memory.len)).unwrap();
    Dimm { range, proximity: memory.proximity }
}

fn changes(slots: &mut MemorySlots<Registers, SLOTS>) -> Vec<Change> {
    slots.notify();
    std::iter::from_fn(|| slots.next_change()).collect()
}

#[test]
fn memory_is_inserted_accepted_asked_for_and_ejected() {
    let (host, mut slots) = machine();
    let stick = memory(4 * GIB);
    host.borrow_mut().perform(Deed::Insert(2, stick));
    assert_eq!(changes(&mut slots), [Change::Inserted { slot: 2, dimm: dimm(stick) }]);
    slots.accept(2);
    assert_eq!(changes(&mut slots), []);
    host.borrow_mut().perform(Deed::AskFor(2));
    let asked = Change::RemovalRequested { slot: 2, dimm: dimm(stick) };
    assert_eq!(changes(&mut slots), [asked]);
    slots.refuse(2);
    assert_eq!(changes(&mut slots), [], "the request was acknowledged");
    host.borrow_mut().perform(Deed::AskFor(2));
    assert_eq!(changes(&mut slots), [asked]);
    assert_eq!(slots.eject(2), Ok(()));
    assert_eq!(slots.memory(2), None);
    assert_eq!(changes(&mut slots), []);
    assert_eq!(host.borrow().answers, [(2, 1, 0), (2, 3, 0x82)]);
    assert_eq!(host.borrow().slots, [Slot::default(); SLOTS]);
}

#[test]
fn memory_that_is_present_at_boot_is_inserted() {
    let (host, mut slots) = machine();
    let cold = Slot { memory: Some(memory(GIB)), inserted: false, requested: false };
    host.borrow_mut().slots[0] = cold;
    let found: Vec<_> = std::iter::from_fn(|| slots.next_change()).collect();
    assert_eq!(found, [Change::Inserted { slot: 0, dimm: dimm(memory(GIB)) }]);
}

#[test]
fn memory_can_be_inserted_and_asked_for_before_the_slot_is_examined() {
    let (host, mut slots) = machine();
    host.borrow_mut().perform(Deed::Insert(1, memory(GIB)));
    host.borrow_mut().perform(Deed::AskFor(1));
    let dimm = dimm(memory(GIB));
    let both = [Change::Inserted { slot: 1, dimm }, Change::RemovalRequested { slot: 1, dimm }];
    assert_eq!(changes(&mut slots), both);
}

#[test]
fn memory_that_the_host_fails_to_take_stays() {
    let (host, mut slots) = machine();
    assert_eq!(slots.eject(0), Err(EjectError::Empty { slot: 0 }));
    assert_eq!(slots.eject(99), Err(EjectError::Empty { slot: 99 }));
    host.borrow_mut().perform(Deed::Insert(0, memory(GIB)));
    assert_eq!(changes(&mut slots).len(), 1);
    host.borrow_mut().keeps_memory = true;
    assert_eq!(slots.eject(0), Err(EjectError::StillPresent { slot: 0 }));
    assert_eq!(slots.memory(0), Some(dimm(memory(GIB))));
}

#[test]
fn memory_that_vanishes_or_is_exchanged_is_reported() {
    let (host, mut slots) = machine();
    host.borrow_mut().perform(Deed::Insert(0, memory(GIB)));
    host.borrow_mut().perform(Deed::Insert(1, memory(8 * GIB)));
    assert_eq!(changes(&mut slots).len(), 2);
    host.borrow_mut().slots[0] = Slot::default();
    host.borrow_mut().slots[1].memory = None;
    host.borrow_mut().perform(Deed::Insert(1, memory(9 * GIB)));
    let expected = [
        Change::Vanished { slot: 0, dimm: dimm(memory(GIB)) },
        Change::Vanished { slot: 1, dimm: dimm(memory(8 * GIB)) },
        Change::Inserted { slot: 1, dimm: dimm(memory(9 * GIB)) },
    ];
    assert_eq!(changes(&mut slots), expected);
}

#[test]
fn impossible_memory_is_rejected_with_its_fault_and_ejected_on_request() {
    let bad = |start, len| Memory { start, len, proximity: 0 };
    let (host, mut slots) = machine();
    host.borrow_mut().perform(Deed::Insert(0, memory(4 * GIB)));
    assert_eq!(changes(&mut slots).len(), 1);
    let overlap = PfnRange::from_bytes(3 * GIB, Bytes(2 * GIB)).unwrap();
    let range = |start, len| PfnRange::from_bytes(start, Bytes(len)).map_err(Fault::Range);
    let cases = [
        (bad(GIB, 0), Fault::Empty),
        (bad(GIB + 1, GIB), range(GIB + 1, GIB).unwrap_err()),
        (bad(GIB, GIB + 512), range(GIB, GIB + 512).unwrap_err()),
        (bad(u64::MAX - 4095, GIB), range(u64::MAX - 4095, GIB).unwrap_err()),
        (bad(1 << 52, GIB), range(1 << 52, GIB).unwrap_err()),
        (bad(3 * GIB, 2 * GIB), Fault::Overlaps { range: overlap, other: 0 }),
    ];
    for (memory, fault) in cases {
        host.borrow_mut().perform(Deed::Insert(1, memory));
        assert_eq!(changes(&mut slots), [Change::Unusable { slot: 1, fault }]);
        assert_eq!(host.borrow_mut().answers.pop(), Some((1, 1, 1)));
        assert_eq!(slots.memory(1), None);
        host.borrow_mut().perform(Deed::AskFor(1));
        assert_eq!(changes(&mut slots), []);
        assert_eq!(host.borrow_mut().ejected.pop(), Some(memory));
    }
}

#[test]
fn a_machine_without_registers_has_no_slots() {
    struct Constant(u32);
    impl SlotRegisters for Constant {
        fn read_u32(&mut self, _: u16) -> u32 {
            self.0
        }
        fn read_u8(&mut self, _: u16) -> u8 {
            self.0.to_le_bytes()[0]
        }
        fn write_u32(&mut self, _: u16, _: u32) {}
        fn write_u8(&mut self, _: u16, _: u8) {}
    }
    assert_eq!(count_qemu_slots(&mut Constant(0)), 0);
    assert_eq!(count_qemu_slots(&mut Constant(u32::MAX)), 0);
    let (host, _) = machine();
    assert_eq!(count_qemu_slots(&mut Registers(host)), COUNT);
    let refused = MemorySlots::<_, 3>::new(Constant(0), Model::QEMU, 4).err();
    assert_eq!(refused, Some(TooManySlots { count: 4, capacity: 3 }));
    let mut none = MemorySlots::<_, 3>::new(Constant(0), Model::QEMU, 0).unwrap();
    none.notify();
    assert_eq!(none.next_change(), None);
}

fn deed() -> impl Strategy<Value = Deed> {
    // Each slot has addresses of its own, so that no memory overlaps.
    let insert = (0..SLOTS, 1..4u32).prop_map(|(slot, size)| {
        let start = (4 + 4 * slot as u64) * GIB;
        Deed::Insert(slot, Memory { start, len: u64::from(size) * GIB, proximity: size })
    });
    prop_oneof![4 => Just(Deed::Nothing), 2 => insert, 1 => (0..SLOTS).prop_map(Deed::AskFor)]
}

proptest! {
    /// The host inserts memory and asks for memory before any access of the guest. The guest answers
    /// each request by an ejection or by a refusal.
    #[test]
    fn guest_and_host_agree_whatever_happens_between_two_accesses(
        deeds in proptest::collection::vec(deed(), 0..200),
        ejects in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let (host, mut slots) = machine();
        host.borrow_mut().deeds = deeds;
        let mut in_use = [None; SLOTS];
        let mut ejects = ejects.into_iter().cycle();
        // The deeds are used up when nothing changes any more.
        while std::mem::take(&mut host.borrow_mut().has_event) || !host.borrow().deeds.is_empty() {
            slots.notify();
            while let Some(change) = slots.next_change() {
                match change {
                    Change::Inserted { slot, dimm } => {
                        prop_assert_eq!(in_use[slot as usize].replace(dimm), None);
                        slots.accept(slot);
                    }
                    Change::RemovalRequested { slot, dimm: asked } => {
                        prop_assert_eq!(in_use[slot as usize], Some(asked));
                        if ejects.next() == Some(true) {
                            let before = host.borrow().ejected.len();
                            prop_assert_eq!(slots.eject(slot), Ok(()));
                            in_use[slot as usize] = None;
                            let ejected: Vec<_> = host.borrow().ejected[before..].to_vec();
                            prop_assert_eq!(ejected.len(), 1);
                            // Only memory whose insertion was reported may be ejected.
                            prop_assert_eq!(dimm(ejected[0]), asked);
                        } else {
                            slots.refuse(slot);
                        }
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        for (slot, in_use) in (0..COUNT).zip(in_use) {
            let there = host.borrow().slots[slot as usize].memory.map(dimm);
            prop_assert_eq!(slots.memory(slot), there);
            prop_assert_eq!(in_use, there);
        }
    }

    /// Registers that answer arbitrarily cost a bounded number of accesses for each notification, and
    /// memory that they invent is a range of its own.
    #[test]
    fn arbitrary_registers_neither_panic_nor_keep_the_guest_busy(
        answers in proptest::collection::vec(prop_oneof![Just(0), Just(u32::MAX), 0..16u32, any::<u32>()], 1..64),
        width in prop_oneof![Just(StatusWidth::Byte), Just(StatusWidth::FourBytes)],
    ) {
        let registers = Arbitrary { answers, next: 0, accesses: Rc::default() };
        let accesses = registers.accesses.clone();
        let model = Model { status_width: width, ..Model::QEMU };
        let mut slots = MemorySlots::<_, SLOTS>::new(registers, model, COUNT).unwrap();
        for _ in 0..8 {
            slots.notify();
            let before = *accesses.borrow();
            while let Some(change) = slots.next_change() {
                if let Change::RemovalRequested { slot, .. } = change {
                    let _ = slots.eject(slot);
                }
            }
            prop_assert!(*accesses.borrow() - before <= 24 * SLOTS);
            let known: Vec<_> = (0..COUNT).filter_map(|slot| slots.memory(slot)).collect();
            for (n, dimm) in known.iter().enumerate() {
                prop_assert!(!dimm.range.is_empty());
                prop_assert!(known[..n].iter().all(|other| !other.range.overlaps(dimm.range)));
            }
        }
    }
}

struct Arbitrary {
    answers: Vec<u32>,
    next: usize,
    accesses: Rc<RefCell<usize>>,
}

impl SlotRegisters for Arbitrary {
    fn read_u32(&mut self, _: u16) -> u32 {
        *self.accesses.borrow_mut() += 1;
        self.next += 1;
        self.answers[self.next % self.answers.len()]
    }

    fn read_u8(&mut self, offset: u16) -> u8 {
        self.read_u32(offset).to_le_bytes()[0]
    }

    fn write_u32(&mut self, _: u16, _: u32) {
        *self.accesses.borrow_mut() += 1;
    }

    fn write_u8(&mut self, _: u16, _: u8) {
        *self.accesses.borrow_mut() += 1;
    }
}
