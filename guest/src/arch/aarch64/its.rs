//! Drives the GICv3's interrupt translation service (ITS), which turns the messages of PCI devices into
//! interrupts of the first CPU, called LPIs. (Arm IHI 0069, chapters 5 and 12)

use super::layout::LAYOUT;
use super::messages::Message;
use super::mmio::{read_u64, write_u32, write_u64};
use core::ptr::NonNull;
use hotmem::PfnRange;
use hotmem::geometry::FRAME_SIZE;
use hotmem_guest::fixed_list::FixedList;
use hotmem_guest::to_usize;
use spin::Mutex;

/// The number of the first LPI. Message n becomes the LPI n after it.
pub(super) const FIRST_LPI: u32 = 8192;
/// The size of the registers.
pub(super) const REGISTER_BYTES: u64 = 0x2_0000;

// Offsets of the ITS's registers.
const CONTROL: usize = 0;
const TYPE: usize = 8;
const COMMAND_QUEUE: usize = 0x80;
const COMMAND_WRITE: usize = 0x88;
const COMMAND_READ: usize = 0x90;
/// A bit of [`COMMAND_READ`]: the ITS has stopped at a command.
const IS_STALLED: u64 = 1;
const TABLES: usize = 0x100;
const TABLE_COUNT: usize = 8;
/// The register to which devices write their messages.
const TRANSLATER: u64 = 0x1_0040;
// Offsets of the redistributor's registers.
const LPI_CONTROL: usize = 0;
const REDISTRIBUTOR_TYPE: usize = 8;
const LPI_PROPERTIES: usize = 0x70;
const LPI_PENDING: usize = 0x78;

const VALID: u64 = 1 << 63;
/// Write-back and inner shareable, in the registers of the ITS and in those of the redistributor.
const ITS_MEMORY: u64 = 7 << 59 | 1 << 10;
const LPI_MEMORY: u64 = 7 << 7 | 1 << 10;
/// The bit of [`LPI_PENDING`] that says that the table is zero.
const IS_ZERO: u64 = 1 << 62;
/// LPIs have 14 bits, so there are as many as there are numbers up to 16383.
const LPI_BITS: u64 = 14;
const LPI_COUNT: usize = 8192;
/// The properties of an LPI: it is enabled and has priority 0xa0. Bit 1 is always 1.
const ENABLED: u8 = 0xa3;
/// The bits of the number of a device's message: there are up to 32.
const EVENT_BITS: u64 = 5;
/// The kind and the size of an entry of a table, which are fixed.
const FIXED: u64 = 7 << 56 | 0x1f << 48;
/// The kind of the table of devices.
const DEVICES: u64 = 1;
/// The size of a table.
const TABLE_BYTES: u64 = 64 << 10;
/// The size of a table's pages: 4 KiB, 16 KiB or 64 KiB. An ITS may have one size only.
const PAGE_SIZE: u64 = 3 << 8;
const PAGES_OF_64_KIB: u64 = 2 << 8;
/// Whether redistributors are named by their addresses and not by their numbers.
const NAMES_ADDRESSES: u64 = 1 << 19;

/// The maximal number of devices that were ever mapped.
const MAX_MAPPED: usize = 64;

const COMMAND_BYTES: usize = 32;
const COMMANDS: usize = to_usize(FRAME_SIZE) / COMMAND_BYTES;
const MAP_DEVICE: u64 = 8;
const MAP_COLLECTION: u64 = 9;
const MAP_MESSAGE: u64 = 10;
const INVALIDATE: u64 = 12;
const SYNCHRONISE: u64 = 5;

static ITS: Mutex<Option<Its>> = Mutex::new(None);

/// The ITS, and the queue of its commands.
pub(super) struct Its {
    phys_addr: u64,
    registers: usize,
    queue: *mut [u64; 4],
    /// The index of the next command.
    next: usize,
    /// The first CPU's redistributor, as commands name it.
    target: u64,
    /// The number of devices for which the table has room: those with lower numbers.
    device_limit: u64,
    /// The devices that were mapped, and the table of each.
    device_tables: FixedList<(u16, u64), MAX_MAPPED>,
    /// Allocates 2^n frames.
    alloc: fn(u32) -> Option<PfnRange>,
}

// SAFETY: the addresses are the same for all CPUs.
unsafe impl Send for Its {}

/// Messages to the first CPU, by the ITS.
#[derive(Clone, Copy)]
pub(crate) struct MessageTarget(());

/// Makes the ITS available to [`MessageTarget`].
pub(super) fn put(its: Its) {
    *ITS.lock() = Some(its);
}

impl MessageTarget {
    /// Returns the first CPU as a destination of messages, if the machine has an ITS.
    pub(crate) fn this_cpu() -> Option<Self> {
        ITS.lock().is_some().then_some(MessageTarget(()))
    }

    /// Returns the address to which the device writes, and the data that it writes, to send the
    /// message. `requester` is the device's bus, number and function. Returns `None` if there is no
    /// memory for the device's table, if a table has no room for the device, or if the ITS refuses it.
    pub(crate) fn address_and_data(self, requester: u16, message: Message) -> Option<(u64, u32)> {
        ITS.lock().as_mut()?.map_message(requester, message)
    }
}

impl Its {
    /// Takes the ITS and the first CPU's redistributor into use. Returns `None` if there is no memory for
    /// their tables, or if the ITS refuses them.
    pub(super) fn open(
        phys_addr: u64,
        registers: NonNull<u8>,
        redistributor: NonNull<u8>,
        alloc: fn(u32) -> Option<PfnRange>,
    ) -> Option<Self> {
        let [registers, redistributor] =
            [registers, redistributor].map(|pointer| pointer.as_ptr().expose_provenance());
        // The pending table and the queue must begin at multiples of 64 KiB.
        let (properties, pending, queue) =
            (zeroed(alloc, 1)?, zeroed(alloc, 4)?, zeroed(alloc, 4)?);
        // SAFETY: the table of properties was just allocated, and has a byte for each LPI.
        unsafe { LAYOUT.virt(properties).write_bytes(ENABLED, LPI_COUNT) };
        let mut device_limit = u64::MAX;
        // SAFETY: the registers are mapped, and the ITS and the redistributor use only the tables that
        // were just allocated and are never freed.
        unsafe {
            write_u64(redistributor + LPI_PROPERTIES, properties | LPI_MEMORY | (LPI_BITS - 1));
            write_u64(redistributor + LPI_PENDING, pending | LPI_MEMORY | IS_ZERO);
            write_u32(redistributor + LPI_CONTROL, 1);
            for register in (0..TABLE_COUNT).map(|number| registers + TABLES + 8 * number) {
                let fixed = read_u64(register) & FIXED;
                let (kind, entry_bytes) = (fixed >> 56 & 7, (fixed >> 48 & 0x1f) + 1);
                if kind == DEVICES {
                    device_limit = TABLE_BYTES / entry_bytes;
                }
                let is_used = kind != 0;
                if is_used {
                    // The table consists of pages of the size that the ITS takes.
                    let table = zeroed(alloc, 4)?;
                    write_u64(register, fixed | PAGES_OF_64_KIB);
                    let page_size = read_u64(register) & PAGE_SIZE;
                    let last_page = match page_size {
                        0 => 15,
                        0x100 => 3,
                        _ => 0,
                    };
                    write_u64(register, fixed | VALID | ITS_MEMORY | table | page_size | last_page);
                }
            }
            write_u64(registers + COMMAND_QUEUE, VALID | ITS_MEMORY | queue);
            write_u64(registers + COMMAND_WRITE, 0);
            write_u32(registers + CONTROL, 1);
        }
        // SAFETY: the registers are mapped, and reading them has no effect.
        let (its_type, number) =
            unsafe { (read_u64(registers + TYPE), read_u64(redistributor + REDISTRIBUTOR_TYPE)) };
        let target = if its_type & NAMES_ADDRESSES != 0 {
            // The redistributor lies in the direct map.
            redistributor as u64 - LAYOUT.direct_map.base()
        } else {
            (number >> 8 & 0xffff) << 16
        };
        let queue = LAYOUT.virt(queue).cast();
        let device_tables = FixedList::empty((0, 0));
        let mut its = Its {
            phys_addr,
            registers,
            queue,
            next: 0,
            target,
            device_limit,
            device_tables,
            alloc,
        };
        its.run([MAP_COLLECTION, 0, VALID | target, 0])?;
        its.run([SYNCHRONISE, 0, target, 0])?;
        Some(its)
    }

    /// Makes the device's message interrupt the first CPU.
    fn map_message(&mut self, requester: u16, message: Message) -> Option<(u64, u32)> {
        if u64::from(requester) >= self.device_limit {
            return None;
        }
        let device = u64::from(requester) << 32;
        let event = u64::from(message);
        let lpi = u64::from(FIRST_LPI) + event;
        let table = self.table_of(requester)?;
        self.run([MAP_DEVICE | device, EVENT_BITS - 1, VALID | table, 0])?;
        self.run([MAP_MESSAGE | device, lpi << 32 | event, 0, 0])?;
        self.run([INVALIDATE | device, event, 0, 0])?;
        self.run([SYNCHRONISE, 0, self.target, 0])?;
        Some((self.phys_addr + TRANSLATER, message.into()))
    }

    /// Returns a zeroed table for the messages of a device. A device that is attached again gets the
    /// table that it had.
    fn table_of(&mut self, requester: u16) -> Option<u64> {
        let mut tables = self.device_tables.iter();
        let Some(&(_, table)) = tables.find(|&&(mapped, _)| mapped == requester) else {
            let table = zeroed(self.alloc, 0)?;
            self.device_tables.push((requester, table)).ok()?;
            return Some(table);
        };
        self.run([MAP_DEVICE | u64::from(requester) << 32, 0, 0, 0])?;
        self.run([SYNCHRONISE, 0, self.target, 0])?;
        // SAFETY: the frame was allocated for the table, and the ITS does not use it any more.
        unsafe { LAYOUT.virt(table).write_bytes(0, to_usize(FRAME_SIZE)) };
        Some(table)
    }

    /// Runs a command, and waits until it has ended. Returns `None` if the ITS has stopped at a command
    /// that it refuses (Arm IHI 0069, 5.3.2). It then runs no further command.
    fn run(&mut self, command: [u64; 4]) -> Option<()> {
        let at = self.next;
        self.next = (at + 1) % COMMANDS;
        let offset = (self.next * COMMAND_BYTES) as u64;
        // SAFETY: the queue is allocated, all of its commands have ended, and the registers are mapped.
        // The commands use only tables that are never freed.
        unsafe {
            self.queue.add(at).write_volatile(command);
            write_u64(self.registers + COMMAND_WRITE, offset);
            loop {
                let at = read_u64(self.registers + COMMAND_READ);
                if at & IS_STALLED != 0 {
                    return None;
                }
                if at == offset {
                    return Some(());
                }
                core::hint::spin_loop();
            }
        }
    }
}

/// Allocates 2^`order` zeroed frames, which stay allocated. Returns their physical address.
fn zeroed(alloc: fn(u32) -> Option<PfnRange>, order: u32) -> Option<u64> {
    let frames = alloc(order)?;
    let phys_addr = frames.start().phys_addr();
    // SAFETY: the frames were just allocated, so they are mapped and have no other user.
    unsafe { LAYOUT.virt(phys_addr).write_bytes(0, to_usize(frames.bytes().0)) };
    Some(phys_addr)
}
