//! The codes that calls return.
//!
//! 0 is success, and a negative number is an error. The numbers are those of Linux. A failed call
//! has changed nothing, unless its documentation says otherwise.

use ::hotmem::report::ReporterError;
use ::hotmem::{
    AddError, AddrError, AllocError, AnnounceError, BootError, FreeError, FreeErrorKind,
    OnlineError, RemoveError, WithdrawError,
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

impl From<FreeError> for Error {
    fn from(error: FreeError) -> Error {
        Error(match error.kind {
            FreeErrorKind::Empty => HOTMEM_EINVAL,
            FreeErrorKind::Foreign => HOTMEM_ENXIO,
            FreeErrorKind::NotAllocated | FreeErrorKind::NotReserved => HOTMEM_ENOENT,
        })
    }
}

impl From<AnnounceError> for Error {
    fn from(error: AnnounceError) -> Error {
        Error(match error {
            AnnounceError::Empty | AnnounceError::Unaligned(_) => HOTMEM_EINVAL,
            AnnounceError::Unreachable(_) => HOTMEM_ERANGE,
            AnnounceError::Overlaps(_) => HOTMEM_EEXIST,
            AnnounceError::NoMetadata(_) => HOTMEM_ENOMEM,
        })
    }
}

impl From<AddError> for Error {
    fn from(error: AddError) -> Error {
        Error(match error {
            AddError::Unaligned(_) | AddError::OtherNode(_) => HOTMEM_EINVAL,
            AddError::NotAnnounced(_) => HOTMEM_ENOENT,
            AddError::Present(_) | AddError::Device(_) => HOTMEM_EEXIST,
            AddError::Held(_) => HOTMEM_EBUSY,
            AddError::TooManyNodes(_) => HOTMEM_ENOSPC,
            AddError::Vetoed { .. } => HOTMEM_EACCES,
            AddError::NoMetadata(_) | AddError::NoTables { .. } => HOTMEM_ENOMEM,
        })
    }
}

impl From<OnlineError> for Error {
    fn from(error: OnlineError) -> Error {
        Error(match error {
            OnlineError::Unaligned(_) => HOTMEM_EINVAL,
            OnlineError::NotPresent(_) => HOTMEM_ENOENT,
            OnlineError::AlreadyOnline(_) => HOTMEM_EEXIST,
            OnlineError::Held(_) | OnlineError::Poisoned(_) => HOTMEM_EBUSY,
            OnlineError::Vetoed { .. } => HOTMEM_EACCES,
        })
    }
}

impl From<WithdrawError> for Error {
    fn from(error: WithdrawError) -> Error {
        Error(match error {
            WithdrawError::Unknown => HOTMEM_ENOENT,
            WithdrawError::Present(_) | WithdrawError::Device(_) | WithdrawError::Held(_) => {
                HOTMEM_EBUSY
            }
        })
    }
}

impl From<ReporterError> for Error {
    fn from(error: ReporterError) -> Error {
        Error(match error {
            ReporterError::AlreadyThere => HOTMEM_EALREADY,
            ReporterError::WouldSpoil { .. } => HOTMEM_EINVAL,
        })
    }
}

impl From<RemoveError> for Error {
    fn from(error: RemoveError) -> Error {
        Error(match error {
            RemoveError::Unaligned(_) => HOTMEM_EINVAL,
            RemoveError::NotPresent(_) => HOTMEM_ENOENT,
            RemoveError::Online(_) | RemoveError::Held(_) | RemoveError::Describes(_) => {
                HOTMEM_EBUSY
            }
        })
    }
}
