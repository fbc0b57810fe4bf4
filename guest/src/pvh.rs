//! Reads the tables of a PVH loader: `hvm_start_info` and the memory map that it points to.
//!
//! The layout is Xen's `public/arch-x86/hvm/start_info.h`; all fields are little-endian.

use core::fmt;

/// `XEN_HVM_START_MAGIC_VALUE`.
const MAGIC: u32 = 0x336e_c578;
const START_INFO_BYTES: usize = 56;
const MAP_ENTRY_BYTES: usize = 24;
const MODULE_BYTES: usize = 32;

/// Physical memory that the boot code can access.
pub trait PhysicalMemory {
    /// Returns the `len` bytes at `phys_addr`, if all of them are accessible.
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]>;
}

/// The contents of `hvm_start_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartInfo {
    cmdline_addr: u64,
    rsdp_addr: u64,
    memmap_addr: u64,
    memmap_entries: u32,
    modlist_addr: u64,
    modules: u32,
}

/// An entry of the memory map, as the loader wrote it, without any checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryMapEntry {
    /// The address of the first byte.
    pub addr: u64,
    /// The size in bytes.
    pub size: u64,
    /// The E820 type.
    pub kind: u32,
}

impl MemoryMapEntry {
    /// E820's type for usable memory (`XEN_HVM_MEMMAP_TYPE_RAM`).
    pub const RAM: u32 = 1;
}

/// The reason why the loader's tables were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PvhError {
    /// `start_info` does not begin with Xen's magic number.
    BadMagic(u32),
    /// The tables have no memory map (version 0 of the structure).
    NoMemoryMap,
    /// A table lies outside the boot mapping.
    OutOfReach {
        /// The name of the table.
        table: &'static str,
        /// Its address.
        phys_addr: u64,
    },
    /// A table has too many entries.
    TooMany {
        /// The name of the table.
        table: &'static str,
        /// The number of entries.
        entries: u32,
        /// The maximal number of entries.
        room: usize,
    },
    /// The command line is longer than this buffer.
    CmdlineTooLong(usize),
    /// The tables for the next kernel need this many bytes, and there are fewer.
    NoRoom(usize),
}

impl StartInfo {
    /// Reads the structure at `phys_addr`.
    ///
    /// # Errors
    /// [`PvhError`] if it is not `hvm_start_info`, or is too old to have a memory map.
    pub fn read(memory: &impl PhysicalMemory, phys_addr: u64) -> Result<StartInfo, PvhError> {
        let out_of_reach = PvhError::OutOfReach { table: "start_info", phys_addr };
        let raw = memory.bytes(phys_addr, START_INFO_BYTES).ok_or(out_of_reach)?;
        if u32_at(raw, 0) != MAGIC {
            return Err(PvhError::BadMagic(u32_at(raw, 0)));
        }
        let (version, memmap_entries) = (u32_at(raw, 4), u32_at(raw, 48));
        if version == 0 || memmap_entries == 0 {
            return Err(PvhError::NoMemoryMap);
        }
        Ok(StartInfo {
            modules: u32_at(raw, 12),
            modlist_addr: u64_at(raw, 16),
            cmdline_addr: u64_at(raw, 24),
            rsdp_addr: u64_at(raw, 32),
            memmap_addr: u64_at(raw, 40),
            memmap_entries,
        })
    }

    /// Returns the physical address of ACPI's root pointer, if the loader passed one.
    #[must_use]
    pub fn rsdp_addr(&self) -> Option<u64> {
        (self.rsdp_addr != 0).then_some(self.rsdp_addr)
    }

    /// Copies the memory map into `room` and returns it.
    ///
    /// # Errors
    /// [`PvhError::TooMany`] if it does not fit, [`PvhError::OutOfReach`].
    pub fn memory_map<'r>(
        &self,
        memory: &impl PhysicalMemory,
        room: &'r mut [MemoryMapEntry],
    ) -> Result<&'r [MemoryMapEntry], PvhError> {
        let table = Table {
            name: "memory map",
            phys_addr: self.memmap_addr,
            entries: self.memmap_entries,
            entry_bytes: MAP_ENTRY_BYTES,
        };
        table.copy(memory, room, |raw| MemoryMapEntry {
            addr: u64_at(raw, 0),
            size: u64_at(raw, 8),
            kind: u32_at(raw, 16),
        })
    }

    /// Copies the list of modules (for example an initial RAM disk) into `room`, as RAM in use.
    ///
    /// # Errors
    /// As for [`StartInfo::memory_map`].
    pub fn modules<'r>(
        &self,
        memory: &impl PhysicalMemory,
        room: &'r mut [MemoryMapEntry],
    ) -> Result<&'r [MemoryMapEntry], PvhError> {
        let table = Table {
            name: "module list",
            phys_addr: self.modlist_addr,
            entries: self.modules,
            entry_bytes: MODULE_BYTES,
        };
        table.copy(memory, room, |raw| MemoryMapEntry {
            addr: u64_at(raw, 0),
            size: u64_at(raw, 8),
            kind: MemoryMapEntry::RAM,
        })
    }

    /// Copies the command line, without its final zero, into `room` and returns it.
    ///
    /// # Errors
    /// [`PvhError::CmdlineTooLong`], [`PvhError::OutOfReach`].
    pub fn cmdline<'r>(
        &self,
        memory: &impl PhysicalMemory,
        room: &'r mut [u8],
    ) -> Result<&'r [u8], PvhError> {
        if self.cmdline_addr == 0 {
            return Ok(&[]);
        }
        for len in 0..room.len() {
            let phys_addr = self.cmdline_addr.wrapping_add(len as u64);
            let out_of_reach = PvhError::OutOfReach { table: "command line", phys_addr };
            match memory.bytes(phys_addr, 1).ok_or(out_of_reach)?[0] {
                0 => return Ok(&room[..len]),
                byte => room[len] = byte,
            }
        }
        Err(PvhError::CmdlineTooLong(room.len()))
    }
}

/// The tables that the kernel, as a loader, passes to the next one.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// The command line of the next kernel.
    pub cmdline: &'a [u8],
    /// The physical address of ACPI's root pointer, if it is known.
    pub rsdp_addr: Option<u64>,
    /// The memory map.
    pub memory_map: &'a [MemoryMapEntry],
    /// The modules.
    pub modules: &'a [MemoryMapEntry],
}

impl Handover<'_> {
    /// Writes `start_info`, for physical address `phys_addr`, and all tables that it points to.
    ///
    /// # Errors
    /// [`PvhError::NoRoom`].
    pub fn write(&self, phys_addr: u64, room: &mut [u8]) -> Result<(), PvhError> {
        let [map_len, modules_len] =
            [(self.memory_map, MAP_ENTRY_BYTES), (self.modules, MODULE_BYTES)]
                .map(|(entries, size)| entries.len() * size);
        // All tables are aligned to 8 bytes.
        let map_at = START_INFO_BYTES;
        let modules_at = map_at + map_len;
        let cmdline_at = modules_at + modules_len;
        let len = cmdline_at + self.cmdline.len() + 1;
        let room = room.get_mut(..len).ok_or(PvhError::NoRoom(len))?;
        room.fill(0);
        let mut put = |at: usize, bytes: &[u8]| room[at..at + bytes.len()].copy_from_slice(bytes);
        let count = |entries: &[MemoryMapEntry]| {
            u32::try_from(entries.len()).map_err(|_| PvhError::NoRoom(len)).map(u32::to_le_bytes)
        };
        put(0, &MAGIC.to_le_bytes());
        put(4, &1u32.to_le_bytes());
        put(12, &count(self.modules)?);
        put(16, &(phys_addr + modules_at as u64).to_le_bytes());
        put(24, &(phys_addr + cmdline_at as u64).to_le_bytes());
        put(32, &self.rsdp_addr.unwrap_or(0).to_le_bytes());
        put(40, &(phys_addr + map_at as u64).to_le_bytes());
        put(48, &count(self.memory_map)?);
        for (index, entry) in self.memory_map.iter().enumerate() {
            let at = map_at + index * MAP_ENTRY_BYTES;
            put(at, &entry.addr.to_le_bytes());
            put(at + 8, &entry.size.to_le_bytes());
            put(at + 16, &entry.kind.to_le_bytes());
        }
        for (index, module) in self.modules.iter().enumerate() {
            let at = modules_at + index * MODULE_BYTES;
            put(at, &module.addr.to_le_bytes());
            put(at + 8, &module.size.to_le_bytes());
        }
        put(cmdline_at, self.cmdline);
        Ok(())
    }
}

/// An array of the loader.
struct Table {
    name: &'static str,
    phys_addr: u64,
    entries: u32,
    entry_bytes: usize,
}

impl Table {
    fn copy<'r>(
        &self,
        memory: &impl PhysicalMemory,
        room: &'r mut [MemoryMapEntry],
        parse: impl Fn(&[u8]) -> MemoryMapEntry,
    ) -> Result<&'r [MemoryMapEntry], PvhError> {
        let Table { name: table, phys_addr, entries, entry_bytes } = *self;
        let too_many = PvhError::TooMany { table, entries, room: room.len() };
        let room = room.get_mut(..entries as usize).ok_or(too_many)?;
        if room.is_empty() {
            return Ok(room);
        }
        let out_of_reach = PvhError::OutOfReach { table, phys_addr };
        let raw = memory.bytes(phys_addr, room.len() * entry_bytes).ok_or(out_of_reach)?;
        for (entry, raw) in room.iter_mut().zip(raw.chunks_exact(entry_bytes)) {
            *entry = parse(raw);
        }
        Ok(room)
    }
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&raw[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | u64::from(u32_at(raw, at + 4)) << 32
}

impl fmt::Display for PvhError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PvhError::BadMagic(found) => write!(f, "start_info has magic {found:#x}"),
            PvhError::NoMemoryMap => write!(f, "start_info has no memory map"),
            PvhError::OutOfReach { table, phys_addr } => {
                write!(f, "{table} at {phys_addr:#x} lies outside the boot mapping")
            }
            PvhError::TooMany { table, entries, room } => {
                write!(f, "{table} has {entries} entries, there is room for {room}")
            }
            PvhError::CmdlineTooLong(room) => {
                write!(f, "the command line is longer than {room} bytes")
            }
            PvhError::NoRoom(len) => write!(f, "there is no room for tables of {len} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory at a base address.
    struct Arena(u64, Vec<u8>);

    impl PhysicalMemory for Arena {
        fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
            let start = usize::try_from(phys_addr.checked_sub(self.0)?).ok()?;
            self.1.get(start..start.checked_add(len)?)
        }
    }

    const BASE: u64 = 0x6000;

    /// Returns memory with `start_info` at 0, two map entries at 0x100, a module at 0x200 and a
    /// command line at 0x300.
    fn sample() -> Arena {
        let mut raw = vec![0; 0x400];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(4, &1u32.to_le_bytes());
        put(12, &1u32.to_le_bytes());
        put(16, &(BASE + 0x200).to_le_bytes());
        put(24, &(BASE + 0x300).to_le_bytes());
        put(32, &0xe0000u64.to_le_bytes());
        put(40, &(BASE + 0x100).to_le_bytes());
        put(48, &2u32.to_le_bytes());
        put(0x100, &0u64.to_le_bytes());
        put(0x108, &0x9fc00u64.to_le_bytes());
        put(0x110, &1u32.to_le_bytes());
        put(0x118, &0x10_0000u64.to_le_bytes());
        put(0x120, &0x3f0_0000u64.to_le_bytes());
        put(0x128, &2u32.to_le_bytes());
        put(0x200, &0x200_0000u64.to_le_bytes());
        put(0x208, &0x1234u64.to_le_bytes());
        put(0x300, b"hotmem.exit=boot\0rest");
        Arena(BASE, raw)
    }

    #[test]
    fn the_tables_of_a_loader_are_read() {
        let memory = sample();
        let info = StartInfo::read(&memory, BASE).unwrap();
        assert_eq!(info.rsdp_addr(), Some(0xe0000));
        let mut room = [MemoryMapEntry::default(); 4];
        let map = info.memory_map(&memory, &mut room).unwrap();
        assert_eq!(
            map,
            [
                MemoryMapEntry { addr: 0, size: 0x9fc00, kind: 1 },
                MemoryMapEntry { addr: 0x10_0000, size: 0x3f0_0000, kind: 2 },
            ]
        );
        let modules = info.modules(&memory, &mut room).unwrap();
        assert_eq!(modules, [MemoryMapEntry { addr: 0x200_0000, size: 0x1234, kind: 1 }]);
        let mut room = [0; 64];
        assert_eq!(info.cmdline(&memory, &mut room), Ok(&b"hotmem.exit=boot"[..]));
    }

    #[test]
    fn tables_for_the_next_kernel_are_read_back_unchanged() {
        let entry = |addr, size, kind| MemoryMapEntry { addr, size, kind };
        let handover = Handover {
            cmdline: b"hotmem.exit=boot",
            rsdp_addr: Some(0xf_59e0),
            memory_map: &[entry(0, 0x9_fc00, 1), entry(0x10_0000, 0x7ee_0000, 1)],
            modules: &[entry(0x7a0_0000, 0x4f_1234, 1)],
        };
        let mut memory = Arena(BASE, vec![0xff; 0x100]);
        handover.write(BASE, &mut memory.1).unwrap();
        let info = StartInfo::read(&memory, BASE).unwrap();
        assert_eq!(info.rsdp_addr(), handover.rsdp_addr);
        let mut room = [MemoryMapEntry::default(); 4];
        let map = info.memory_map(&memory, &mut room).unwrap();
        assert_eq!(map, handover.memory_map);
        assert_eq!(info.modules(&memory, &mut room).unwrap(), handover.modules);
        assert_eq!(info.cmdline(&memory, &mut [0; 64]), Ok(handover.cmdline));
        let len = 56 + 2 * 24 + 32 + 17;
        let too_small = handover.write(BASE, &mut memory.1[..len - 1]);
        assert_eq!(too_small, Err(PvhError::NoRoom(len)));
    }

    #[test]
    fn structures_without_the_magic_or_a_map_are_refused() {
        let mut memory = sample();
        assert!(matches!(
            StartInfo::read(&memory, BASE - 8),
            Err(PvhError::OutOfReach { table: "start_info", phys_addr: 0x5ff8 })
        ));
        memory.1[4] = 0;
        assert_eq!(StartInfo::read(&memory, BASE), Err(PvhError::NoMemoryMap));
        memory.1[0] = 0;
        assert!(matches!(StartInfo::read(&memory, BASE), Err(PvhError::BadMagic(0x336e_c500))));
    }

    #[test]
    fn tables_that_do_not_fit_or_are_inaccessible_are_refused() {
        let mut memory = sample();
        let info = StartInfo::read(&memory, BASE).unwrap();
        let too_many = PvhError::TooMany { table: "memory map", entries: 2, room: 1 };
        assert_eq!(info.memory_map(&memory, &mut [MemoryMapEntry::default()]), Err(too_many));
        assert_eq!(info.cmdline(&memory, &mut [0; 16]), Err(PvhError::CmdlineTooLong(16)));
        memory.1[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
        memory.1[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        memory.1[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        let info = StartInfo::read(&memory, BASE).unwrap();
        assert!(matches!(
            info.memory_map(&memory, &mut [MemoryMapEntry::default(); 4]),
            Err(PvhError::TooMany { entries: u32::MAX, .. })
        ));
        assert!(matches!(
            info.cmdline(&memory, &mut [0; 16]),
            Err(PvhError::OutOfReach { table: "command line", .. })
        ));
    }
}
