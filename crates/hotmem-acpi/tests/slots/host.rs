//! A host with memory slots, which behaves as QEMU's: memory goes into an empty slot, and leaves it
//! only when the guest ejects it.

use hotmem_acpi::SlotRegisters;
use std::{cell::RefCell, rc::Rc};

pub(crate) const SLOTS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) proximity: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) memory: Option<Memory>,
    pub(crate) inserted: bool,
    pub(crate) requested: bool,
}

/// What the host does by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    Nothing,
    Insert(usize, Memory),
    AskFor(usize),
}

#[derive(Debug, Default)]
pub(crate) struct Host {
    pub(crate) slots: [Slot; SLOTS],
    selected: usize,
    pub(crate) has_event: bool,
    /// Whether the host fails to take memory that is ejected.
    pub(crate) keeps_memory: bool,
    pub(crate) ejected: Vec<Memory>,
    /// The event and the status of each answer, with its slot.
    pub(crate) answers: Vec<(usize, u32, u32)>,
    ost_event: u32,
    pub(crate) accesses: usize,
    /// What the host does before each of the next accesses of the guest.
    pub(crate) deeds: Vec<Deed>,
}

impl Host {
    pub(crate) fn perform(&mut self, deed: Deed) {
        match deed {
            Deed::Insert(slot, memory) if self.slots[slot].memory.is_none() => {
                self.slots[slot] = Slot { memory: Some(memory), inserted: true, requested: false };
                self.has_event = true;
            }
            Deed::AskFor(slot) if self.slots[slot].memory.is_some() => {
                self.slots[slot].requested = true;
                self.has_event = true;
            }
            _ => {}
        }
    }

    fn before_access(&mut self) {
        self.accesses += 1;
        let deed = self.deeds.pop().unwrap_or(Deed::Nothing);
        self.perform(deed);
    }

    fn read(&mut self, offset: u16) -> u32 {
        self.before_access();
        let Some(slot) = self.slots.get(self.selected) else { return 0 };
        let memory = slot.memory.unwrap_or(Memory { start: 0, len: 0, proximity: 0 });
        match offset {
            0x0 => half(memory.start, 0),
            0x4 => half(memory.start, 1),
            0x8 => half(memory.len, 0),
            0xc => half(memory.len, 1),
            0x10 => memory.proximity,
            0x14 => {
                u32::from(slot.memory.is_some())
                    | u32::from(slot.inserted) << 1
                    | u32::from(slot.requested) << 2
            }
            _ => u32::MAX,
        }
    }

    fn write(&mut self, offset: u16, value: u32) {
        self.before_access();
        match offset {
            0x0 => self.selected = value as usize,
            0x4 => self.ost_event = value,
            0x8 => self.answers.push((self.selected, self.ost_event, value)),
            0x14 => {
                let Some(slot) = self.slots.get_mut(self.selected) else { return };
                // As QEMU does, only the lowest bit counts.
                if value & 2 != 0 {
                    slot.inserted = false;
                } else if value & 4 != 0 {
                    slot.requested = false;
                } else if value & 8 != 0 && !self.keeps_memory {
                    self.ejected.extend(slot.memory);
                    *slot = Slot::default();
                }
            }
            _ => panic!("a write to {offset:#x}"),
        }
    }
}

/// Returns the low half of a number or its high half.
fn half(number: u64, high: u32) -> u32 {
    u32::try_from(number >> (32 * high) & u64::from(u32::MAX)).unwrap()
}

/// The guest's access to a host that a test changes meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Registers(pub(crate) Rc<RefCell<Host>>);

impl SlotRegisters for Registers {
    fn read_u32(&mut self, offset: u16) -> u32 {
        self.0.borrow_mut().read(offset)
    }

    fn read_u8(&mut self, offset: u16) -> u8 {
        self.0.borrow_mut().read(offset).to_le_bytes()[0]
    }

    fn write_u32(&mut self, offset: u16, value: u32) {
        self.0.borrow_mut().write(offset, value);
    }

    fn write_u8(&mut self, offset: u16, value: u8) {
        self.0.borrow_mut().write(offset, value.into());
    }
}
