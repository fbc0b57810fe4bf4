//! Simulates a PCI bus with one virtio device.

use hotmem_virtio::pci::{Registers, Width};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// The offsets in BAR 4 of the four kinds of registers.
pub(crate) const COMMON: u32 = 0;
pub(crate) const ISR: u32 = 0x1000;
pub(crate) const DEVICE: u32 = 0x2000;
pub(crate) const NOTIFY: u32 = 0x3000;

/// The distance of the notification registers of neighbouring queues (`notify_off_multiplier`).
pub(crate) const NOTIFY_OFF_MULTIPLIER: u32 = 4;

/// The address in BAR 4.
pub(crate) const ADDRESS: u64 = 0x12_fe00_0000;

/// The configuration space of each device, by bus and device number. A read from a missing device
/// returns all ones.
#[derive(Clone, Default)]
pub(crate) struct Bus(Rc<RefCell<Devices>>);

type Devices = HashMap<(u8, u8), [u32; 64]>;

impl Bus {
    /// Makes a bus with a device of this ID at this bus and device number.
    pub(crate) fn with(id: u16, bus: u8, device: u8) -> Bus {
        let mut words = [0; 64];
        words[0] = u32::from(id) << 16 | 0x1af4;
        // The status register has the bit for a list of capabilities, and one error bit. The
        // command register is 0.
        words[1] = 0x8010 << 16;
        words[0x34 / 4] = 0x40;
        // BAR 4, of 64 bits, prefetchable.
        words[8] = ADDRESS as u32 | 0xc;
        words[9] = (ADDRESS >> 32) as u32;
        let mut capability =
            |at: usize, next: u32, kind: u32, bar: u32, (offset, len): (u32, u32)| {
                words[at / 4] = kind << 24 | 16 << 16 | next << 8 | 0x09;
                (words[at / 4 + 1], words[at / 4 + 2], words[at / 4 + 3]) = (bar, offset, len);
            };
        // The last capability, at 0x90, is a second one for the device's own registers, in BAR 5.
        // The driver must ignore it.
        capability(0x40, 0x50, 1, 4, (COMMON, 0x1000));
        capability(0x50, 0x60, 3, 4, (ISR, 0x1000));
        capability(0x60, 0x70, 4, 4, (DEVICE, 64));
        capability(0x70, 0x90, 2, 4, (NOTIFY, 16));
        capability(0x90, 0, 4, 5, (0, 64));
        words[0x80 / 4] = NOTIFY_OFF_MULTIPLIER;
        let result = Bus::default();
        result.0.borrow_mut().insert((bus, device), words);
        result
    }

    pub(crate) fn change(&self, change: impl Fn(&mut [u32; 64])) {
        self.0.borrow_mut().values_mut().for_each(change);
    }

    pub(crate) fn word(&self, at: u8) -> u32 {
        self.0.borrow().values().next().unwrap()[usize::from(at / 4)]
    }
}

impl ConfigurationAccess for Bus {
    fn read_word(&self, function: DeviceFunction, at: u8) -> u32 {
        assert!(at.is_multiple_of(4));
        let functions = self.0.borrow();
        let words = functions.get(&(function.bus, function.device));
        words
            .filter(|_| function.function == 0)
            .map_or(u32::MAX, |words| words[usize::from(at / 4)])
    }

    fn write_word(&mut self, function: DeviceFunction, at: u8, word: u32) {
        let mut functions = self.0.borrow_mut();
        let words = functions.get_mut(&(function.bus, function.device)).unwrap();
        let old = words[usize::from(at / 4)];
        // A bit of the status that is written as one is cleared.
        let status = if at == 4 { old & 0xffff_0000 & !word } else { word & 0xffff_0000 };
        words[usize::from(at / 4)] = status | word & 0xffff;
    }

    unsafe fn unsafe_clone(&self) -> Bus {
        self.clone()
    }
}

/// The bytes that the BAR maps, and a record of each write.
#[derive(Clone)]
pub(crate) struct Bar {
    pub(crate) range: Range<u64>,
    pub(crate) bytes: Rc<RefCell<Vec<u8>>>,
    pub(crate) writes: Rc<RefCell<Vec<(u32, Width, u32)>>>,
    /// Whether the device has no resources to map events to entries of the MSI-X table.
    pub(crate) refuses_vectors: Rc<Cell<bool>>,
}

/// The registers with the entries of the MSI-X table to which events are mapped, and the value of an
/// event that is not mapped.
const VECTORS: [u32; 2] = [16, 26];
const NO_VECTOR: u16 = 0xffff;

impl Bar {
    pub(crate) fn new(range: Range<u64>) -> Bar {
        let bytes = vec![0; (range.end - range.start) as usize];
        let bytes = Rc::new(RefCell::new(bytes));
        let bar = Bar { range, bytes, writes: Rc::default(), refuses_vectors: Rc::default() };
        VECTORS.into_iter().for_each(|at| bar.set(at, &NO_VECTOR.to_le_bytes()));
        bar
    }

    pub(crate) fn set(&self, at: u32, bytes: &[u8]) {
        self.bytes.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn get<const N: usize>(&self, at: u32) -> [u8; N] {
        self.bytes.borrow()[at as usize..][..N].try_into().unwrap()
    }
}

/// Checks that an access has the width of the field, or is half of a field of 8 bytes (4.1.3.1),
/// because some devices drop other accesses.
fn check_width(offset: usize, width: Width) {
    assert!(offset.is_multiple_of(width.bytes()));
    let expected = match offset as u32 {
        0..=15 | 32..56 => Width::FourBytes,
        16..=19 | 22..32 => Width::TwoBytes,
        20 | 21 | ISR => Width::OneByte,
        NOTIFY.. => Width::TwoBytes,
        _ => return,
    };
    assert_eq!(width, expected, "the width of the access at {offset:#x}");
}

impl Registers for Bar {
    fn read(&self, offset: usize, width: Width) -> u32 {
        check_width(offset, width);
        let mut word = [0; 4];
        word[..width.bytes()].copy_from_slice(&self.bytes.borrow()[offset..][..width.bytes()]);
        u32::from_le_bytes(word)
    }

    fn write(&mut self, offset: usize, width: Width, value: u32) {
        check_width(offset, width);
        self.writes.borrow_mut().push((offset as u32, width, value));
        let refused = VECTORS.contains(&(offset as u32)) && self.refuses_vectors.get();
        let value = if refused { NO_VECTOR.into() } else { value };
        self.set(offset as u32, &value.to_le_bytes()[..width.bytes()]);
    }
}
