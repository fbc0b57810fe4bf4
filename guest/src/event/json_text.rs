//! Writes text within a JSON string.

use core::fmt;

/// Displays a value within a JSON string.
pub(super) struct JsonText<'a>(pub(super) &'a dyn fmt::Display);

impl fmt::Display for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        write!(Escape(f), "{}", self.0)
    }
}

struct Escape<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escape<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '"' | '\\' => write!(self.0, "\\{c}"),
            c if c < ' ' => write!(self.0, "\\u{:04x}", u32::from(c)),
            c => self.0.write_char(c),
        })
    }
}
