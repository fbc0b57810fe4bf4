//! The codes that functions return.
//!
//! 0 is success, and a negative number is an error. The numbers are those of Linux.

use ::hotmem::report::ReporterError;
use ::hotmem::{
    AddError, AddrError, AllocError, AnnounceError, BootError, RangeError, RangeErrorKind,
};

/// The memory was not announced, is not present, or is not allocated.
pub const HOTMEM_ENOENT: i32 = -2;
/// The driver has stopped, because its device cannot be trusted.
pub const HOTMEM_EIO: i32 = -5;
/// The memory is not online memory of this instance.
pub const HOTMEM_ENXIO: i32 = -6;
/// Another CPU is in the middle of an allocation or a free of this memory, or memory of a device that is
/// gone is in use. A later try may succeed.
pub const HOTMEM_EAGAIN: i32 = -11;
/// No suitable memory is free, or no memory is free for metadata or page tables.
pub const HOTMEM_ENOMEM: i32 = -12;
/// A hook refused the request.
pub const HOTMEM_EACCES: i32 = -13;
/// A required pointer is NULL.
pub const HOTMEM_EFAULT: i32 = -14;
/// The memory is in use or is isolated by another request, or another call of the control path is in
/// progress.
pub const HOTMEM_EBUSY: i32 = -16;
/// Some or all of the memory is announced, present or online already.
pub const HOTMEM_EEXIST: i32 = -17;
/// The memory shares a section (128 MiB) with memory of another NUMA node.
pub const HOTMEM_EXDEV: i32 = -18;
/// A size, an alignment or a flag is invalid, or a struct was not initialised.
pub const HOTMEM_EINVAL: i32 = -22;
/// A table of the engine has no space for another entry, such as a boot range or a NUMA node.
pub const HOTMEM_ENOSPC: i32 = -28;
/// A range wraps, or lies beyond the highest physical address or beyond `hotmem_config.mappable_end`.
pub const HOTMEM_ERANGE: i32 = -34;
/// The function can succeed only one time, and has succeeded before.
pub const HOTMEM_EALREADY: i32 = -114;

/// An error of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Error(pub(crate) i32);

/// Returns 0 if the result is `Ok`, and the code of the error otherwise.
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
            BootError::NoRam | BootError::NoMemory | BootError::NoMetadata(_) => HOTMEM_ENOMEM,
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
            Kind::Empty | Kind::Unaligned => HOTMEM_EINVAL,
            Kind::OtherNode => HOTMEM_EXDEV,
            Kind::Unreachable => HOTMEM_ERANGE,
            Kind::NotAnnounced
            | Kind::NotPresent
            | Kind::NotDevice
            | Kind::NotOnline
            | Kind::NotAllocated
            | Kind::NotLent => HOTMEM_ENOENT,
            Kind::Announced | Kind::Present | Kind::Device | Kind::Online => HOTMEM_EEXIST,
            Kind::Held
            | Kind::Isolated
            | Kind::Reporting
            | Kind::HoldsDescriptors
            | Kind::BootMemory
            | Kind::Metadata
            | Kind::Poisoned
            | Kind::Pinned
            | Kind::Lent => HOTMEM_EBUSY,
            Kind::Busy => HOTMEM_EAGAIN,
            Kind::Foreign => HOTMEM_ENXIO,
            Kind::TooMany(_) => HOTMEM_ENOSPC,
            Kind::NoTables { .. } => HOTMEM_ENOMEM,
            Kind::NoMemory => HOTMEM_ENOMEM,
            Kind::Vetoed(_) => HOTMEM_EACCES,
        })
    }
}

/// Returns the code for a range that cannot be withdrawn. Present memory makes the range busy.
pub(crate) fn withdraw_error(error: RangeError) -> Error {
    use RangeErrorKind as Kind;
    match error.kind {
        Kind::Present | Kind::Device | Kind::Online => Error(HOTMEM_EBUSY),
        _ => error.into(),
    }
}
