//! Drives the registers of memory slots: compares what they show with what is known, and answers.

mod change;
mod registers;

pub use change::{Change, Dimm, EjectError, Fault, TooManySlots};
use hotmem_addr::{Bytes, PfnRange};
pub use registers::{Model, SlotRegisters, StatusWidth};
use registers::{register, status};

/// An answer to the host: the event and the status of an `_OST` (ACPI 6.5, 6.3.5).
type Ost = (u32, u32);

const ACCEPTED: Ost = (1, 0);
const REJECTED: Ost = (1, 1);
/// The request to eject was refused because the device is busy.
const REFUSED: Ost = (3, 0x82);

/// What is known of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Empty,
    Holds(Dimm),
    /// It has memory that cannot be used.
    Unusable,
}

/// The slots of a machine, at most `N`, and what is known of each.
///
/// ```
/// use hotmem_acpi::{Change, MemorySlots, SlotRegisters};
///
/// /// Call this at boot, and when the event of the slots has happened: general-purpose event 3 on
/// /// QEMU's PCs.
/// fn examine<R: SlotRegisters, const N: usize>(slots: &mut MemorySlots<R, N>) {
///     slots.notify();
///     while let Some(change) = slots.next_change() {
///         match change {
///             // Announce, add and online the memory here, or reject it.
///             Change::Inserted { slot, .. } => slots.accept(slot),
///             // Begin to take the memory offline here; eject it when it is removed.
///             Change::RemovalRequested { slot, .. } => slots.refuse(slot),
///             Change::Vanished { .. } | Change::Unusable { .. } => {}
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct MemorySlots<R, const N: usize> {
    registers: R,
    model: Model,
    slots: [Slot; N],
    count: u32,
    /// The next slot to examine.
    cursor: u32,
    /// The number of slots to examine until all were examined since the last notification.
    remaining: u32,
    /// The second change of the slot that was examined last.
    second_change: Option<Change>,
}

/// Returns the number of slots of QEMU's registers, for machines without a DSDT that names it. The
/// result is 0 if there are no registers: then all reads return ones, or all return zeros. Reads at
/// most 257 slots, which is more than QEMU has.
pub fn count_qemu_slots(registers: &mut impl SlotRegisters) -> u32 {
    let mut exists = |slot| {
        registers.write_u32(register::SELECT, slot);
        registers.read_u8(register::RESERVED) == u8::MAX
    };
    if exists(u32::MAX) { 0 } else { (0..=256).find(|&slot| !exists(slot)).unwrap_or(257) }
}

impl<R: SlotRegisters, const N: usize> MemorySlots<R, N> {
    /// Makes the slots of a machine, all of which are to be examined.
    ///
    /// # Errors
    /// `count`, the number of slots, is more than `N`.
    pub fn new(registers: R, model: Model, count: u32) -> Result<Self, TooManySlots> {
        if usize::try_from(count).is_ok_and(|count| count <= N) {
            let slots = [Slot::Empty; N];
            let (cursor, remaining) = (0, count);
            Ok(MemorySlots {
                registers,
                model,
                slots,
                count,
                cursor,
                remaining,
                second_change: None,
            })
        } else {
            Err(TooManySlots { count, capacity: N })
        }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the memory of a slot that can be used, as far as is known.
    #[must_use]
    pub fn memory(&self, slot: u32) -> Option<Dimm> {
        match self.slots.get(usize::try_from(slot).ok()?)? {
            Slot::Holds(dimm) => Some(*dimm),
            Slot::Empty | Slot::Unusable => None,
        }
    }

    /// Makes [`next_change`](Self::next_change) examine all slots. Call this after the event was
    /// acknowledged: a change after that raises the event again.
    pub fn notify(&mut self) {
        self.remaining = self.count;
    }

    /// Returns the next change, and acknowledges it. Returns `None` if all slots were examined since
    /// the last call of [`notify`](Self::notify). A slot is examined once for each notification, so a
    /// host that changes slots all the time cannot keep a caller busy.
    pub fn next_change(&mut self) -> Option<Change> {
        if let Some(change) = self.second_change.take() {
            return Some(change);
        }
        while self.remaining > 0 {
            let slot = self.cursor;
            self.cursor = (slot + 1) % self.count;
            self.remaining -= 1;
            let [first, second] = self.examine(slot);
            self.second_change = second;
            if first.is_some() {
                return first;
            }
        }
        None
    }

    /// Acknowledges the events of a slot, and returns its changes in the order in which they happened.
    fn examine(&mut self, slot: u32) -> [Option<Change>; 2] {
        self.select(slot);
        let status = self.read_status();
        // QEMU handles the lowest bit only, so each event is acknowledged by a write of its own.
        for event in [status::INSERTED, status::REMOVAL_REQUESTED] {
            if status & event != 0 {
                self.write_status(event);
            }
        }
        let is_present = status & status::PRESENT != 0;
        let was_inserted = status & status::INSERTED != 0;
        let is_requested = status & status::REMOVAL_REQUESTED != 0;
        match self.slots[slot as usize] {
            Slot::Empty if is_present => {
                let inserted = self.insert(slot);
                [Some(inserted), is_requested.then(|| self.removal_requested(slot)).flatten()]
            }
            Slot::Empty => [None, None],
            Slot::Holds(dimm) if !is_present => {
                self.slots[slot as usize] = Slot::Empty;
                [Some(Change::Vanished { slot, dimm }), None]
            }
            // The memory was exchanged since the last examination.
            Slot::Holds(dimm) if was_inserted => {
                self.slots[slot as usize] = Slot::Empty;
                [Some(Change::Vanished { slot, dimm }), Some(self.insert(slot))]
            }
            Slot::Unusable if !is_present => {
                self.slots[slot as usize] = Slot::Empty;
                [None, None]
            }
            Slot::Unusable if was_inserted => [Some(self.insert(slot)), None],
            Slot::Holds(_) | Slot::Unusable if is_requested => [self.removal_requested(slot), None],
            Slot::Holds(_) | Slot::Unusable => [None, None],
        }
    }

    /// Records the memory of the selected slot.
    fn insert(&mut self, slot: u32) -> Change {
        self.slots[slot as usize] = Slot::Empty;
        match self.read_dimm() {
            Ok(dimm) => {
                self.slots[slot as usize] = Slot::Holds(dimm);
                Change::Inserted { slot, dimm }
            }
            Err(fault) => {
                self.slots[slot as usize] = Slot::Unusable;
                self.answer(slot, REJECTED);
                Change::Unusable { slot, fault }
            }
        }
    }

    /// Ejects memory that cannot be used. Returns the request for other memory.
    fn removal_requested(&mut self, slot: u32) -> Option<Change> {
        if let Some(dimm) = self.memory(slot) {
            return Some(Change::RemovalRequested { slot, dimm });
        }
        // If the host fails to take the memory, it stays unusable, and the host may ask again.
        let _ = self.eject(slot);
        None
    }

    /// Reads the memory of the selected slot twice, because the host may change it meanwhile.
    fn read_dimm(&mut self) -> Result<Dimm, Fault> {
        let first = self.read_raw();
        if self.read_raw() != first {
            return Err(Fault::Unsteady);
        }
        let (start, len, proximity) = first;
        let range = PfnRange::from_bytes(start, Bytes(len)).map_err(Fault::Range)?;
        if range.is_empty() {
            return Err(Fault::Empty);
        }
        let overlapping = (0..self.count)
            .find(|&other| self.memory(other).is_some_and(|dimm| dimm.range.overlaps(range)));
        match overlapping {
            Some(other) => Err(Fault::Overlaps { range, other }),
            None => Ok(Dimm { range, proximity }),
        }
    }

    fn read_raw(&mut self) -> (u64, u64, u32) {
        let registers = &mut self.registers;
        let mut read_u64 = |offset| {
            let low = u64::from(registers.read_u32(offset));
            low | u64::from(registers.read_u32(offset + 4)) << 32
        };
        let (start, len) = (read_u64(register::ADDRESS), read_u64(register::SIZE));
        let proximity =
            if self.model.has_proximity { self.registers.read_u32(register::PROXIMITY) } else { 0 };
        (start, len, proximity)
    }

    /// Tells the host that the memory of a slot is in use.
    pub fn accept(&mut self, slot: u32) {
        self.answer(slot, ACCEPTED);
    }

    /// Tells the host that the kernel does not use the memory of a slot. The host can still ask for it.
    pub fn reject(&mut self, slot: u32) {
        self.answer(slot, REJECTED);
    }

    /// Tells the host that the memory of a slot stays in use, although the host has asked for it.
    pub fn refuse(&mut self, slot: u32) {
        self.answer(slot, REFUSED);
    }

    /// Gives the memory of a slot to the host. Nothing may use it any more: the host unmaps it at once.
    ///
    /// The host may put other memory into the slot before this call returns. The next call of
    /// [`next_change`](Self::next_change) after a notification returns it.
    ///
    /// # Errors
    /// The slot has no memory, or the host has failed to take it.
    pub fn eject(&mut self, slot: u32) -> Result<(), EjectError> {
        let known = usize::try_from(slot).ok().and_then(|slot| self.slots.get(slot));
        if slot >= self.count || known.is_none_or(|&known| known == Slot::Empty) {
            return Err(EjectError::Empty { slot });
        }
        self.select(slot);
        self.write_status(status::EJECT);
        let status = self.read_status();
        // The insertion of the ejected memory was acknowledged, so memory with the event is new.
        if status & status::PRESENT != 0 && status & status::INSERTED == 0 {
            return Err(EjectError::StillPresent { slot });
        }
        self.slots[slot as usize] = Slot::Empty;
        Ok(())
    }

    fn answer(&mut self, slot: u32, (event, status): Ost) {
        if self.model.has_ost && slot < self.count {
            self.select(slot);
            self.registers.write_u32(register::OST_EVENT, event);
            // This write makes QEMU send its event ACPI_DEVICE_OST.
            self.registers.write_u32(register::OST_STATUS, status);
        }
    }

    fn select(&mut self, slot: u32) {
        self.registers.write_u32(register::SELECT, slot);
    }

    fn read_status(&mut self) -> u8 {
        match self.model.status_width {
            StatusWidth::Byte => self.registers.read_u8(register::STATUS),
            StatusWidth::FourBytes => self.registers.read_u32(register::STATUS).to_le_bytes()[0],
        }
    }

    fn write_status(&mut self, value: u8) {
        match self.model.status_width {
            StatusWidth::Byte => self.registers.write_u8(register::STATUS, value),
            StatusWidth::FourBytes => self.registers.write_u32(register::STATUS, value.into()),
        }
    }
}
