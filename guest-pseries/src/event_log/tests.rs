//! Tests that QEMU's event log is read, and that damaged logs are refused.

use super::*;
use proptest::prelude::*;

/// Returns the log that QEMU 7.2 writes when a DIMM of 1 GiB is added at 1 GiB.
pub(crate) fn qemu_log() -> Vec<u8> {
    let mut log = vec![0x06, 0x34, 0x60, 0xe5];
    log.extend(108_u32.to_be_bytes());
    log.extend([0x80, 0, 0x8e, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    log.extend(*b"IBM\0");
    section(&mut log, *b"PH", &[0; 40]);
    section(&mut log, *b"UH", &[0; 16]);
    let mut hotplug = vec![2, 1, 4, 0];
    hotplug.extend(4_u32.to_be_bytes());
    hotplug.extend(0x8000_0004_u32.to_be_bytes());
    section(&mut log, *b"HP", &hotplug);
    assert_eq!(log.len(), 116);
    log
}

fn section(log: &mut Vec<u8>, id: [u8; 2], contents: &[u8]) {
    log.extend(id);
    let len = u16::try_from(SECTION_BYTES + contents.len()).unwrap();
    log.extend(len.to_be_bytes());
    log.extend([1, 0, 0, 0]);
    log.extend(contents);
}

fn parse_changed(change: impl FnOnce(&mut Vec<u8>)) -> Result<Event, LogError> {
    let mut log = qemu_log();
    change(&mut log);
    Event::parse(&log)
}

#[test]
fn a_log_of_qemu_is_read() {
    let hotplug = Hotplug {
        resource: Resource::Memory,
        change: Change::Add,
        identifier: Identifier::CountIndexed { count: 4, first: DrcIndex(0x8000_0004) },
    };
    assert_eq!(parse_changed(|_| ()), Ok(Event::Hotplug(hotplug)));
    // Bytes after the log are ignored.
    assert_eq!(parse_changed(|log| log.extend([0xff; 100])), Ok(Event::Hotplug(hotplug)));
    let selection = LmbSelection::Range { first: DrcIndex(0x8000_0004), count: 4 };
    assert_eq!(hotplug.request(), Some(Request::add(selection)));
    let remove = |log: &mut Vec<u8>| log[105] = 2;
    let Ok(Event::Hotplug(hotplug)) = parse_changed(remove) else { panic!() };
    assert_eq!(hotplug.request(), Some(Request::remove(selection)));
}

#[test]
fn each_way_to_name_lmbs_becomes_a_request() {
    for (kind, selection) in [
        (2, LmbSelection::Index(DrcIndex(4))),
        (3, LmbSelection::Count(4)),
        (4, LmbSelection::Range { first: DrcIndex(0x8000_0004), count: 4 }),
    ] {
        let Ok(Event::Hotplug(hotplug)) = parse_changed(|log| log[106] = kind) else { panic!() };
        assert_eq!(hotplug.request(), Some(Request::add(selection)));
    }
    let Ok(Event::Hotplug(named)) = parse_changed(|log| log[106] = 1) else { panic!() };
    assert_eq!((named.identifier, named.request()), (Identifier::Name, None));
    let Ok(Event::Hotplug(cpu)) = parse_changed(|log| log[104] = 1) else { panic!() };
    assert_eq!((cpu.resource, cpu.request()), (Resource::Cpu, None));
}

#[test]
fn invalid_logs_are_refused_with_the_reason() {
    assert_eq!(parse_changed(|log| log[0] = 5), Err(LogError::Version(5)));
    assert_eq!(parse_changed(|log| log[1] = 0x30), Err(LogError::NotExtended));
    assert_eq!(parse_changed(|log| log[4..8].fill(0)), Err(LogError::NotExtended));
    assert_eq!(parse_changed(|log| log[8] = 0), Err(LogError::NotExtended));
    assert_eq!(parse_changed(|log| log[10] = 0x82), Err(LogError::Format(2)));
    assert_eq!(
        parse_changed(|log| log[26..28].fill(0)),
        Err(LogError::Section { offset: 24, len: 0 })
    );
    assert_eq!(
        parse_changed(|log| log[26..28].fill(0xff)),
        Err(LogError::Section { offset: 24, len: 0xffff })
    );
    // The hotplug section declares a length that is too small for its contents. The bytes after the
    // section make no difference.
    for len in [8, 11, 15, 19] {
        let shorter = |log: &mut Vec<u8>| {
            log[99] = len;
            log[4..8].copy_from_slice(&208_u32.to_be_bytes());
            log.extend([0; 100]);
        };
        assert_eq!(parse_changed(shorter), Err(LogError::Section { offset: 96, len: len.into() }));
    }
    assert_eq!(parse_changed(|log| log[96] = 0), Err(LogError::NoHotplug));
    assert_eq!(parse_changed(|log| log[104] = 9), Err(LogError::Resource(9)));
    assert_eq!(parse_changed(|log| log[105] = 0), Err(LogError::Action(0)));
    assert_eq!(parse_changed(|log| log[106] = 7), Err(LogError::Identifier(7)));
    assert_eq!(
        parse_changed(|log| log[4..8].fill(0xff)).unwrap_err(),
        LogError::TooShort { needs: 8 + u32::MAX as usize }
    );
    // Other events than hotplug events are not decoded.
    assert_eq!(parse_changed(|log| log[3] = 0x50), Ok(Event::Other(0x50)));
}

#[test]
fn a_log_truncated_at_any_byte_is_an_error() {
    let log = qemu_log();
    for len in 0..log.len() {
        let error = Event::parse(&log[..len]).unwrap_err();
        assert!(matches!(error, LogError::TooShort { needs } if needs > len), "{len}: {error}");
    }
    // A log that declares a length that is too small is an error too.
    for len in 1..108_u8 {
        let error = parse_changed(|log| log[7] = len).unwrap_err();
        assert!(
            matches!(
                error,
                LogError::TooShort { .. } | LogError::Section { .. } | LogError::NoHotplug
            ),
            "{len}: {error}"
        );
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Event::parse(&bytes);
    }

    /// One to four bytes of a valid log are replaced.
    #[test]
    fn no_corrupted_log_panics(changes in proptest::collection::vec((0_usize..116, any::<u8>()), 1..5)) {
        let event = parse_changed(|log| changes.iter().for_each(|&(offset, byte)| log[offset] = byte));
        if let Ok(Event::Hotplug(hotplug)) = event {
            let _ = hotplug.request();
        }
    }
}
