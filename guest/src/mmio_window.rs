//! Assigns addresses to PCI memory BARs if the firmware has not done so.

use core::fmt;

/// The free part of an address window, from which addresses are allocated in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmioWindow {
    next: u32,
    end: u32,
}

/// The window has too few free addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowFull {
    /// The number of bytes requested.
    pub size: u64,
}

impl MmioWindow {
    /// Returns the window from `start` to `end`, `end` excluded.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Self {
        MmioWindow { next: start, end }
    }

    /// Returns the first free address.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Allocates `size` bytes (a power of two), aligned to their size as BARs require.
    ///
    /// # Errors
    /// [`WindowFull`] if the window has too few free addresses, or if `size` is not a power of two
    /// below 4 GiB. Nothing is allocated then.
    pub fn take(&mut self, size: u64) -> Result<u32, WindowFull> {
        let full = WindowFull { size };
        let size = u32::try_from(size).ok().filter(|size| size.is_power_of_two()).ok_or(full)?;
        let start = self.next.checked_next_multiple_of(size).ok_or(full)?;
        let end = start.checked_add(size).filter(|&end| end <= self.end).ok_or(full)?;
        self.next = end;
        Ok(start)
    }

    /// Skips to the next multiple of `align`, a power of two, and returns it. The window of a
    /// bridge begins and ends at such multiples.
    ///
    /// # Errors
    /// [`WindowFull`] if the multiple lies beyond the window. Nothing is skipped then.
    pub fn align(&mut self, align: u32) -> Result<u32, WindowFull> {
        let full = WindowFull { size: align.into() };
        let next = self.next.checked_next_multiple_of(align).ok_or(full)?;
        self.next = Some(next).filter(|&next| next <= self.end).ok_or(full)?;
        Ok(next)
    }
}

impl fmt::Display for WindowFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no free addresses for a BAR of {:#x} bytes", self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_aligned_to_their_size_and_do_not_overlap() {
        let mut window = MmioWindow::new(0xfe00_1000, 0xfe10_0000);
        assert_eq!(window.take(0x4000), Ok(0xfe00_4000));
        assert_eq!(window.take(0x1000), Ok(0xfe00_8000));
        assert_eq!(window.take(0x4000), Ok(0xfe00_c000));
        assert_eq!(window.next(), 0xfe01_0000);
        assert_eq!(window.align(0x8_0000), Ok(0xfe08_0000));
    }

    #[test]
    fn a_bar_that_does_not_fit_is_refused_and_nothing_is_allocated() {
        let mut window = MmioWindow::new(0xfe00_0000, 0xfe10_0000);
        for size in [0, 0x3000, 0x20_0000, 1 << 32, u64::MAX] {
            assert_eq!(window.take(size), Err(WindowFull { size }));
        }
        assert_eq!(window.take(0x10_0000), Ok(0xfe00_0000));
        assert_eq!(window.take(16), Err(WindowFull { size: 16 }));
        let mut top = MmioWindow::new(0xffff_f000, u32::MAX);
        assert!(top.take(0x2000).is_err());
        assert!(top.align(0x10_0000).is_err());
    }
}
