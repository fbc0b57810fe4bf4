//! Walks page tables as the manuals of the processors describe it, without the code of the crate.

use hotmem_pgtable::{Aarch64, Format, Level, Riscv64, X86_64};

/// What a processor finds at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Translation {
    /// The physical address.
    pub(crate) phys: u64,
    /// The number of bytes of the page.
    pub(crate) page_bytes: u64,
    pub(crate) writable: bool,
    /// Whether the mode that the page belongs to may execute it.
    pub(crate) executable: bool,
    pub(crate) user: bool,
    pub(crate) global: bool,
    pub(crate) accessed: bool,
    pub(crate) dirty: bool,
    pub(crate) is_memory: bool,
    /// The physical address of the entry.
    pub(crate) entry: u64,
}

/// What an entry says, on its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    Absent,
    Table(u64),
    Page { phys: u64 },
}

/// A format as its manual describes it. Levels are counted from 1, the lowest.
pub(crate) trait Manual: Format {
    /// The roots that are tested.
    const ROOTS: &'static [Level];

    /// Says what an entry means on a level.
    fn meaning(bits: u64, level: u32) -> Meaning;

    /// Returns the translation by an entry that maps a page, except for the addresses and the size.
    fn permissions(bits: u64) -> Translation;

    /// Returns the entry after the processor has used it for a read or a write.
    fn used(bits: u64, writes: bool) -> u64;

    /// Returns whether a live entry must not become the other one without a flush between them. Both
    /// are valid.
    fn needs_break(old: u64, new: u64, level: u32) -> bool;
}

/// Walks the tables from `root`, the physical address of a table on level `levels`. `read` returns
/// the word at a physical address.
pub(crate) fn walk<M: Manual>(
    read: &dyn Fn(u64) -> u64,
    root: u64,
    levels: u32,
    address: u64,
) -> Option<Translation> {
    let (mut table, mut level) = (root, levels);
    loop {
        let shift = 12 + 9 * (level - 1);
        let entry = table + (address >> shift & 511) * 8;
        let bits = read(entry);
        match M::meaning(bits, level) {
            Meaning::Absent => return None,
            Meaning::Table(below) => (table, level) = (below, level - 1),
            Meaning::Page { phys } => {
                let page_bytes = 1 << shift;
                let phys = phys + (address & (page_bytes - 1));
                return Some(Translation { phys, page_bytes, entry, ..M::permissions(bits) });
            }
        }
    }
}

const fn bit(bits: u64, number: u32) -> bool {
    bits >> number & 1 != 0
}

/// Returns bits `high` to `low`, in their place.
const fn field(bits: u64, high: u32, low: u32) -> u64 {
    bits & (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

/// The rule of x86-64 and riscv64: a TLB may have both page sizes if they agree, so a page may become
/// a table, but nothing may become something in another frame.
fn differ_in_frame(old: Meaning, new: Meaning) -> bool {
    match (old, new) {
        (Meaning::Page { phys: old }, Meaning::Page { phys: new })
        | (Meaning::Table(old), Meaning::Table(new)) => old != new,
        (Meaning::Table(_), Meaning::Page { .. }) => true,
        _ => false,
    }
}

/// Intel SDM volume 3, tables 4-15 to 4-20.
impl Manual for X86_64 {
    const ROOTS: &'static [Level] = &[Level::L4, Level::L5];

    fn meaning(bits: u64, level: u32) -> Meaning {
        match level {
            _ if !bit(bits, 0) => Meaning::Absent,
            1 => Meaning::Page { phys: field(bits, 51, 12) },
            2 if bit(bits, 7) => Meaning::Page { phys: field(bits, 51, 21) },
            3 if bit(bits, 7) => Meaning::Page { phys: field(bits, 51, 30) },
            _ => Meaning::Table(field(bits, 51, 12)),
        }
    }

    fn permissions(bits: u64) -> Translation {
        Translation {
            phys: 0,
            page_bytes: 0,
            writable: bit(bits, 1),
            executable: !bit(bits, 63),
            user: bit(bits, 2),
            global: bit(bits, 8),
            accessed: bit(bits, 5),
            dirty: bit(bits, 6),
            is_memory: !bit(bits, 4),
            entry: 0,
        }
    }

    fn used(bits: u64, writes: bool) -> u64 {
        bits | 1 << 5 | if writes { 1 << 6 } else { 0 }
    }

    fn needs_break(old: u64, new: u64, level: u32) -> bool {
        differ_in_frame(Self::meaning(old, level), Self::meaning(new, level))
    }
}

/// Arm ARM, D8.3.1 (descriptors of the 4 KiB granule), D8.4 (permissions), D8.5 (access flag and
/// dirty state), D8.16.1 (break-before-make).
impl Manual for Aarch64 {
    const ROOTS: &'static [Level] = &[Level::L3, Level::L4];

    fn meaning(bits: u64, level: u32) -> Meaning {
        match (level, bits & 0b11) {
            (1, 0b11) => Meaning::Page { phys: field(bits, 47, 12) },
            (2, 0b01) => Meaning::Page { phys: field(bits, 47, 21) },
            (3, 0b01) => Meaning::Page { phys: field(bits, 47, 30) },
            (2..=4, 0b11) => Meaning::Table(field(bits, 47, 12)),
            _ => Meaning::Absent,
        }
    }

    fn permissions(bits: u64) -> Translation {
        let (ap1, ap2, dbm) = (bit(bits, 6), bit(bits, 7), bit(bits, 51));
        Translation {
            phys: 0,
            page_bytes: 0,
            // With DBM, a write to a read-only page makes the page writable.
            writable: !ap2 || dbm,
            executable: !bit(bits, if ap1 { 54 } else { 53 }),
            user: ap1,
            global: !bit(bits, 11),
            accessed: bit(bits, 10),
            // Bit 55 is the crate's own, for pages that became read-only after they were written.
            dirty: !ap2 || bit(bits, 55),
            is_memory: field(bits, 4, 2) == 0 && field(bits, 9, 8) == 0b11 << 8,
            entry: 0,
        }
    }

    fn used(bits: u64, writes: bool) -> u64 {
        bits & !(if writes { 1 << 7 } else { 0 }) | 1 << 10
    }

    fn needs_break(old: u64, new: u64, level: u32) -> bool {
        let type_or_global = field(u64::MAX, 4, 2) | field(u64::MAX, 9, 8) | 1 << 11;
        match (Self::meaning(old, level), Self::meaning(new, level)) {
            (Meaning::Page { phys: from }, Meaning::Page { phys: to }) => {
                from != to || (old ^ new) & type_or_global != 0
            }
            (Meaning::Table(from), Meaning::Table(to)) => from != to,
            _ => true,
        }
    }
}

/// RISC-V privileged specification, "Sv39: Page-Based 39-bit Virtual-Memory System", and the
/// sections for Sv48 and Sv57.
impl Manual for Riscv64 {
    const ROOTS: &'static [Level] = &[Level::L3, Level::L4, Level::L5];

    fn meaning(bits: u64, level: u32) -> Meaning {
        let (readable, writable, executable) = (bit(bits, 1), bit(bits, 2), bit(bits, 3));
        let phys = field(bits, 53, 10) << 2;
        match (readable, writable, executable) {
            _ if !bit(bits, 0) || !readable && writable => Meaning::Absent,
            (false, false, false) if level > 1 => Meaning::Table(phys),
            (false, false, false) => Meaning::Absent,
            _ if !phys.is_multiple_of(1 << (12 + 9 * (level - 1))) => Meaning::Absent,
            _ => Meaning::Page { phys },
        }
    }

    fn permissions(bits: u64) -> Translation {
        Translation {
            phys: 0,
            page_bytes: 0,
            writable: bit(bits, 2),
            executable: bit(bits, 3),
            user: bit(bits, 4),
            global: bit(bits, 5),
            accessed: bit(bits, 6),
            dirty: bit(bits, 7),
            is_memory: field(bits, 62, 61) == 0,
            entry: 0,
        }
    }

    fn used(bits: u64, writes: bool) -> u64 {
        bits | 1 << 6 | if writes { 1 << 7 } else { 0 }
    }

    fn needs_break(old: u64, new: u64, level: u32) -> bool {
        differ_in_frame(Self::meaning(old, level), Self::meaning(new, level))
    }
}
