//! The device, the memory and the host, as the points see them.

use super::pci::{CONFIG, PciRegisters};
use super::window::Window;
use crate::arch::{Clock, Console};
use crate::kernel::memory::{self, AddressSpace, virt};
use core::fmt::{self, Write};
use core::ops::Range;
use core::ptr::NonNull;
use core::time::Duration;
use hotmem::PfnRange;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem_conformance::{GuestMemory, Host, Inaccessible, Registers, SCRATCH_BYTES, Unsupported};
use hotmem_directmap::Caching;

/// The size of the pages in which memory of the region is mapped.
const PAGEBLOCK_SIZE: u64 = PAGEBLOCK_FRAMES as u64 * FRAME_SIZE;

/// How long the host has to carry out what a point wants. It is long, because the host may be busy.
pub(super) const HOST_LIMIT: Duration = Duration::from_secs(20);

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
    host: HostState,
}

/// Something that a point wants of the host.
#[derive(Clone, Copy)]
pub(crate) enum Wish {
    RequestedSize(u64),
    BalloonPages(u32),
}

/// Whether somebody on the host carries out what points want.
#[derive(Clone, Copy)]
enum HostState {
    /// Everything was carried out so far.
    Answers,
    /// The operator says that nobody does.
    Absent,
    /// This was not carried out in time.
    HasNotAnswered(Wish),
}

impl<'a> Adapter<'a> {
    /// Makes an adapter. `has_host` says whether somebody on the host carries out what points want. Returns
    /// `None` if there is no memory for queues and buffers.
    pub(crate) fn new(
        registers: DeviceRegisters,
        space: &'a mut AddressSpace,
        clock: &'a Clock,
        boot_memory: PfnRange,
        has_host: bool,
    ) -> Option<Self> {
        let order = (SCRATCH_BYTES / FRAME_SIZE).next_power_of_two().ilog2();
        let scratch = memory::alloc_order(order)?;
        let host = if has_host { HostState::Answers } else { HostState::Absent };
        Some(Adapter { registers, space, clock, scratch, boot_memory, host })
    }

    pub(super) fn is_on_pci(&self) -> bool {
        matches!(self.registers, DeviceRegisters::Pci(_))
    }

    /// Returns what nobody on the host has carried out, if anything.
    pub(super) fn unanswered(&self) -> Option<Wish> {
        match self.host {
            HostState::HasNotAnswered(wish) => Some(wish),
            HostState::Answers | HostState::Absent => None,
        }
    }

    /// Returns why a point that needs the host was skipped.
    pub(super) fn why_unsupported(&self) -> &'static str {
        match self.host {
            HostState::Answers => "the guest can neither see this nor ask the host for it",
            HostState::Absent => "it needs the host, and hotmem.check_host is off",
            HostState::HasNotAnswered(_) => "no one carried out what `# host:` asks for",
        }
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
        wish: Wish,
        is_done: impl Fn(&mut Self) -> bool,
    ) -> Result<(), Unsupported> {
        let HostState::Answers = self.host else { return Err(Unsupported) };
        // The console takes every line.
        let _ = writeln!(Console::new(), "# host: {wish}");
        let limit = Duration::from_micros(self.clock.now_us()) + HOST_LIMIT;
        while !is_done(self) {
            if Duration::from_micros(self.clock.now_us()) >= limit {
                self.host = HostState::HasNotAnswered(wish);
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
        self.ask_host(Wish::RequestedSize(bytes), |adapter| {
            u64::from_le_bytes(adapter.config(REQUESTED_SIZE)) == bytes
        })
    }

    fn set_balloon_pages(&mut self, pages: u32) -> Result<(), Unsupported> {
        self.ask_host(Wish::BalloonPages(pages), |adapter| {
            u32::from_le_bytes(adapter.config(NUM_PAGES)) == pages
        })
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wish::RequestedSize(bytes) => write!(f, "requested-size {bytes}"),
            Wish::BalloonPages(pages) => write!(f, "balloon-pages {pages}"),
        }
    }
}
