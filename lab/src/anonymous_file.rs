//! Files without a name, which exist as long as they are open.

use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    fs::File,
    io::{self, Write},
};

/// Returns an anonymous file that holds these bytes. Other processes can open it by its path in `/proc`.
///
/// # Errors
/// The kernel has no memory for the file, or no such files.
pub(crate) fn anonymous_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("hotmem", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}
