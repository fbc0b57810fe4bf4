//! The error of building a hosted machine.

use hotmem::Bytes;

/// The reason why a hosted machine could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostedError {
    /// The size is not a multiple of a pageblock.
    #[error("{0} is not whole pageblocks of 2 MiB")]
    Unaligned(Bytes),
    /// The memory would end beyond the largest physical address.
    #[error("{0} of boot memory and {1} to plug have more bytes than there are physical addresses")]
    TooLarge(Bytes, Bytes),
    /// The host refused to reserve the address space.
    #[error("the host refuses to reserve {0} of addresses: {1}")]
    NotReserved(Bytes, rustix::io::Errno),
}
