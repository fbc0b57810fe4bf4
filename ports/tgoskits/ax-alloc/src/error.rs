//! The errors of ArceOS's allocators, and those of Hotmem that become them.

use hotmem::{AddError, AnnounceError, RangeError, RangeErrorKind};
use hotmem_port::LateMemoryError;

/// The reason why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// A size, an alignment or an address is invalid.
    #[error("the size, the alignment or the address is invalid")]
    InvalidParam,
    /// The allocator is already initialized.
    #[error("memory was added before")]
    AlreadyInitialized,
    /// The range overlaps another one.
    #[error("the memory overlaps memory that was added before")]
    MemoryOverlap,
    /// Not enough memory is free.
    #[error("too little memory is free")]
    NoMemory,
    /// The memory was not allocated.
    #[error("the memory is not allocated")]
    NotAllocated,
    /// The allocator is not initialized.
    #[error("no memory was added yet")]
    NotInitialized,
    /// There is no such allocation.
    #[error("there is no such allocation")]
    NotFound,
}

/// A result of the allocator.
pub type AllocResult<T = ()> = Result<T, AllocError>;

impl From<hotmem::AllocError> for AllocError {
    fn from(error: hotmem::AllocError) -> AllocError {
        match error {
            hotmem::AllocError::Bad(_) => AllocError::InvalidParam,
            _ => AllocError::NoMemory,
        }
    }
}

impl From<RangeError> for AllocError {
    fn from(error: RangeError) -> AllocError {
        use RangeErrorKind::{Announced, Device, NoTables, NotAllocated, Online, Present};
        match error.kind {
            // Memory that is free already was added before.
            Announced | Device | NotAllocated | Online | Present => AllocError::MemoryOverlap,
            NoTables { .. } => AllocError::NoMemory,
            _ => AllocError::InvalidParam,
        }
    }
}

impl From<LateMemoryError> for AllocError {
    fn from(error: LateMemoryError) -> AllocError {
        match error {
            LateMemoryError::Range(error)
            | LateMemoryError::Announce(AnnounceError::Range(error))
            | LateMemoryError::Add(AddError::Range(error)) => error.into(),
            LateMemoryError::Add(AddError::TooManyNodes(_)) => AllocError::InvalidParam,
            LateMemoryError::Announce(_) | LateMemoryError::Add(_) => AllocError::NoMemory,
        }
    }
}
