//! Writes to standard output. A closed pipe is distinguished from other errors, such as a full
//! disk.

use std::{
    fmt,
    io::{self, Write},
};

/// Standard output cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("standard output")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Returns whether the reader has closed the pipe. This is not a failure of the program, so the
    /// program prints no message.
    #[must_use]
    pub fn is_closed_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Writes to standard output. The macro `say!` writes a line.
///
/// # Errors
/// [`OutputError`].
pub fn write(text: fmt::Arguments<'_>) -> Result<(), OutputError> {
    Ok(io::stdout().lock().write_fmt(text)?)
}

/// Writes a line to standard error. Errors are ignored.
pub fn remark(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes a line to standard output, as `println!` does, but returns an [`OutputError`] instead of
/// panicking.
macro_rules! say {
    () => { $crate::out::write(format_args!("\n")) };
    ($($line:tt)*) => { $crate::out::write(format_args!("{}\n", format_args!($($line)*))) };
}
