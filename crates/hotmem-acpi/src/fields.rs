//! Reads little-endian numbers from the bytes of a table.

/// Returns the number in the first `len` bytes, at most 8, and the bytes after it. Returns `None` if
/// there are fewer bytes.
pub(crate) fn split_number(bytes: &[u8], len: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_at_checked(len)?;
    Some((number.iter().rev().fold(0, |high, &byte| high << 8 | u64::from(byte)), rest))
}

/// Returns the 32-bit number at `at`, or `None` if it does not lie within the bytes.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let (number, _) = split_number(bytes.get(at..)?, 4)?;
    u32::try_from(number).ok()
}

/// Returns the 64-bit number at `at`, or `None` if it does not lie within the bytes.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(split_number(bytes.get(at..)?, 8)?.0)
}
