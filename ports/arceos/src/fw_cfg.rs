//! Reads files that QEMU passes to its guest by the fw_cfg device.

use alloc::string::String;
use core::array::from_fn;
use x86_64::instructions::port::Port;

const SELECTOR: u16 = 0x510;
const DATA: u16 = 0x511;
const DIRECTORY: u16 = 0x19;

/// Reads the file with this name. Returns `None` if there is no such file, or if it is not UTF-8.
pub fn read(name: &str) -> Option<String> {
    // SAFETY: QEMU's machine has the fw_cfg device at these ports, and nothing else uses the
    // device.
    let select = |key| unsafe { Port::new(SELECTOR).write(key) };
    // SAFETY: reading the data port only advances the position in the selected file.
    let byte = |_| unsafe { Port::<u8>::new(DATA).read() };
    let number = || u32::from_be_bytes(from_fn(byte));
    select(DIRECTORY);
    for _ in 0..number() {
        let (size, key) = (number(), u16::from_be_bytes(from_fn(byte)));
        let [_, _, file @ ..]: [u8; 58] = from_fn(byte);
        if file.split(|&byte| byte == 0).next() == Some(name.as_bytes()) {
            select(key);
            return String::from_utf8((0..size as usize).map(byte).collect()).ok();
        }
    }
    None
}
