//! Starts a kernel on QEMU's machine `virt` for aarch64 as a firmware would. With a firmware, QEMU gives the
//! machine slots for DIMMs and describes them in ACPI's tables, and then it does not start the kernel
//! itself.

use crate::anonymous_file::anonymous_file;
use std::{fs::File, os::fd::AsRawFd, path::Path, sync::LazyLock};

/// Loads the address of the device tree into x0, where QEMU puts it, and jumps to [`KERNEL`].
const PROGRAM: [u32; 3] = [
    0xd2a8_0000, // movz x0, #0x4000, lsl #16
    0xd2a8_0404, // movz x4, #0x4020, lsl #16
    0xd61f_0080, // br x4
];
/// The address to which the kernel is loaded: that at which QEMU loads it without a firmware.
const KERNEL: u64 = 0x4020_0000;

/// A file with the program, which exists as long as this process.
static FIRMWARE: LazyLock<File> = LazyLock::new(|| {
    let bytes = PROGRAM.map(u32::to_le_bytes).concat();
    anonymous_file(&bytes).expect("the kernel has anonymous files")
});

/// Returns QEMU's options that start the kernel.
///
/// # Panics
/// There is no memory for an anonymous file.
pub(super) fn options(kernel: &Path) -> [(&'static str, String); 2] {
    // QEMU opens the file by this name, and does not inherit it.
    let firmware = format!("/proc/{}/fd/{}", std::process::id(), FIRMWARE.as_raw_fd());
    let loader = format!("loader,file={},addr={KERNEL:#x},force-raw=on", kernel.display());
    [("-bios", firmware), ("-device", loader)]
}
