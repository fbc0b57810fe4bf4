//! Tests that a zero page is read as a loader writes it, and that a damaged one is refused.

use super::*;

/// Memory at [`BASE`].
struct Arena(Vec<u8>);

impl PhysicalMemory for Arena {
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(phys_addr.checked_sub(BASE)?).ok()?;
        self.0.get(start..start.checked_add(len)?)
    }
}

const BASE: u64 = 0x7000;
const CMDLINE: u64 = BASE + PAGE_BYTES as u64;

impl Arena {
    /// Returns memory with a zero page, and a command line behind it.
    fn sample() -> Arena {
        let mut arena = Arena(vec![0; PAGE_BYTES + 64]);
        arena.put(HEADER, b"HdrS");
        arena.put(RSDP_ADDR, &0xe_0000u64.to_le_bytes());
        arena.put(CMDLINE_ADDR.low, &u32::try_from(CMDLINE).unwrap().to_le_bytes());
        arena.put(PAGE_BYTES, b"hotmem.exit=boot\0rest");
        arena.put_map(&[(0, 0x9_fc00, 1), (1 << 32, 0x1000, 2)]);
        arena
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_map(&mut self, entries: &[(u64, u64, u32)]) {
        self.0[MAP_ENTRIES] = u8::try_from(entries.len()).unwrap();
        for (n, &(addr, size, kind)) in entries.iter().enumerate() {
            let at = MAP + n * MAP_ENTRY_BYTES;
            self.put(at, &addr.to_le_bytes());
            self.put(at + 8, &size.to_le_bytes());
            self.put(at + 16, &kind.to_le_bytes());
        }
    }

    fn page(&self) -> ZeroPage<'_> {
        ZeroPage::read(self, BASE).unwrap().unwrap()
    }
}

fn entry((addr, size, kind): (u64, u64, u32)) -> MemoryMapEntry {
    MemoryMapEntry { addr, size, kind }
}

#[test]
fn the_page_of_a_loader_is_read() {
    let memory = Arena::sample();
    let page = memory.page();
    assert_eq!(page.rsdp_addr(), Some(0xe_0000));
    assert_eq!(page.initrd(), None);
    let map = [entry((0, 0x9_fc00, 1)), entry((1 << 32, 0x1000, 2))];
    assert_eq!(page.memory_map(&mut [MemoryMapEntry::EMPTY; 2]), Ok(&map[..]));
    assert_eq!(page.cmdline(&memory, &mut [0; 64]), Ok(&b"hotmem.exit=boot"[..]));
}

#[test]
fn the_upper_halves_of_addresses_are_read() {
    let mut memory = Arena::sample();
    memory.put(INITRD_ADDR.low, &0x1000u32.to_le_bytes());
    memory.put(INITRD_ADDR.high, &2u32.to_le_bytes());
    memory.put(INITRD_BYTES.low, &5u32.to_le_bytes());
    memory.put(INITRD_BYTES.high, &1u32.to_le_bytes());
    memory.put(CMDLINE_ADDR.high, &1u32.to_le_bytes());
    let page = memory.page();
    assert_eq!(page.initrd(), Some(entry((0x2_0000_1000, 0x1_0000_0005, 1))));
    let out_of_reach =
        TableError::OutOfReach { table: "command line", phys_addr: 1 << 32 | CMDLINE };
    assert_eq!(page.cmdline(&memory, &mut [0; 64]), Err(out_of_reach));
}

#[test]
fn memory_without_the_header_is_no_zero_page() {
    let mut memory = Arena::sample();
    memory.put(HEADER, b"hdrs");
    assert!(ZeroPage::read(&memory, BASE).unwrap().is_none());
    assert!(ZeroPage::read(&memory, CMDLINE).unwrap().is_none(), "shorter than a page");
    assert!(matches!(ZeroPage::read(&memory, 0), Err(TableError::OutOfReach { .. })));
}

#[test]
fn tables_of_pvh_with_the_bytes_of_the_header_behind_them_are_no_zero_page() {
    let mut memory = Arena::sample();
    memory.put(0, &pvh::MAGIC.to_le_bytes());
    assert!(ZeroPage::read(&memory, BASE).unwrap().is_none());
}

#[test]
fn maps_without_entries_or_with_too_many_are_refused() {
    let mut memory = Arena::sample();
    let too_many = |entries, max| Err(TableError::TooMany { table: "memory map", entries, max });
    assert_eq!(memory.page().memory_map(&mut [MemoryMapEntry::EMPTY; 1]), too_many(2, 1));
    memory.put_map(&[]);
    assert_eq!(memory.page().memory_map(&mut []), Err(TableError::NoMemoryMap));
    memory.put_map(&[(0, 1, 1); MAX_MAP_ENTRIES]);
    let buffer = &mut [MemoryMapEntry::EMPTY; 256];
    assert_eq!(memory.page().memory_map(buffer).map(<[_]>::len), Ok(MAX_MAP_ENTRIES));
    memory.0[MAP_ENTRIES] = 129;
    assert_eq!(memory.page().memory_map(buffer), too_many(129, MAX_MAP_ENTRIES));
}
