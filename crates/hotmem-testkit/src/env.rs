//! Reads numbers from environment variables.

/// Returns the number in an environment variable, if it is set.
///
/// # Panics
/// Panics if the value is not a number.
#[must_use]
pub fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.strip_prefix("0x").map_or(text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
