//! The errors of mapping pages of the descriptor map, the virtual array of descriptors.

use core::fmt;

/// The reason why pages were not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DescriptorMapError {
    /// The page lies beyond the end of the map.
    NoSuchPage(u64),
    /// The page is already mapped.
    AlreadyMapped(u64),
    /// No frame was available for the page, or for a table that maps the page.
    NoFrame(u64),
}

impl DescriptorMapError {
    /// Returns the first page that was not mapped.
    #[must_use]
    pub const fn page(self) -> u64 {
        let (DescriptorMapError::NoSuchPage(page)
        | DescriptorMapError::AlreadyMapped(page)
        | DescriptorMapError::NoFrame(page)) = self;
        page
    }
}

impl fmt::Display for DescriptorMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptorMapError::NoSuchPage(page) => {
                write!(f, "the descriptor map has no page {page}")
            }
            DescriptorMapError::AlreadyMapped(page) => {
                write!(f, "page {page} of the descriptor map is mapped already")
            }
            DescriptorMapError::NoFrame(page) => {
                write!(f, "no frame was available for page {page} of the descriptor map")
            }
        }
    }
}

impl core::error::Error for DescriptorMapError {}
