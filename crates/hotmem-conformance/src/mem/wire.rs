//! Names the numbers of the protocol, encodes requests of 24 bytes, and decodes responses of 10 bytes
//! (5.15.6).

use crate::failure::Failure;

/// The type of a memory device (5.15.1).
pub(super) const DEVICE_ID: u32 = 24;
/// The feature `VIRTIO_MEM_F_ACPI_PXM` (5.15.3).
pub(super) const ACPI_PXM: u64 = 1 << 0;
/// The feature `VIRTIO_MEM_F_UNPLUGGED_INACCESSIBLE` (5.15.3).
pub(super) const UNPLUGGED_INACCESSIBLE: u64 = 1 << 1;
/// The features that the suite accepts.
pub(super) const FEATURES: u64 = ACPI_PXM | UNPLUGGED_INACCESSIBLE;

pub(super) const PLUG: u16 = 0;
pub(super) const UNPLUG: u16 = 1;
pub(super) const UNPLUG_ALL: u16 = 2;
pub(super) const STATE: u16 = 3;

pub(super) const ACK: u16 = 0;
pub(super) const NACK: u16 = 1;
pub(super) const BUSY: u16 = 2;
pub(super) const ERROR: u16 = 3;

pub(super) const PLUGGED: u16 = 0;
pub(super) const UNPLUGGED: u16 = 1;
pub(super) const MIXED: u16 = 2;

/// The size of a request in bytes.
pub(super) const REQUEST_BYTES: usize = 24;
/// The size of a response in bytes.
pub(super) const RESPONSE_BYTES: usize = 10;

/// A request, which may be invalid.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) kind: u16,
    pub(super) addr: u64,
    pub(super) blocks: u16,
    /// The value of all bytes that have no meaning.
    pub(super) padding: u8,
}

/// A response.
#[derive(Clone, Copy, Default)]
pub(super) struct Response {
    pub(super) kind: u16,
    pub(super) state: u16,
    /// The number of bytes that the device reports as written.
    pub(super) used_len: u32,
}

impl Request {
    pub(super) fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [self.padding; REQUEST_BYTES];
        bytes[0..2].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.blocks.to_le_bytes());
        bytes
    }
}

impl Response {
    pub(super) fn from_bytes(bytes: [u8; RESPONSE_BYTES], used_len: u32) -> Response {
        let kind = u16::from_le_bytes([bytes[0], bytes[1]]);
        let state = u16::from_le_bytes([bytes[8], bytes[9]]);
        Response { kind, state, used_len }
    }

    /// Fails unless the response to `request` is of the type `expected`.
    pub(super) fn check_kind(self, request: Request, expected: u16) -> Result<(), Failure> {
        let (found, Request { kind, addr, blocks, .. }) = (self.kind, request);
        if found == expected {
            return Ok(());
        }
        Err(Failure::Response { request: kind, addr, blocks, expected, found })
    }

    /// Fails unless the STATE request `request` is acknowledged with the state `expected`.
    pub(super) fn check_state(self, request: Request, expected: u16) -> Result<(), Failure> {
        self.check_kind(request, ACK)?;
        let (found, Request { addr, blocks, .. }) = (self.state, request);
        if found == expected {
            Ok(())
        } else {
            Err(Failure::State { addr, blocks, expected, found })
        }
    }
}
