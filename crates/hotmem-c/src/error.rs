//! The codes that calls return.
//!
//! 0 is success, and a negative number is an error. The numbers are those of Linux. A failed call
//! has changed nothing, unless its documentation says otherwise.

use ::hotmem::report::ReporterError;
use ::hotmem::{
    AddError, AddrError, AllocError, AnnounceError, BootError, RangeError, RangeErrorKind,
};

/// Such memory does not exist: it was not announced, is not present, or is not allocated.
pub const HOTMEM_ENOENT: i32 = -2;
/// The driver has stopped, because its device cannot be trusted.
pub const HOTMEM_EIO: i32 = -5;
/// The memory is not online memory of this machine.
pub const HOTMEM_ENXIO: i32 = -6;
/// Another CPU is in the middle of an allocation or a free of this memory: try again.
pub const HOTMEM_EAGAIN: i32 = -11;
/// There is no such memory, or none for metadata and page tables.
pub const HOTMEM_ENOMEM: i32 = -12;
/// A hook refused.
pub const HOTMEM_EACCES: i32 = -13;
/// A pointer is null that must not be.
pub const HOTMEM_EFAULT: i32 = -14;
/// The memory is in use, or held by another request; or the control path was entered twice.
pub const HOTMEM_EBUSY: i32 = -16;
/// The memory is announced, present or online already, or another part of it is.
pub const HOTMEM_EEXIST: i32 = -17;
/// An argument is wrong: a size, an alignment, a flag, or a struct that was not set up.
pub const HOTMEM_EINVAL: i32 = -22;
/// There is no space for another range of boot memory.
pub const HOTMEM_ENOSPC: i32 = -28;
/// A range wraps, or lies beyond the physical limit or the reach of the kernel's mapping.
pub const HOTMEM_ERANGE: i32 = -34;
/// This can be done only once, and was done before.
pub const HOTMEM_EALREADY: i32 = -114;

/// An error of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Error(pub(crate) i32);

/// Returns the code of a result: 0, or the error's.
pub(crate) fn code(result: Result<(), Error>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(Error(code)) => code,
    }
}

impl From<AddrError> for Error {
    fn from(error: AddrError) -> Error {
        Error(match error {
            AddrError::BeyondPhysicalLimit { .. } | AddrError::Backwards { .. } => HOTMEM_ERANGE,
            AddrError::Unaligned { .. } => HOTMEM_EINVAL,
        })
    }
}

impl From<BootError> for Error {
    fn from(error: BootError) -> Error {
        Error(match error {
            BootError::AlreadyStarted => HOTMEM_EALREADY,
            BootError::BeyondPhysicalLimit(_) | BootError::Unreachable(_) => HOTMEM_ERANGE,
            BootError::NoMemory | BootError::NoMetadata(_) => HOTMEM_ENOMEM,
            BootError::TooManyNodes(_) => HOTMEM_ENOSPC,
        })
    }
}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Error {
        Error(match error {
            AllocError::OutOfMemory => HOTMEM_ENOMEM,
            AllocError::Busy => HOTMEM_EAGAIN,
            AllocError::NotFree(_) => HOTMEM_EBUSY,
            AllocError::Bad(_) => HOTMEM_EINVAL,
        })
    }
}

impl From<AnnounceError> for Error {
    fn from(error: AnnounceError) -> Error {
        match error {
            AnnounceError::Range(error) => error.into(),
            AnnounceError::NoMetadata(_) => Error(HOTMEM_ENOMEM),
        }
    }
}

impl From<AddError> for Error {
    fn from(error: AddError) -> Error {
        match error {
            AddError::Range(error) => error.into(),
            AddError::TooManyNodes(_) => Error(HOTMEM_ENOSPC),
            AddError::NoMetadata(_) | AddError::NoTables { .. } => Error(HOTMEM_ENOMEM),
        }
    }
}

impl From<ReporterError> for Error {
    fn from(error: ReporterError) -> Error {
        Error(match error {
            ReporterError::HasReporter => HOTMEM_EALREADY,
            ReporterError::ContentsDiffer { .. } => HOTMEM_EINVAL,
        })
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Error {
        use RangeErrorKind as Kind;
        Error(match error.kind {
            Kind::Empty | Kind::Unaligned | Kind::OtherNode => HOTMEM_EINVAL,
            Kind::Unreachable => HOTMEM_ERANGE,
            Kind::NotAnnounced
            | Kind::NotPresent
            | Kind::NotDevice
            | Kind::NotOnline
            | Kind::NotAllocated
            | Kind::NotReserved => HOTMEM_ENOENT,
            Kind::Announced | Kind::Present | Kind::Device | Kind::Online => HOTMEM_EEXIST,
            Kind::Held
            | Kind::Isolated
            | Kind::Reporting
            | Kind::HoldsDescriptors
            | Kind::Metadata
            | Kind::Poisoned
            | Kind::Pinned
            | Kind::Lent => HOTMEM_EBUSY,
            Kind::Busy => HOTMEM_EAGAIN,
            Kind::Foreign => HOTMEM_ENXIO,
            Kind::TooMany(_) => HOTMEM_ENOSPC,
            Kind::Vetoed(_) => HOTMEM_EACCES,
        })
    }
}

/// Returns the code for memory that cannot leave: it is busy as long as it is there.
pub(crate) fn not_gone(error: RangeError) -> Error {
    use RangeErrorKind as Kind;
    match error.kind {
        Kind::Present | Kind::Device | Kind::Online => Error(HOTMEM_EBUSY),
        _ => error.into(),
    }
}
