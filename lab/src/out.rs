//! Writes to standard output. A closed pipe is distinguished from other errors, such as a full
//! disk.

use anyhow::{Context, Result};
use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
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

/// Checks that a file can be written, and does not change it. A command calls this before it works,
/// so that no work is lost because the result cannot be written.
///
/// # Errors
/// The reason why the file cannot be opened for writing.
pub fn ensure_writable(path: &Path) -> Result<()> {
    let exists = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("{} cannot be written", path.display()))?;
    if !exists {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Writes a value to standard output as JSON.
///
/// # Errors
/// [`OutputError`], or a value that JSON cannot express.
pub fn write_json(value: &impl serde::Serialize) -> Result<()> {
    Ok(write(format_args!("{}\n", serde_json::to_string_pretty(value)?))?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_changes_no_file() {
        let path = std::env::temp_dir().join(format!("hotmem-writable-{}", std::process::id()));
        ensure_writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "text").unwrap();
        ensure_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        fs::remove_file(&path).unwrap();
        for bad in ["/nowhere/file", "/"] {
            let error = ensure_writable(Path::new(bad)).unwrap_err().to_string();
            assert_eq!(error, format!("{bad} cannot be written"));
        }
    }
}
