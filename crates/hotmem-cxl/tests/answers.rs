//! Tests of the answers to commands: each truncated at any byte, impossible, and arbitrary.

use hotmem_addr::Bytes;
use hotmem_cxl::UNIT;
use hotmem_cxl::command::{
    self, AnswerError, Capacity, Event, EventPage, Extent, ExtentPage, More, Record, Region,
};
use proptest::prelude::*;

const UUID: [u8; 16] = [
    0xca, 0x95, 0xaf, 0xa7, 0xf1, 0x83, 0x40, 0x18, 0x8c, 0x2f, 0x95, 0x26, 0x8e, 0x10, 0x1a, 0x2a,
];

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn capacity(total: u64, volatile: u64, persistent: u64) -> Vec<u8> {
    [vec![0; 0x10], numbers(&[total, volatile, persistent])].concat()
}

fn regions(count: u8, fields: [u64; 4]) -> Vec<u8> {
    let mut raw = vec![count, count, 0, 0, 0, 0, 0, 0];
    for n in 0..u64::from(count) {
        raw.extend(numbers(&[fields[0] + n * 4 * UNIT, fields[1], fields[2], fields[3], 0]));
    }
    raw
}

fn record(handle: u16, kind: u8, extent: Extent, flags: u8) -> Vec<u8> {
    let mut raw = vec![0; 0x80];
    raw[..16].copy_from_slice(&UUID);
    raw[0x14..0x16].copy_from_slice(&handle.to_le_bytes());
    (raw[0x30], raw[0x34], raw[0x35]) = (kind, 5, flags);
    raw[0x38..0x48].copy_from_slice(&numbers(&[extent.start, extent.len]));
    raw
}

fn events(records: &[Vec<u8>]) -> Vec<u8> {
    let mut raw = vec![0; 0x20];
    raw[0] = 3;
    raw[2..4].copy_from_slice(&700u16.to_le_bytes());
    raw[0x14] = u8::try_from(records.len()).unwrap();
    [raw, records.concat()].concat()
}

fn extents() -> Vec<u8> {
    let header = [2u32, 9, 77, 0].map(u32::to_le_bytes).concat();
    [header, numbers(&[1, 2, 0, 0, 0, 3, 4, 0, 0, 0])].concat()
}

#[test]
fn answers_are_read() {
    let [total, volatile, persistent] = [4, 1, 2].map(|units| Bytes(units * UNIT));
    assert_eq!(Capacity::read(&capacity(4, 1, 2)), Ok(Capacity { total, volatile, persistent }));
    let (found, all) = Region::read_all(&regions(8, [UNIT, 4, 3 * UNIT, 2 << 20])).unwrap();
    let region = Region { start: 29 * UNIT, decode_len: 4 * UNIT, len: 3 * UNIT, block: 2 << 20 };
    assert_eq!((found[7], all), (Some(region), 8));
    let raw = extents();
    let page = ExtentPage::read(&raw).unwrap();
    assert_eq!((page.total, page.generation), (9, 77));
    let list: Vec<_> = page.extents().collect();
    assert_eq!(list, [Extent { start: 1, len: 2 }, Extent { start: 3, len: 4 }]);

    let extent = Extent { start: 1 << 40, len: u64::MAX };
    let mut foreign = record(6, 0, extent, 0);
    foreign[0] = 0;
    let mut records: Vec<_> =
        (0..5).map(|kind| record(kind.into(), kind, extent, kind & 1)).collect();
    records.push(foreign);
    let raw = events(&records);
    let page = EventPage::read(&raw).unwrap();
    assert_eq!((page.lost, page.more), (700, true));
    let found: Vec<_> = page.records().map(|Record { handle, event }| (handle, event)).collect();
    let expected = [
        (0, Event::Add(extent, More::Last)),
        (1, Event::Release(extent, More::Follows)),
        (2, Event::ForcedRelease(extent, More::Last)),
        (3, Event::RegionChanged { region: 5 }),
        (4, Event::Other),
        (6, Event::Other),
    ];
    assert_eq!(found, expected);
}

#[test]
fn events_are_lost_only_if_the_device_says_so() {
    for (flags, count, lost) in [(1, 5, 5), (1, 0, 1), (0, 5, 0), (2, 0, 0)] {
        let mut raw = events(&[]);
        (raw[0], raw[2]) = (flags, count);
        raw[3] = 0;
        assert_eq!(EventPage::read(&raw).unwrap().lost, lost);
    }
}

#[test]
fn capacity_without_a_fixed_type_gets_its_type_from_the_partition() {
    let fixed = Capacity::read(&capacity(4, 1, 3)).unwrap();
    assert!(!fixed.has_variable_part());
    let variable = Capacity::read(&capacity(4, 0, 1)).unwrap();
    assert!(variable.has_variable_part());
    let [total, volatile, persistent] = [4, 3, 1].map(|units| Bytes(units * UNIT));
    let now = variable.with_partition(&numbers(&[3, 1, 0, 0]));
    assert_eq!(now, Ok(Capacity { total, volatile, persistent }));
    for (answer, error) in [
        (numbers(&[3, 2, 0, 0]), AnswerError::Capacity { units: 3 }),
        (numbers(&[u64::MAX, 0]), AnswerError::Capacity { units: u64::MAX }),
        (numbers(&[3]), AnswerError::Short { len: 8, wanted: 16 }),
    ] {
        assert_eq!(variable.with_partition(&answer), Err(error));
    }
}

#[test]
fn answers_truncated_at_any_byte_are_errors() {
    let extent = Extent { start: 0, len: 1 };
    let records = events(&[record(1, 0, extent, 1), record(2, 0, extent, 0)]);
    let regions = regions(2, [UNIT, 4, 3 * UNIT, 2 << 20]);
    for (answer, read) in [
        (capacity(4, 1, 2), (|raw| Capacity::read(raw).err()) as fn(&[u8]) -> Option<AnswerError>),
        (regions, |raw| Region::read_all(raw).err()),
        (extents(), |raw| ExtentPage::read(raw).err()),
        (records, |raw| EventPage::read(raw).err()),
    ] {
        assert_eq!(read(&answer), None);
        for len in 0..answer.len() {
            match read(&answer[..len]) {
                Some(AnswerError::Short { len: found, wanted }) => {
                    assert!(found == len && wanted > len && wanted <= answer.len());
                }
                other => panic!("{other:?} for {len} bytes"),
            }
        }
    }
}

#[test]
fn impossible_answers_are_refused() {
    let units = |units| Err(AnswerError::Capacity { units });
    assert_eq!(Capacity::read(&capacity(1 << 36, 0, 0)), units(1 << 36));
    assert_eq!(Capacity::read(&capacity(2, u64::MAX, 0)), units(u64::MAX));
    assert_eq!(Capacity::read(&capacity(2, 2, 1)), units(2));
    let good = [UNIT, 4, 3 * UNIT, 2 << 20];
    assert_eq!(Region::read_all(&regions(9, good)), Err(AnswerError::Regions(9)));
    let cases = [
        [UNIT + 1, 4, 3 * UNIT, 2 << 20],
        [UNIT, 2, 3 * UNIT, 2 << 20],
        [UNIT, 1 << 36, 3 * UNIT, 2 << 20],
        [0u64.wrapping_sub(UNIT), 4, 3 * UNIT, 2 << 20],
        [UNIT, 4, 3 * UNIT, 0],
        [UNIT, 4, 3 * UNIT, 32],
        [UNIT, 4, 3 * UNIT, 96],
        [UNIT, 4, 3 * UNIT + 64, 128],
    ];
    for fields in cases {
        let mut raw = regions(1, good);
        raw.splice(8..40, numbers(&fields));
        assert_eq!(Region::read_all(&raw), Err(AnswerError::Region { n: 0 }), "{fields:x?}");
    }
    let mut endless = extents();
    endless[..4].fill(0xff);
    assert!(matches!(ExtentPage::read(&endless), Err(AnswerError::Short { .. })));
}

#[test]
fn payloads_have_their_fields() {
    assert_eq!(command::clear_event(0x1234), [4, 0, 1, 0, 0, 0, 0x34, 0x12]);
    assert_eq!(command::get_extents(2, 1), [1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(command::get_dynamic_config(2, 8), [8, 2]);
    let mut payload = [0xff; 60];
    let list = [Extent { start: 1, len: 2 }, Extent { start: 3, len: 4 }];
    assert_eq!(command::extents_in(payload.len()), 2);
    assert_eq!(command::write_extents(&mut payload, &list, More::Follows), Some(56));
    let expected = [&[2, 0, 0, 0, 1, 0, 0, 0][..], &numbers(&[1, 2, 0, 3, 4, 0])].concat();
    assert_eq!(payload[..56], expected);
    assert_eq!(command::write_extents(&mut payload[..55], &list, More::Last), None);
    assert_eq!(command::write_extents(&mut payload, &[], More::Last), Some(8));
    assert_eq!(command::extents_in(7), 0);
}

proptest! {
    #[test]
    fn arbitrary_answers_are_read_without_a_panic(
        answer in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..600),
    ) {
        let _ = Capacity::read(&answer);
        if let Ok((regions, _)) = Region::read_all(&answer) {
            for region in regions.into_iter().flatten() {
                prop_assert!(region.start.checked_add(region.len).is_some());
            }
        }
        if let Ok(page) = ExtentPage::read(&answer) {
            prop_assert!(page.extents().count() <= answer.len() / 40);
        }
        if let Ok(page) = EventPage::read(&answer) {
            prop_assert!(page.records().count() <= answer.len() / 0x80);
        }
    }
}
