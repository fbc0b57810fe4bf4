//! Errors of making a hosted machine.

use hotmem::Bytes;

/// The reason why there is no hosted machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostedError {
    /// A size that is not a multiple of what memory is plugged in.
    #[error("{0} is not whole pageblocks of 2 MiB")]
    Unaligned(Bytes),
    /// More than a physical address, or this process, can name.
    #[error("{0} of boot memory and room for {1} are more than can be addressed")]
    TooLarge(Bytes, Bytes),
    /// The host does not give so much address space.
    #[error("the host does not reserve {0} of addresses: {1}")]
    NotReserved(Bytes, rustix::io::Errno),
}
