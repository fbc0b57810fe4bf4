//! The host's free memory.

use super::Error;
use hotmem::Bytes;

/// Returns the memory that the host has available without swapping, or `None` if the host does not
/// report it.
#[must_use]
pub fn available_memory() -> Option<Bytes> {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Checks that the host has `needed` available. The check passes if the host does not report its
/// available memory.
///
/// # Errors
/// [`Error::HostMemory`] if less is available.
pub fn ensure_available(needed: Bytes) -> Result<(), Error> {
    match available_memory() {
        Some(available) if available < needed => Err(Error::HostMemory { needed, available }),
        _ => Ok(()),
    }
}

fn parse_meminfo(text: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_parsed() {
        let text = "MemTotal:       24654096 kB\nMemFree: 1 kB\nMemAvailable:   23068672 kB\n";
        assert_eq!(parse_meminfo(text), Some(Bytes::gib(22)));
        assert_eq!(parse_meminfo("MemTotal: 1 kB\n"), None);
        assert_eq!(parse_meminfo("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn more_than_the_available_memory_is_refused() {
        assert!(available_memory().is_none_or(|available| available > Bytes::ZERO));
        if available_memory().is_some() {
            assert!(matches!(ensure_available(Bytes(u64::MAX)), Err(Error::HostMemory { .. })));
        }
    }
}
