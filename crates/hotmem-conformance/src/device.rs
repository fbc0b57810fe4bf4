//! Defines what the author of a device implements: access to its registers, to the memory of its
//! guest, and to what its VMM can do.

use core::fmt;
use core::ops::Range;

/// The registers of a virtio-mmio device (VIRTIO 1.3, section 4.2.2), as the bus of a VMM accesses
/// them. The suite polls the device, so that its interrupts may go nowhere: [`Host::take_interrupt`].
pub trait Registers {
    /// Reads `data.len()` bytes at `offset` from the start of the registers, little-endian. Control
    /// registers are read by 4 bytes, fields of the configuration by 2 or 4.
    fn read(&mut self, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset`, as [`read`](Self::read) reads it.
    fn write(&mut self, offset: u64, data: &[u8]);

    /// Lets the device handle what it was notified of. It is called until the device has answered.
    /// For a device that has a thread of its own, the default implementation suffices.
    fn run(&mut self) {}
}

/// The memory of the guest, by guest physical addresses.
pub trait GuestMemory {
    /// Returns addresses of RAM that the suite may overwrite: at least [`SCRATCH_BYTES`], from a
    /// multiple of 4096, and below 16 TiB, because a balloon has 32 bits for the number of a page.
    fn ram(&self) -> Range<u64>;

    /// Copies memory at `addr` into `data`. `addr` lies in RAM or in the region of a memory device. Two
    /// bytes at an even address must be read by one load, because the device may write them meanwhile.
    ///
    /// # Errors
    /// A guest could not read this memory.
    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible>;

    /// Copies `data` to `addr`, as [`read_memory`](Self::read_memory) reads it. Two bytes at an even
    /// address must be written by one store, because the device may read them meanwhile.
    ///
    /// # Errors
    /// A guest could not write this memory.
    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible>;
}

/// What the VMM can do with its device. A point whose method is not implemented is skipped.
pub trait Host {
    /// Changes `requested_size` of a memory device. `bytes` is a multiple of the block size, and at
    /// most the size of the region.
    ///
    /// # Errors
    /// The VMM has no means to do so.
    fn set_requested_size(&mut self, _bytes: u64) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    /// Returns the NUMA node for which the VMM has made a memory device.
    ///
    /// # Errors
    /// The VMM does not say.
    fn node(&mut self) -> Result<u16, Unsupported> {
        Err(Unsupported)
    }

    /// Returns whether the device has interrupted since the last call, by an event, a line or a message.
    /// For a line that stays raised, the moment counts at which it was raised.
    ///
    /// # Errors
    /// The adapter does not see interrupts.
    fn take_interrupt(&mut self) -> Result<bool, Unsupported> {
        Err(Unsupported)
    }

    /// Changes `num_pages` of a balloon, in pages of 4096 bytes.
    ///
    /// # Errors
    /// The VMM has no means to do so.
    fn set_balloon_pages(&mut self, _pages: u32) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    /// Asks a balloon for new statistics.
    ///
    /// # Errors
    /// The VMM has no means to do so.
    fn ask_statistics(&mut self) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    /// Returns the value of a statistic (section 5.5.6.4) that the guest has reported last, or
    /// `None` if it has not reported it.
    ///
    /// # Errors
    /// The VMM does not say.
    fn statistic(&mut self, _tag: u16) -> Result<Option<u64>, Unsupported> {
        Err(Unsupported)
    }

    /// Starts a round of free page hints, for which the balloon chooses a new command ID.
    ///
    /// # Errors
    /// The VMM has no means to do so.
    fn start_hints(&mut self) -> Result<(), Unsupported> {
        Err(Unsupported)
    }
}

/// A device under test.
pub trait Device: Registers + GuestMemory + Host {}

impl<T: Registers + GuestMemory + Host> Device for T {}

/// The RAM in bytes that the suite needs for its queues, its buffers and the pages that it gives to a
/// balloon.
pub const SCRATCH_BYTES: u64 = 2 << 20;

/// A guest could not access the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inaccessible;

/// The VMM has no means to do what the suite asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported;

impl Unsupported {
    /// The reason of [`Outcome::Skipped`](crate::Outcome::Skipped) for a point that needs what [`Host`] cannot
    /// do. A guest, which may know why, can print another.
    pub const REASON: &str = "it needs a method of Host that is not implemented";
}

impl fmt::Display for Inaccessible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the guest cannot access the memory")
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the VMM has no means to do so")
    }
}

impl core::error::Error for Inaccessible {}

impl core::error::Error for Unsupported {}
