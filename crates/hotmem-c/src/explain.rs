//! Writes text to a buffer of the caller.

use core::fmt::{self, Display, Write};

/// A buffer, and the number of bytes written to it.
pub(crate) struct Buffer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Buffer<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Buffer<'a> {
        Buffer { bytes, len: 0 }
    }

    /// Writes as much of the text as fits. Returns the number of bytes written.
    pub(crate) fn print(mut self, text: impl Display) -> usize {
        // Ignore the error, which occurs if the text is cut off.
        let _ = write!(self, "{text}");
        self.len
    }
}

impl Write for Buffer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let remaining = self.bytes.get_mut(self.len..).unwrap_or_default();
        let len = text.len().min(remaining.len());
        remaining[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        if len == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Writes the text and a terminating NUL to the `size` bytes at `buffer`. Cuts off a text that does
/// not fit.
///
/// # Safety
/// `buffer` is null, or `size` bytes can be written there.
pub(crate) unsafe fn write_text(buffer: *mut u8, size: usize, text: impl Display) {
    let (false, Some(text_size)) = (buffer.is_null(), size.checked_sub(1)) else { return };
    // SAFETY: the caller guarantees it.
    unsafe {
        buffer.write_bytes(0, size);
        let bytes = core::slice::from_raw_parts_mut(buffer, text_size);
        Buffer::new(bytes).print(text);
    }
}
