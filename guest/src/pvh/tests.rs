//! Tests that tables are read as a loader writes them, and that damaged tables are refused.

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
    let mut buffer = [MemoryMapEntry::default(); 4];
    let map = info.memory_map(&memory, &mut buffer).unwrap();
    assert_eq!(
        map,
        [
            MemoryMapEntry { addr: 0, size: 0x9fc00, kind: 1 },
            MemoryMapEntry { addr: 0x10_0000, size: 0x3f0_0000, kind: 2 },
        ]
    );
    let modules = info.modules(&memory, &mut buffer).unwrap();
    assert_eq!(modules, [MemoryMapEntry { addr: 0x200_0000, size: 0x1234, kind: 1 }]);
    let mut buffer = [0; 64];
    assert_eq!(info.cmdline(&memory, &mut buffer), Ok(&b"hotmem.exit=boot"[..]));
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
    let mut buffer = [MemoryMapEntry::default(); 4];
    let map = info.memory_map(&memory, &mut buffer).unwrap();
    assert_eq!(map, handover.memory_map);
    assert_eq!(info.modules(&memory, &mut buffer).unwrap(), handover.modules);
    assert_eq!(info.cmdline(&memory, &mut [0; 64]), Ok(handover.cmdline));
    let len = 56 + 2 * 24 + 32 + 17;
    let too_small = handover.write(BASE, &mut memory.1[..len - 1]);
    assert_eq!(too_small, Err(TableError::BufferTooSmall(len)));
}

#[test]
fn structures_without_the_magic_or_a_map_are_refused() {
    let mut memory = sample();
    assert!(matches!(
        StartInfo::read(&memory, BASE - 8),
        Err(TableError::OutOfReach { table: "start_info", phys_addr: 0x5ff8 })
    ));
    memory.1[4] = 0;
    assert_eq!(StartInfo::read(&memory, BASE), Err(TableError::NoMemoryMap));
    memory.1[0] = 0;
    assert!(matches!(StartInfo::read(&memory, BASE), Err(TableError::BadMagic(0x336e_c500))));
}

#[test]
fn tables_that_do_not_fit_or_are_inaccessible_are_refused() {
    let mut memory = sample();
    let info = StartInfo::read(&memory, BASE).unwrap();
    let too_many = TableError::TooMany { table: "memory map", entries: 2, max: 1 };
    assert_eq!(info.memory_map(&memory, &mut [MemoryMapEntry::default()]), Err(too_many));
    assert_eq!(info.cmdline(&memory, &mut [0; 16]), Err(TableError::CmdlineTooLong(16)));
    memory.1[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
    memory.1[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    memory.1[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    let info = StartInfo::read(&memory, BASE).unwrap();
    assert!(matches!(
        info.memory_map(&memory, &mut [MemoryMapEntry::default(); 4]),
        Err(TableError::TooMany { entries: u32::MAX, .. })
    ));
    assert!(matches!(
        info.cmdline(&memory, &mut [0; 16]),
        Err(TableError::OutOfReach { table: "command line", .. })
    ));
}
