//! Archives that Linux unpacks at boot, in cpio's "newc" form.
//!
//! Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.

/// Regular file, readable and executable by all.
const FILE: u32 = 0o100_755;
const DIRECTORY: u32 = 0o040_755;

/// An archive to which entries are added one by one.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// A file is larger than the 4 GiB that the format allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a file of {0} bytes is too large for an initramfs")]
pub(crate) struct TooLarge(usize);

impl Archive {
    /// Adds a directory. Its parent directories must be added before it.
    pub(crate) fn directory(mut self, path: &str) -> Archive {
        self.entry(path, DIRECTORY, 0);
        self
    }

    /// Adds an executable file.
    pub(crate) fn file(mut self, path: &str, data: &[u8]) -> Result<Archive, TooLarge> {
        let size = u32::try_from(data.len()).map_err(|_| TooLarge(data.len()))?;
        self.entry(path, FILE, size);
        self.bytes.extend(data);
        self.align();
        Ok(self)
    }

    /// Returns the whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, 0);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, size: u32) {
        self.entries += 1;
        let name_size = u32::try_from(path.len() + 1).unwrap_or(u32::MAX);
        let (inode, links) = (self.entries, 1);
        // Inode, mode, user, group, links, time, size, device, device of a node, name, checksum.
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.align();
    }

    /// Names and data end at multiples of 4 bytes.
    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name, mode and data of each entry, parsed as the format's description says.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            let field = |n: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            assert_eq!(&bytes[..6], b"070701");
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = &bytes[110..110 + name_size];
            assert_eq!(name.last(), Some(&0));
            let name = String::from_utf8(name[..name_size - 1].to_vec()).unwrap();
            let data = (110 + name_size).next_multiple_of(4);
            entries.push((name, mode, bytes[data..data + size].to_vec()));
            if entries.last().unwrap().0 == "TRAILER!!!" {
                assert_eq!(bytes.len(), data);
                return entries;
            }
            bytes = &bytes[(data + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn a_written_archive_is_read_as_it_was_written() {
        // Names and data of every length modulo 4.
        let names = ["a", "bc", "dir/e", "dir/fg"];
        let mut archive = Archive::default().directory("dir");
        for (n, name) in names.into_iter().enumerate() {
            archive = archive.file(name, &vec![b'x'; n]).unwrap();
        }
        let bytes = archive.finish();
        assert!(bytes.len().is_multiple_of(4));
        let mut expected = vec![("dir".to_owned(), 0o040_755, vec![])];
        for (n, name) in names.into_iter().enumerate() {
            expected.push((name.into(), 0o100_755, vec![b'x'; n]));
        }
        expected.push(("TRAILER!!!".into(), 0, vec![]));
        assert_eq!(read(&bytes), expected);
    }

    #[test]
    fn the_header_has_the_documented_bytes() {
        let bytes = Archive::default().file("init", b"#!").unwrap().finish();
        let header = concat!(
            "070701",
            "00000001",
            "000081ed",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000002",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000005",
            "00000000",
            "init\0\0#!\0\0070701",
        );
        let start: String = bytes.iter().take(header.len()).map(|&byte| byte as char).collect();
        assert_eq!(start.replace('\0', "."), header.replace('\0', "."));
    }
}
