//! Drives QEMU's device `edu`, which accesses memory by DMA as a device does that the host has
//! assigned to the guest. (QEMU, docs/specs/edu.rst)

use super::pci::Buses;
use crate::arch::{Clock, mmio};
use hotmem::Pfn;
use virtio_drivers::transport::pci::bus::{DeviceFunction, DeviceFunctionInfo};

/// The address of the device's registers in BAR 0, which is mapped.
pub(crate) struct Edu(usize);

/// The device does not finish a transfer.
pub(crate) struct TransferUnfinished;

const VENDOR: u16 = 0x1234;
const DEVICE: u16 = 0x11e8;

/// Registers in BAR 0: the source of a transfer, its destination, its length and its command.
const SOURCE: usize = 0x80;
const DESTINATION: usize = 0x88;
const LENGTH: usize = 0x90;
const COMMAND: usize = 0x98;
const REGISTER_BYTES: u64 = 0xa0;

/// A bit of the command. Writing it starts a transfer; it reads as 1 until the transfer is
/// finished.
const START: u64 = 1 << 0;
/// A bit of the command: the device writes to memory, instead of reading from memory.
const TO_MEMORY: u64 = 1 << 1;

/// The address of the device's buffer of 4096 bytes. QEMU 7.2 aborts when a transfer reaches the
/// buffer's end, so a transfer is shorter than the buffer.
const BUFFER: u64 = 0x4_0000;
/// The timeout of a transfer, which normally takes a tenth of a second.
const TIMEOUT_US: u64 = 60_000_000;

impl Edu {
    /// The default number of address bits of the device.
    pub(crate) const ADDRESS_BITS: u32 = 28;

    /// The number of words in a transfer. A transfer begins at a frame's first word.
    pub(crate) const WORDS: u64 = 256;

    /// Returns whether the function is an `edu` device.
    pub(crate) fn is_at(info: &DeviceFunctionInfo) -> bool {
        (info.vendor_id, info.device_id) == (VENDOR, DEVICE)
    }

    /// Opens the device at `function`, whose registers must be mapped.
    pub(crate) fn open(buses: &mut Buses, function: DeviceFunction) -> Option<Self> {
        let registers = buses.registers(function, 0, 0, REGISTER_BYTES)?;
        Some(Edu(registers.as_ptr().expose_provenance()))
    }

    /// Makes the device read a frame.
    pub(crate) fn read(&self, frame: Pfn, clock: &Clock) -> Result<(), TransferUnfinished> {
        self.transfer(frame.phys_addr(), BUFFER, 0, clock)
    }

    /// Makes the device write to a frame the data that it last read.
    pub(crate) fn write(&self, frame: Pfn, clock: &Clock) -> Result<(), TransferUnfinished> {
        self.transfer(BUFFER, frame.phys_addr(), TO_MEMORY, clock)
    }

    fn transfer(
        &self,
        from: u64,
        to: u64,
        direction: u64,
        clock: &Clock,
    ) -> Result<(), TransferUnfinished> {
        for (register, value) in [
            (SOURCE, from),
            (DESTINATION, to),
            (LENGTH, Edu::WORDS * 8),
            (COMMAND, START | direction),
        ] {
            // SAFETY: the register belongs to the device and is mapped. The transfer accesses only
            // memory that the caller owns or has pinned.
            unsafe { mmio::write_u64(self.0 + register, value) }
        }
        let deadline_us = clock.now_us() + TIMEOUT_US;
        // SAFETY: the command register is mapped, and reading it has no effect.
        while unsafe { mmio::read_u64(self.0 + COMMAND) } & START != 0 {
            if clock.now_us() > deadline_us {
                return Err(TransferUnfinished);
            }
            core::hint::spin_loop();
        }
        Ok(())
    }
}
