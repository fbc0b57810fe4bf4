//! Errors of making a hosted machine.

use hotmem::Bytes;

/// The reason why a hosted machine could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostedError {
    /// The size is not a multiple of a pageblock.
    #[error("{0} is not whole pageblocks of 2 MiB")]
    Unaligned(Bytes),
    /// Physical addresses or the addresses of this process do not suffice for the memory.
    #[error("{0} of boot memory and room for {1} are more than can be addressed")]
    TooLarge(Bytes, Bytes),
    /// The host refused to reserve the address space.
    #[error("the host does not reserve {0} of addresses: {1}")]
    NotReserved(Bytes, rustix::io::Errno),
}
