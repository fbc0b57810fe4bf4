//! Reads the cells of a property.

/// Reads big-endian cells of 32 bits one after the other. Callers have checked the number of cells;
/// after the last cell the reader returns 0.
pub(crate) struct Cells<'a>(pub(crate) &'a [u8]);

impl Cells<'_> {
    pub(crate) fn next(&mut self) -> u32 {
        let Some((cell, rest)) = self.0.split_first_chunk::<4>() else { return 0 };
        self.0 = rest;
        u32::from_be_bytes(*cell)
    }

    pub(crate) fn next_pair(&mut self) -> u64 {
        u64::from(self.next()) << 32 | u64::from(self.next())
    }
}
