//! Reads RTAS event logs: either arbitrary bytes, or QEMU's log with some bytes replaced and its
//! end cut off. Arbitrary bytes alone would almost never have valid headers, sections and lengths.
#![no_main]

use hotmem_guest_pseries::event_log::{Event, LogError};

/// Returns the log that QEMU 7.2 writes when a DIMM of 1 GiB is added at 1 GiB.
fn qemu_log() -> Vec<u8> {
    let mut log = vec![0; 116];
    log[..8].copy_from_slice(&[0x06, 0x34, 0x60, 0xe5, 0, 0, 0, 108]);
    log[8..11].copy_from_slice(&[0x80, 0, 0x8e]);
    log[20..24].copy_from_slice(b"IBM\0");
    for (offset, id, len) in [(24, b"PH", 48), (72, b"UH", 24), (96, b"HP", 20)] {
        log[offset..offset + 4].copy_from_slice(&[id[0], id[1], 0, len]);
    }
    log[104..].copy_from_slice(&[2, 1, 4, 0, 0, 0, 0, 4, 0x80, 0, 0, 4]);
    log
}

/// Returns the log that the input encodes. If the first byte is 0, the second byte is the number of
/// bytes to cut off from QEMU's log, and pairs of an offset and a value follow. Otherwise the input
/// itself is the log.
fn log(input: &[u8]) -> Vec<u8> {
    let Some((&[0, len], pairs)) = input.split_first_chunk() else { return input.to_vec() };
    let mut log = qemu_log();
    for &[offset, value] in pairs.as_chunks().0 {
        log[usize::from(offset) % 116] = value;
    }
    log.truncate(116 - usize::from(len) % 117);
    log
}

/// Returns the length that a log declares.
fn declared_len(log: &[u8]) -> usize {
    let extended = log.get(4..).and_then(|rest| rest.first_chunk());
    extended.map_or(8, |&bytes| 8 + u32::from_be_bytes(bytes) as usize)
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let log = log(input);
    match Event::parse(&log) {
        Ok(event) => {
            if let Event::Hotplug(hotplug) = event {
                let _ = hotplug.request();
            }
            // Bytes after the log make no difference.
            let longer = [&log[..], &[0xff; 64]].concat();
            assert_eq!(Event::parse(&longer), Ok(event));
        }
        // The log is too short: either the bytes end early, or the log's own length is too small.
        Err(LogError::TooShort { needs }) => assert!(needs > log.len().min(declared_len(&log))),
        Err(_) => {}
    }
});
