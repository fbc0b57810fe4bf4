//! Finds files of QEMU's fw_cfg device, by which QEMU passes ACPI's tables to a firmware (QEMU,
//! docs/specs/fw_cfg.rst), and a table among those of a file.

/// The key of the directory.
pub const DIRECTORY: u16 = 0x19;
/// The bytes of the directory that are read: its count, and this number of entries.
pub const DIRECTORY_BYTES: u32 = 4 + 64 * 64;

/// A file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    /// The key that selects it.
    pub key: u16,
    /// Its size in bytes.
    pub size: u32,
}

/// Returns the file with this name among the entries of a directory that `directory` has.
#[must_use]
pub fn find_file(directory: &[u8], name: &[u8]) -> Option<File> {
    let (count, entries) = directory.split_first_chunk()?;
    let count = usize::try_from(u32::from_be_bytes(*count)).ok()?;
    let mut entries = entries.chunks_exact(64).take(count);
    entries.find_map(|entry| {
        let (&size, rest) = entry.split_first_chunk()?;
        let (&key, rest) = rest.split_first_chunk()?;
        // Two bytes are reserved. A zero ends the name.
        let found = rest.get(2..)?.strip_prefix(name)?;
        let file = File { key: u16::from_be_bytes(key), size: u32::from_be_bytes(size) };
        (found.first() == Some(&0)).then_some(file)
    })
}

/// Returns the ACPI table with this signature among tables that follow each other. The table ends with
/// `tables` if it would be longer.
#[must_use]
pub fn find_table<'t>(mut tables: &'t [u8], signature: &[u8; 4]) -> Option<&'t [u8]> {
    /// The size of a table's header.
    const HEADER: usize = 36;
    while tables.len() >= HEADER {
        let len = tables[4..].first_chunk().map(|&len| u32::from_le_bytes(len))?;
        // Zeros follow the last table.
        let len = usize::try_from(len).ok().filter(|&len| len >= HEADER)?;
        let (table, rest) = tables.split_at(len.min(tables.len()));
        if table.starts_with(signature) {
            return Some(table);
        }
        tables = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(size: u32, key: u16, name: &str) -> Vec<u8> {
        let mut entry =
            [&size.to_be_bytes()[..], &key.to_be_bytes(), &[0; 2], name.as_bytes()].concat();
        entry.resize(64, 0);
        entry
    }

    #[test]
    fn a_file_is_found_by_its_whole_name() {
        let entries = [
            entry(1, 0x20, "etc/acpi"),
            entry(0x2_0000, 0x23, "etc/acpi/tables"),
            entry(9, 0x24, "etc"),
        ];
        let directory = [3u32.to_be_bytes().to_vec(), entries.concat()].concat();
        let tables = File { key: 0x23, size: 0x2_0000 };
        assert_eq!(find_file(&directory, b"etc/acpi/tables"), Some(tables));
        assert_eq!(find_file(&directory, b"etc/acpi/table"), None);
        let one = [1u32.to_be_bytes().to_vec(), entries.concat()].concat();
        assert_eq!(find_file(&one, b"etc/acpi/tables"), None);
    }

    fn table(signature: &str, len: u32) -> Vec<u8> {
        let mut table = [signature.as_bytes(), &len.to_le_bytes()].concat();
        table.resize(len as usize, 7);
        table
    }

    #[test]
    fn a_table_is_found_and_has_its_length() {
        let tables = [table("FACP", 276), table("DSDT", 50), vec![0; 100]].concat();
        assert_eq!(find_table(&tables, b"DSDT"), Some(&table("DSDT", 50)[..]));
        assert_eq!(find_table(&tables, b"SRAT"), None);
        assert_eq!(find_table(&tables[..300 + 16], b"DSDT").map(<[u8]>::len), Some(40));
        assert_eq!(find_table(&table("DSDT", 8), b"DSDT"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_searched_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = find_file(&bytes, b"");
            let _ = find_table(&bytes, b"DSDT");
        }
    }
}
