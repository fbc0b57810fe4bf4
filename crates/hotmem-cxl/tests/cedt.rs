//! Tests of the CEDT: that of QEMU, faulty structures, arbitrary bytes; windows that overlap.

use hotmem_addr::{AddrError, Bytes, PfnRange};
use hotmem_cxl::cedt::{
    self, Arithmetic, CedtError, CedtFault, HostBridge, Restrictions, Structure, Window,
};
use hotmem_cxl::{Granularity, Platform, PlatformError, UNIT, Ways};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn range(start: u64, len: u64) -> PfnRange {
    PfnRange::from_bytes(start, Bytes(len)).unwrap()
}

fn bridge(uid: u32, version: u32, start: u64, len: u64) -> Vec<u8> {
    let mut raw = vec![0, 0, 32, 0];
    raw.extend([uid, version, 0].map(u32::to_le_bytes).concat());
    raw.extend([start, len].map(u64::to_le_bytes).concat());
    raw
}

/// A window whose encodings may be anything.
struct Raw {
    start: u64,
    len: u64,
    ways: u8,
    arithmetic: u8,
    granularity: u32,
    targets: Vec<u32>,
}

impl Default for Raw {
    fn default() -> Self {
        let (ways, arithmetic, granularity) = (0, 0, 0);
        Raw { start: 4 * GIB, len: 4 * GIB, ways, arithmetic, granularity, targets: vec![12] }
    }
}

impl Raw {
    fn bytes(&self) -> Vec<u8> {
        let len = u16::try_from(36 + 4 * self.targets.len()).unwrap();
        let mut raw = vec![1, 0];
        raw.extend(len.to_le_bytes());
        raw.extend([0; 4]);
        raw.extend([self.start, self.len].map(u64::to_le_bytes).concat());
        raw.extend([self.ways, self.arithmetic, 0, 0]);
        raw.extend(self.granularity.to_le_bytes());
        raw.extend([0xf, 0, 0, 0]);
        raw.extend(self.targets.iter().flat_map(|target| target.to_le_bytes()));
        raw
    }

    fn window(&self) -> Window {
        match one(&self.bytes()) {
            Ok(Structure::Window(window)) => window,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the only structure.
fn one(table: &[u8]) -> Result<Structure, CedtFault> {
    let found: Vec<_> = cedt::structures(table).collect();
    assert_eq!(found.len(), 1);
    found[0].map_err(|error| error.fault)
}

/// What QEMU 10 shows for one bridge and one window.
const QEMU: [u8; 72] = [
    0x00, 0x00, 0x20, 0x00, 0x0c, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0xe0, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x04, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x0f, 0x00, 0x00, 0x00, 0x0c, 0x00, 0x00, 0x00,
];

#[test]
fn the_table_of_qemu_is_a_bridge_and_a_window() {
    let found: Vec<_> = cedt::structures(&QEMU).map(Result::unwrap).collect();
    let [Structure::HostBridge(bridge), Structure::Window(window)] = found[..] else {
        panic!("{found:x?}")
    };
    assert_eq!(bridge, HostBridge { uid: 12, registers: range(0x4_e000_0000, 0x1_0000) });
    assert_eq!(window.range, range(0x4_f000_0000, 4 * GIB));
    assert_eq!((window.ways, window.granularity), (Ways::ONE, Granularity::MIN));
    assert_eq!(window.arithmetic, Arithmetic::Modulo);
    assert_eq!(window.targets(), [12]);
    let volatile = Restrictions(Restrictions::HOST_ONLY.0 | Restrictions::VOLATILE.0);
    assert!(window.restrictions.contains(volatile));
    assert!(!window.restrictions.contains(Restrictions::FIXED));
}

#[test]
fn a_table_truncated_at_any_byte_is_an_error() {
    for end in 1..QEMU.len() {
        let found: Vec<_> = cedt::structures(&QEMU[..end]).collect();
        if end == 32 {
            assert_eq!(found.len(), 1);
            assert!(found[0].is_ok());
            continue;
        }
        let at = if end < 32 { 0 } else { 32 };
        let len = match end - at {
            short @ ..4 => short,
            _ if at == 0 => 32,
            _ => 40,
        };
        let fault = CedtFault::Cut { len, remaining: end - at };
        assert_eq!(found.last(), Some(&Err(CedtError { at, fault })));
    }
}

#[test]
fn each_fault_of_a_structure_is_named() {
    let unaligned = |start, len| CedtFault::Unaligned { start, len };
    let beyond = AddrError::BeyondPhysicalLimit { start: 1 << 52, len: Bytes(GIB) };
    let odd = AddrError::Unaligned { start: 1, len: Bytes(0x1_0000) };
    let cases = [
        (bridge(1, 0, GIB, 0x2000), CedtFault::Version(0)),
        (bridge(1, 2, GIB, 0x1_0000), CedtFault::Version(2)),
        (bridge(1, 1, GIB, 0xf000), CedtFault::Registers { len: 0xf000 }),
        (bridge(1, 1, 1, 0x1_0000), CedtFault::Range(odd)),
        (Raw { ways: 5, ..Raw::default() }.bytes(), CedtFault::Ways(5)),
        (Raw { ways: 1, ..Raw::default() }.bytes(), CedtFault::Short { len: 40, wanted: 44 }),
        (
            Raw { targets: vec![], ..Raw::default() }.bytes(),
            CedtFault::Short { len: 36, wanted: 40 },
        ),
        (Raw { granularity: 7, ..Raw::default() }.bytes(), CedtFault::Granularity(7)),
        (Raw { granularity: 256, ..Raw::default() }.bytes(), CedtFault::Granularity(256)),
        (Raw { arithmetic: 2, ..Raw::default() }.bytes(), CedtFault::Arithmetic(2)),
        (Raw { len: 0, ..Raw::default() }.bytes(), unaligned(4 * GIB, 0)),
        (Raw { len: UNIT + 4096, ..Raw::default() }.bytes(), unaligned(4 * GIB, UNIT + 4096)),
        (Raw { start: 4096, ..Raw::default() }.bytes(), unaligned(4096, 4 * GIB)),
        (Raw { start: 1 << 52, len: GIB, ..Raw::default() }.bytes(), CedtFault::Range(beyond)),
    ];
    for (raw, fault) in cases {
        assert_eq!(one(&raw), Err(fault));
        // The structures after it are found nevertheless.
        let table = [raw, QEMU.to_vec()].concat();
        assert_eq!(cedt::structures(&table).filter(Result::is_ok).count(), 2);
    }
    for short in 4..32u8 {
        let raw = [&[0, 0, short, 0][..], &bridge(1, 1, GIB, 0x1_0000)[4..short.into()]].concat();
        assert_eq!(one(&raw), Err(CedtFault::Short { len: short.into(), wanted: 32 }));
    }
    assert_eq!(one(&[2, 0, 4, 0]), Ok(Structure::Other { kind: 2 }));
}

#[test]
fn windows_that_overlap_ram_or_each_other_are_refused() {
    let ram = [range(0, GIB), range(4 * GIB, GIB)];
    let mut platform = Platform::<2>::default();
    let window = |start, len| Structure::Window(Raw { start, len, ..Raw::default() }.window());
    let overlaps_ram = PlatformError::OverlapsRam { range: range(4 * GIB, 4 * GIB), ram: ram[1] };
    assert_eq!(platform.add(window(4 * GIB, 4 * GIB), &ram), Err(overlaps_ram));
    assert_eq!(platform.add(window(5 * GIB, GIB), &ram), Ok(()));
    let overlaps =
        PlatformError::Overlaps { range: range(5 * GIB + UNIT, GIB), other: range(5 * GIB, GIB) };
    assert_eq!(platform.add(window(5 * GIB + UNIT, GIB), &ram), Err(overlaps));
    let bridge =
        |uid, start| Structure::HostBridge(HostBridge { uid, registers: range(start, 0x1_0000) });
    assert!(platform.add(bridge(1, 0), &ram).is_err());
    assert!(platform.add(bridge(1, 5 * GIB), &ram).is_err());
    assert_eq!(platform.add(bridge(1, 2 * GIB), &ram), Ok(()));
    let repeated = PlatformError::RepeatedBridge { uid: 1 };
    assert_eq!(platform.add(bridge(1, 3 * GIB), &ram), Err(repeated));
    assert!(platform.add(window(2 * GIB, GIB), &ram).is_err(), "registers are no window");
    assert_eq!(platform.add(window(6 * GIB, GIB), &ram), Ok(()));
    let full = PlatformError::Full { capacity: 2 };
    assert_eq!(platform.add(window(7 * GIB, GIB), &ram), Err(full));
    assert_eq!((platform.windows().count(), platform.bridges().count()), (2, 1));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        start in 0..1u64 << 20, len in 1..1u64 << 20, ways in 0usize..8, granularity in 0u32..7,
        uids: [u32; 16],
    ) {
        let ways = [0, 1, 2, 3, 4, 8, 9, 10][ways];
        let count = Ways::from_encoding(ways).unwrap().count();
        let targets = uids[..count].to_vec();
        let (start, len) = (start * UNIT, len * UNIT);
        let window = Raw { start, len, ways, arithmetic: 0, granularity, targets }.window();
        prop_assert_eq!(window.range, range(start, len));
        prop_assert_eq!(window.ways.encoding(), ways);
        prop_assert_eq!(u32::from(window.granularity.encoding()), granularity);
        prop_assert_eq!(window.targets(), &uids[..count]);
    }

    #[test]
    fn arbitrary_bytes_make_a_platform_without_overlaps(
        table in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(32), any::<u8>()], 0..256),
    ) {
        let mut platform = Platform::<4>::default();
        prop_assert!(cedt::structures(&table).count() <= table.len() / 4 + 1);
        for structure in cedt::structures(&table).flatten() {
            let _ = platform.add(structure, &[range(0, GIB)]);
        }
        let ranges: Vec<_> = platform.windows().map(|window| window.range)
            .chain(platform.bridges().map(|bridge| bridge.registers)).collect();
        for (n, range) in ranges.iter().enumerate() {
            prop_assert!(ranges[..n].iter().all(|other| !other.overlaps(*range)));
        }
    }
}
