//! Hashes memory, to notice that a device has written to it.

/// An FNV-1a hash of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(u64);

impl Hash {
    pub(crate) fn of(bytes: &[u8]) -> Hash {
        let mut hash = Hash::default();
        hash.add(bytes);
        hash
    }

    /// Adds the bytes that follow those before.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}
