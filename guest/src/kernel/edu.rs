//! QEMU's device `edu`, which reads and writes memory by itself, as a device does that a machine
//! was given by its host. (QEMU, docs/specs/edu.rst)

use super::clock::Clock;
use super::pci::Buses;
use core::ptr::NonNull;
use hotmem::Pfn;
use virtio_drivers::transport::pci::bus::{DeviceFunction, DeviceFunctionInfo};

/// The device's registers, which are mapped.
pub(crate) struct Edu(NonNull<u8>);

/// It does not finish a transfer.
pub(crate) struct Stuck;

const VENDOR: u16 = 0x1234;
const DEVICE: u16 = 0x11e8;

/// Of BAR 0: where a transfer goes from and to, its length, and what starts it.
const FROM: usize = 0x80;
const TO: usize = 0x88;
const LEN: usize = 0x90;
const COMMAND: usize = 0x98;
const BYTES: u64 = 0xa0;

/// Of a command: it starts, and is not finished.
const RUN: u64 = 1 << 0;
/// Of a command: memory is written.
const TO_MEMORY: u64 = 1 << 1;

/// Where the device has its own memory: 4096 bytes. QEMU 7.2 aborts when a transfer reaches their
/// end.
const BUFFER: u64 = 0x4_0000;
/// A transfer takes a tenth of a second.
const PATIENCE_US: u64 = 60_000_000;

impl Edu {
    /// The device reaches this many address bits, unless it is told otherwise.
    pub(crate) const ADDRESS_BITS: u32 = 28;

    /// What is transferred, from a frame's first word on.
    pub(crate) const WORDS: u64 = 256;

    /// Returns whether the function is one.
    pub(crate) fn is_at(info: &DeviceFunctionInfo) -> bool {
        (info.vendor_id, info.device_id) == (VENDOR, DEVICE)
    }

    /// Returns the device at this function, whose registers are mapped.
    pub(crate) fn open(buses: &mut Buses, function: DeviceFunction) -> Option<Self> {
        buses.registers(function, 0, 0, BYTES).map(Edu)
    }

    /// Has the device read a frame.
    pub(crate) fn read(&self, frame: Pfn, clock: &Clock) -> Result<(), Stuck> {
        self.transfer(frame.phys_addr(), BUFFER, 0, clock)
    }

    /// Has the device write to a frame what it read last.
    pub(crate) fn write(&self, frame: Pfn, clock: &Clock) -> Result<(), Stuck> {
        self.transfer(BUFFER, frame.phys_addr(), TO_MEMORY, clock)
    }

    fn transfer(&self, from: u64, to: u64, direction: u64, clock: &Clock) -> Result<(), Stuck> {
        for (register, value) in
            [(FROM, from), (TO, to), (LEN, Edu::WORDS * 8), (COMMAND, RUN | direction)]
        {
            // SAFETY: the registers are the device's and mapped. It is told of memory that its
            // caller has, or that is pinned for it.
            unsafe { self.0.byte_add(register).cast::<u64>().write_volatile(value) }
        }
        let until = clock.now_us() + PATIENCE_US;
        // SAFETY: as above; reading has no effect.
        while unsafe { self.0.byte_add(COMMAND).cast::<u64>().read_volatile() } & RUN != 0 {
            if clock.now_us() > until {
                return Err(Stuck);
            }
            core::hint::spin_loop();
        }
        Ok(())
    }
}
