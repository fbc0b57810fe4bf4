//! Makes a table from arbitrary bytes, and compares the processors that the reader returns with
//! those of a naive reader.

use hotmem_guest::loader_table::PhysicalMemory;
use hotmem_guest::mp_table;

/// The areas that may hold the pointer to the table.
pub(crate) const BASE_MEMORY: usize = 0x9_fc00;
pub(crate) const BIOS: usize = 0xf_0000;
const END: usize = 0x10_0000;

/// The memory below 1 MiB.
pub(crate) struct Firmware(Vec<u8>);

impl PhysicalMemory for Firmware {
    fn bytes(&self, phys_addr: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(phys_addr).ok()?;
        self.0.get(start..start.checked_add(len)?)
    }
}

impl Firmware {
    pub(crate) fn empty() -> Firmware {
        Firmware(vec![0; END])
    }

    /// Returns memory with a pointer and a table with these entries, whose sums are right.
    pub(crate) fn with_table(pointer_at: usize, table_at: usize, entries: &[u8]) -> Firmware {
        let mut firmware = Firmware::empty();
        let len = u16::try_from(44 + entries.len()).unwrap();
        let mut table = b"PCMP".to_vec();
        table.extend(len.to_le_bytes());
        table.resize(44, 0);
        table.extend(entries);
        table[7] = negative_sum(&table);
        firmware.write(table_at, &table);
        let mut pointer = b"_MP_".to_vec();
        pointer.extend(u32::try_from(table_at).unwrap().to_le_bytes());
        pointer.extend([1, 4, 0]);
        pointer.resize(16, 0);
        pointer[10] = negative_sum(&pointer);
        firmware.write(pointer_at, &pointer);
        firmware
    }

    /// Writes the part of `bytes` that lies in the memory.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(memory) = self.0.get_mut(at..) {
            memory.iter_mut().zip(bytes).for_each(|(memory, byte)| *memory = *byte);
        }
    }

    pub(crate) fn apic_ids(&self) -> Option<Vec<u8>> {
        Some(mp_table::apic_ids(self)?.collect())
    }
}

/// Runs a script. If the lowest bit of the first byte is 0, the other bytes are the entries of a
/// table. If the bit is 1, they overwrite a table, whose sums may be wrong then.
pub(crate) fn run(script: &[u8]) {
    let Some((&mode, rest)) = script.split_first() else { return };
    if mode & 1 == 0 {
        let firmware = Firmware::with_table(BIOS, BIOS + 0x100, rest);
        assert_eq!(firmware.apic_ids(), Some(read_naively(rest)));
    } else {
        let mut firmware = Firmware::with_table(BASE_MEMORY, BASE_MEMORY + 16, &[0; 40]);
        firmware.write(BASE_MEMORY + usize::from(mode), rest);
        let _ = firmware.apic_ids();
    }
}

fn read_naively(entries: &[u8]) -> Vec<u8> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < entries.len() && entries[at] < 5 {
        let len = if entries[at] == 0 { 20 } else { 8 };
        if at + len > entries.len() {
            break;
        }
        if entries[at] == 0 && entries[at + 3] % 2 == 1 {
            found.push(entries[at + 1]);
        }
        at += len;
    }
    found
}

fn negative_sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, &byte| sum.wrapping_sub(byte))
}
