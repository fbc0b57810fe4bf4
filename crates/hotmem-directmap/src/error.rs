//! Errors of the direct map.

use core::fmt;
use hotmem_addr::PfnRange;
use hotmem_pgtable::{Format, NativeFault, Stopped};

/// The reason why a range was not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DirectMapError<F: Format> {
    /// The range lies beyond the area of the direct map.
    BeyondDirectMap(PfnRange),
    /// No frame was available for a page table that the range needs.
    NoTableFrame(PfnRange),
    /// The page tables hold an unexpected entry.
    Tables(Stopped<NativeFault<F>, F>),
}

impl<F: Format> fmt::Display for DirectMapError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectMapError::BeyondDirectMap(range) => {
                write!(f, "{range} lies beyond the area of the direct map")
            }
            DirectMapError::NoTableFrame(range) => {
                write!(f, "no frame was available for the page tables of {range}")
            }
            DirectMapError::Tables(stopped) => write!(f, "page tables: {stopped}"),
        }
    }
}

impl<F: Format> core::error::Error for DirectMapError<F> {}
