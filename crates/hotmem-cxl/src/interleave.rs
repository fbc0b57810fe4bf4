//! Defines how addresses alternate between targets, as windows and decoders encode it
//! (CXL 3.1, 8.2.4.20.7).

use hotmem_addr::Bytes;

/// The unit of windows, decoders and capacities: 256 MiB.
pub const UNIT: u64 = 256 << 20;

/// The number of targets between which addresses alternate: 1, 2, 3, 4, 6, 8, 12 or 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ways(u8);

impl Ways {
    /// One target: addresses do not alternate.
    pub const ONE: Ways = Ways(0);

    /// Returns the number of ways that is encoded so, or `None` if the encoding is reserved.
    #[must_use]
    pub const fn from_encoding(encoding: u8) -> Option<Ways> {
        match encoding {
            0..=4 | 8..=10 => Some(Ways(encoding)),
            _ => None,
        }
    }

    /// Returns `count` ways, or `None` if `count` has no encoding.
    #[must_use]
    pub const fn new(count: usize) -> Option<Ways> {
        Some(Ways(match count {
            1 => 0,
            2 => 1,
            4 => 2,
            8 => 3,
            16 => 4,
            3 => 8,
            6 => 9,
            12 => 10,
            _ => return None,
        }))
    }

    /// Returns the encoding, 4 bits.
    #[must_use]
    pub const fn encoding(self) -> u8 {
        self.0
    }

    /// Returns the number of targets.
    #[must_use]
    pub const fn count(self) -> usize {
        if self.0 >= 8 { 3 << (self.0 - 8) } else { 1 << self.0 }
    }

    /// Returns the number of address bits that select the target, or `None` for 3, 6 and 12 ways,
    /// whose targets are not selected by bits alone.
    #[must_use]
    pub const fn bits(self) -> Option<u8> {
        if self.0 >= 8 { None } else { Some(self.0) }
    }
}

/// The number of consecutive bytes for one target: 256 bytes to 16 KiB, a power of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Granularity(u8);

impl Granularity {
    /// 256 bytes.
    pub const MIN: Granularity = Granularity(0);
    /// 16 KiB.
    pub const MAX: Granularity = Granularity(6);

    /// Returns the granularity that is encoded so, or `None` if the encoding is reserved.
    #[must_use]
    pub const fn from_encoding(encoding: u8) -> Option<Granularity> {
        if encoding <= Self::MAX.0 { Some(Granularity(encoding)) } else { None }
    }

    /// Returns the encoding, 4 bits.
    #[must_use]
    pub const fn encoding(self) -> u8 {
        self.0
    }

    /// Returns the lowest address bit that selects a target.
    #[must_use]
    pub const fn shift(self) -> u8 {
        8 + self.0
    }

    /// Returns the size.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(1 << self.shift())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_encoding_of_ways_is_a_number_of_its_own_or_reserved() {
        let counts = [1, 2, 4, 8, 16, 0, 0, 0, 3, 6, 12, 0, 0, 0, 0, 0];
        for (encoding, count) in (0..).zip(counts) {
            let ways = Ways::from_encoding(encoding);
            assert_eq!(ways.map_or(0, Ways::count), count);
            assert_eq!(ways, Ways::new(count));
            assert_eq!(ways.map_or(encoding, Ways::encoding), encoding);
        }
        assert_eq!((16..=u8::MAX).find_map(Ways::from_encoding), None);
    }

    #[test]
    fn granularities_are_powers_of_two_up_to_16_kib() {
        for encoding in 0..=6 {
            let granularity = Granularity::from_encoding(encoding).unwrap();
            assert_eq!(granularity.bytes(), Bytes(256 << encoding));
            assert_eq!(granularity.encoding(), encoding);
        }
        assert_eq!((7..=u8::MAX).find_map(Granularity::from_encoding), None);
    }
}
