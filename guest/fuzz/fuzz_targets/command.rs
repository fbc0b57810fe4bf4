//! Reads lines that a host sends to the guest, one byte after the other.
#![no_main]

use hotmem_guest::command::{Command, LineBuffer};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut buffer = LineBuffer::new();
    let commands = bytes.iter().filter_map(|&byte| buffer.push(byte)).count();
    assert!(commands <= bytes.split(|&byte| byte == b'\n').count());
    // Whatever came before, a line ends it, and the next line is a command.
    let _ = buffer.push(b'\n');
    let end = b"end\n".iter().filter_map(|&byte| buffer.push(byte)).last();
    assert!(matches!(end, Some(Ok(Command::End))), "{end:?}");
});
