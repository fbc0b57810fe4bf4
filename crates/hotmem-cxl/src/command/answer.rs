//! Reads the answers to commands.

use crate::{
    fields::{u16_at, u32_at, u64_at},
    interleave::UNIT,
};
use core::fmt;
use hotmem_addr::Bytes;

/// The reason why an answer cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerError {
    /// The answer is shorter than what it must have, or than what it says to have.
    Short {
        /// Its length.
        len: usize,
        /// The length that is required.
        wanted: usize,
    },
    /// A capacity has more bytes than 64 bits can count, or its parts exceed the whole.
    Capacity {
        /// The capacity in units of 256 MiB.
        units: u64,
    },
    /// A region of dynamic capacity is impossible: its start, its size or its block size.
    Region {
        /// The position of the region in the answer.
        n: usize,
    },
    /// The answer has more regions than a device can have.
    Regions(usize),
}

/// The static capacity of a device (Identify Memory Device, Table 8-127).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// All of it.
    pub total: Bytes,
    /// What can only be volatile. It begins at address 0 of the device.
    pub volatile: Bytes,
    /// What can only be persistent. It ends at the end of the total capacity.
    pub persistent: Bytes,
}

/// Memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Extent {
    /// The first address in the device.
    pub start: u64,
    /// The size. A device may give any, so that `start` + `len` may wrap.
    pub len: u64,
}

/// A region of dynamic capacity, in which extents may be (Table 8-165).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The first address in the device: a multiple of 256 MiB.
    pub start: u64,
    /// The size for which decoders are set: a multiple of 256 MiB.
    pub decode_len: u64,
    /// The size of the memory: at most `decode_len`.
    pub len: u64,
    /// The unit of extents: a power of two, and at least 64.
    pub block: u64,
}

/// The largest number of regions of a device.
pub const MAX_REGIONS: usize = 8;

/// A part of the list of extents that the host has accepted (Get Dynamic Capacity Extent List,
/// Table 8-167).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentPage<'a> {
    /// The number of extents in the whole list.
    pub total: u32,
    /// Changes whenever the list changes. Parts with different numbers are not of one list.
    pub generation: u32,
    extents: &'a [u8],
}

/// A part of an event log (Get Event Records, Table 8-52).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventPage<'a> {
    /// The number of events that were lost because the log was full, since the host has last emptied it.
    pub lost: u16,
    /// Whether there are more events, which can be read when these are cleared.
    pub more: bool,
    records: &'a [u8],
}

/// An event, with the handle by which it is cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The handle.
    pub handle: u16,
    /// What happened.
    pub event: Event,
}

/// What happened to dynamic capacity (Table 8-50).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The device offers an extent.
    Add(Extent, More),
    /// The device asks for an extent back.
    Release(Extent, More),
    /// The device has taken an extent back, whatever the host did with it.
    ForcedRelease(Extent, More),
    /// A region has changed. Its configuration must be read again.
    RegionChanged {
        /// The number of the region.
        region: u8,
    },
    /// Anything else.
    Other,
}

/// Whether the next event belongs to the same request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// It does.
    Follows,
    /// This event is the last of the request.
    Last,
}

const EXTENT_BYTES: usize = 40;
const RECORD_BYTES: usize = 0x80;
/// The identity of events of dynamic capacity.
const DYNAMIC_CAPACITY: [u8; 16] = [
    0xca, 0x95, 0xaf, 0xa7, 0xf1, 0x83, 0x40, 0x18, 0x8c, 0x2f, 0x95, 0x26, 0x8e, 0x10, 0x1a, 0x2a,
];

/// Returns `len` bytes from `at`.
fn part(answer: &[u8], at: usize, len: usize) -> Result<&[u8], AnswerError> {
    let short = AnswerError::Short { len: answer.len(), wanted: at.saturating_add(len) };
    answer.get(at..).and_then(|rest| rest.get(..len)).ok_or(short)
}

impl Capacity {
    /// Reads the answer to Identify Memory Device.
    ///
    /// # Errors
    /// The answer is too short, or the capacities are impossible.
    pub fn read(answer: &[u8]) -> Result<Self, AnswerError> {
        let part = part(answer, 0x10, 0x18)?;
        let field = |at| {
            let units = u64_at(part, at).unwrap_or(0);
            units.checked_mul(UNIT).ok_or(AnswerError::Capacity { units })
        };
        let (total, volatile, persistent) = (field(0)?, field(8)?, field(0x10)?);
        if volatile.checked_add(persistent).is_none_or(|parts| parts > total) {
            return Err(AnswerError::Capacity { units: total / UNIT });
        }
        let [total, volatile, persistent] = [total, volatile, persistent].map(Bytes);
        Ok(Capacity { total, volatile, persistent })
    }

    /// Returns whether some of the capacity has no fixed type, so that the device must be asked by Get
    /// Partition Info which type it has now.
    #[must_use]
    pub fn has_variable_part(&self) -> bool {
        self.volatile.0 + self.persistent.0 < self.total.0
    }

    /// Reads the answer to Get Partition Info (Table 8-129): the same capacity with its present types.
    ///
    /// # Errors
    /// The answer is too short, or the capacities exceed the total.
    pub fn with_partition(self, answer: &[u8]) -> Result<Self, AnswerError> {
        let part = part(answer, 0, 0x10)?;
        let field = |at| {
            let units = u64_at(part, at).unwrap_or(0);
            units.checked_mul(UNIT).ok_or(AnswerError::Capacity { units })
        };
        let (volatile, persistent) = (field(0)?, field(8)?);
        if volatile.checked_add(persistent).is_none_or(|parts| parts > self.total.0) {
            return Err(AnswerError::Capacity { units: volatile / UNIT });
        }
        Ok(Capacity { volatile: Bytes(volatile), persistent: Bytes(persistent), ..self })
    }
}

impl Region {
    /// Reads the answer to Get Dynamic Capacity Configuration. Returns the regions of the answer, and how
    /// many the device has.
    ///
    /// # Errors
    /// The answer is too short, has too many regions, or a region is impossible.
    pub fn read_all(answer: &[u8]) -> Result<([Option<Region>; MAX_REGIONS], u8), AnswerError> {
        let header = part(answer, 0, 8)?;
        let count = usize::from(header[1]);
        let mut regions = [None; MAX_REGIONS];
        let places = regions.get_mut(..count).ok_or(AnswerError::Regions(count))?;
        for (n, place) in places.iter_mut().enumerate() {
            let raw = part(answer, 8 + EXTENT_BYTES * n, EXTENT_BYTES)?;
            *place = Some(Region::read(raw).ok_or(AnswerError::Region { n })?);
        }
        Ok((regions, header[0]))
    }

    fn read(raw: &[u8]) -> Option<Region> {
        let (start, len, block) = (u64_at(raw, 0)?, u64_at(raw, 16)?, u64_at(raw, 24)?);
        let decode_len = u64_at(raw, 8)?.checked_mul(UNIT)?;
        start.checked_add(decode_len)?;
        let is_possible = start.is_multiple_of(UNIT)
            && len <= decode_len
            && block.is_power_of_two()
            && block >= 64
            && len.is_multiple_of(block);
        is_possible.then_some(Region { start, decode_len, len, block })
    }
}

impl<'a> ExtentPage<'a> {
    /// Reads the answer to Get Dynamic Capacity Extent List.
    ///
    /// # Errors
    /// The answer is shorter than its extents.
    pub fn read(answer: &'a [u8]) -> Result<Self, AnswerError> {
        let header = part(answer, 0, 0x10)?;
        let field = |at| u32_at(header, at).unwrap_or(0);
        let count = usize::try_from(field(0)).unwrap_or(usize::MAX);
        let extents = part(answer, 0x10, count.saturating_mul(EXTENT_BYTES))?;
        Ok(ExtentPage { total: field(4), generation: field(8), extents })
    }

    /// Returns the extents.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + use<'a> {
        self.extents.chunks_exact(EXTENT_BYTES).filter_map(|raw| extent(raw, 0))
    }
}

impl<'a> EventPage<'a> {
    /// Reads the answer to Get Event Records.
    ///
    /// # Errors
    /// The answer is shorter than its events.
    pub fn read(answer: &'a [u8]) -> Result<Self, AnswerError> {
        let header = part(answer, 0, 0x20)?;
        let count = usize::from(u16_at(header, 0x14).unwrap_or(0));
        let records = part(answer, 0x20, count * RECORD_BYTES)?;
        let lost = u16_at(header, 2).unwrap_or(0).max(1) * u16::from(header[0] & 1);
        Ok(EventPage { lost, more: header[0] & 2 != 0, records })
    }

    /// Returns the events, the oldest first.
    pub fn records(&self) -> impl Iterator<Item = Record> + use<'a> {
        self.records.chunks_exact(RECORD_BYTES).filter_map(Record::read)
    }
}

impl Record {
    fn read(raw: &[u8]) -> Option<Record> {
        let handle = u16_at(raw, 0x14)?;
        if !raw.starts_with(&DYNAMIC_CAPACITY) {
            return Some(Record { handle, event: Event::Other });
        }
        let (kind, region, flags) = (*raw.get(0x30)?, *raw.get(0x34)?, *raw.get(0x35)?);
        let extent = extent(raw, 0x38)?;
        let more = if flags & 1 != 0 { More::Follows } else { More::Last };
        let event = match kind {
            0 => Event::Add(extent, more),
            1 => Event::Release(extent, more),
            2 => Event::ForcedRelease(extent, more),
            3 => Event::RegionChanged { region },
            _ => Event::Other,
        };
        Some(Record { handle, event })
    }
}

fn extent(raw: &[u8], at: usize) -> Option<Extent> {
    Some(Extent { start: u64_at(raw, at)?, len: u64_at(raw, at + 8)? })
}

impl core::error::Error for AnswerError {}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::Short { len, wanted } => {
                write!(f, "the answer has {len} bytes, but must have {wanted}")
            }
            AnswerError::Capacity { units } => {
                write!(f, "a capacity of {units} units of 256 MiB is impossible")
            }
            AnswerError::Region { n } => write!(f, "region {n} is impossible"),
            AnswerError::Regions(count) => write!(f, "a device with {count} regions"),
        }
    }
}
