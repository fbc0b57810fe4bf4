//! The device, the memory and the host, as the points see them.

use super::pci::{CONFIG, PciRegisters};
use super::window::Window;
use crate::arch::{Clock, Console};
use crate::kernel::memory::{self, AddressSpace, virt};
use core::fmt::Write;
use core::ops::Range;
use core::ptr::NonNull;
use hotmem::PfnRange;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem_conformance::{GuestMemory, Host, Inaccessible, Registers, SCRATCH_BYTES, Unsupported};
use hotmem_directmap::Caching;

/// The size of the pages in which memory of the region is mapped.
const PAGEBLOCK_SIZE: u64 = PAGEBLOCK_FRAMES as u64 * FRAME_SIZE;

/// How long the host has to carry out what a point wants. It is long, because the host may be busy.
const HOST_LIMIT_US: u64 = 20_000_000;

/// The offsets of `requested_size` (5.15.4) and `num_pages` (5.5.4) in the configuration.
const REQUESTED_SIZE: u64 = 48;
const NUM_PAGES: u64 = 0;

/// The registers of a device.
pub(crate) enum DeviceRegisters {
    /// Those of virtio-mmio.
    Mmio(Window),
    /// Those of PCI.
    Pci(PciRegisters),
}

/// A device of the VMM.
pub(crate) struct Adapter<'a> {
    registers: DeviceRegisters,
    space: &'a mut AddressSpace,
    clock: &'a Clock,
    /// RAM for queues and buffers. It stays allocated, because the run ends with the check.
    scratch: PfnRange,
    /// RAM from boot, which is not the region's.
    boot_memory: PfnRange,
    /// Whether the host has carried out everything so far.
    host_answers: bool,
}

impl<'a> Adapter<'a> {
    /// Makes an adapter. Returns `None` if there is no memory for queues and buffers.
    pub(crate) fn new(
        registers: DeviceRegisters,
        space: &'a mut AddressSpace,
        clock: &'a Clock,
        boot_memory: PfnRange,
    ) -> Option<Self> {
        let order = (SCRATCH_BYTES / FRAME_SIZE).next_power_of_two().ilog2();
        let scratch = memory::alloc_order(order)?;
        Some(Adapter { registers, space, clock, scratch, boot_memory, host_answers: true })
    }

    /// Returns the memory behind an address, which must be RAM for buffers or of the device's region.
    fn memory(&mut self, addr: u64, len: usize) -> Result<(Window, u64), Inaccessible> {
        let end = addr.checked_add(len as u64).ok_or(Inaccessible)?;
        let ram = self.ram();
        let (start, len) = if ram.start <= addr && end <= ram.end {
            (NonNull::new(virt(ram.start)), SCRATCH_BYTES)
        } else {
            // Other memory is the region's. It is mapped when it is first accessed.
            let block = addr / PAGEBLOCK_SIZE * PAGEBLOCK_SIZE;
            let end = end.checked_next_multiple_of(PAGEBLOCK_SIZE).ok_or(Inaccessible)?;
            let len = end - block;
            // A device may say that its region lies in the kernel's memory.
            if block < self.boot_memory.end().phys_addr() {
                return Err(Inaccessible);
            }
            return match self.space.map_bytes(block, len, Caching::WriteBack) {
                // SAFETY: the memory stays mapped, and only the device and the points use it.
                Ok(start) => Ok((unsafe { Window::new(start, len) }, addr - block)),
                Err(_) => Err(Inaccessible),
            };
        };
        let start = start.ok_or(Inaccessible)?;
        // SAFETY: the frames are allocated and mapped, and only the device and the points use them.
        Ok((unsafe { Window::new(start, len) }, addr - ram.start))
    }

    /// Reads `N` bytes of the configuration.
    fn config<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        for (offset, word) in (CONFIG + offset..).step_by(4).zip(bytes.chunks_mut(4)) {
            self.read(offset, word);
        }
        bytes
    }

    /// Asks the host for something, and waits until `is_done`. If the host has not done something before,
    /// it is not asked again.
    fn ask_host(
        &mut self,
        wish: core::fmt::Arguments<'_>,
        is_done: impl Fn(&mut Self) -> bool,
    ) -> Result<(), Unsupported> {
        if !self.host_answers {
            return Err(Unsupported);
        }
        // The console takes every line.
        let _ = writeln!(Console::new(), "# host: {wish}");
        let limit = self.clock.now_us() + HOST_LIMIT_US;
        while !is_done(self) {
            if self.clock.now_us() >= limit {
                self.host_answers = false;
                return Err(Unsupported);
            }
            core::hint::spin_loop();
        }
        Ok(())
    }
}

impl Registers for Adapter<'_> {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        match &mut self.registers {
            DeviceRegisters::Mmio(window) => window.copy_to(offset, data),
            DeviceRegisters::Pci(registers) => registers.read(offset, data),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        match &mut self.registers {
            DeviceRegisters::Mmio(window) => window.copy_from(offset, data),
            DeviceRegisters::Pci(registers) => registers.write(offset, data),
        }
    }
}

impl GuestMemory for Adapter<'_> {
    fn ram(&self) -> Range<u64> {
        self.scratch.start().phys_addr()..self.scratch.end().phys_addr()
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        let (window, offset) = self.memory(addr, data.len())?;
        window.copy_to(offset, data);
        Ok(())
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        let (window, offset) = self.memory(addr, data.len())?;
        window.copy_from(offset, data);
        Ok(())
    }
}

impl Host for Adapter<'_> {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        self.ask_host(format_args!("requested-size {bytes}"), |adapter| {
            u64::from_le_bytes(adapter.config(REQUESTED_SIZE)) == bytes
        })
    }

    fn set_balloon_pages(&mut self, pages: u32) -> Result<(), Unsupported> {
        self.ask_host(format_args!("balloon-pages {pages}"), |adapter| {
            u32::from_le_bytes(adapter.config(NUM_PAGES)) == pages
        })
    }
}
