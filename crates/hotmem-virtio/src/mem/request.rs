//! Encodes requests, of 24 bytes, and decodes responses, of 10 bytes, both little-endian (5.15.6).

use core::fmt;
use hotmem::PfnRange;

/// A request for the queue. The device reads its 24 bytes, and writes [`Response::SIZE`] bytes as
/// the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    kind: RequestKind,
    range: PfnRange,
    blocks: u16,
}

/// The type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RequestKind {
    /// Plug blocks that are all unplugged (`VIRTIO_MEM_REQ_PLUG`).
    Plug = 0,
    /// Unplug blocks that are all plugged (`VIRTIO_MEM_REQ_UNPLUG`).
    Unplug = 1,
    /// Unplug every block of the device (`VIRTIO_MEM_REQ_UNPLUG_ALL`).
    UnplugAll = 2,
    /// Report whether blocks are plugged (`VIRTIO_MEM_REQ_STATE`).
    State = 3,
}

/// The device's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Acknowledged. `state` is valid after [`RequestKind::State`] only.
    Ack {
        /// The encoded state: see [`BlockState::from_wire`].
        state: u16,
    },
    /// Refused: the blocks must not be plugged now.
    Nack,
    /// Refused: the device is busy.
    Busy,
    /// The request is invalid, or the device failed to carry it out.
    Error,
}

/// Whether blocks are plugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// All blocks are plugged.
    Plugged,
    /// No block is plugged.
    Unplugged,
    /// Some blocks are plugged.
    Mixed,
}

/// The reason why an answer is not a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseError {
    /// The device used fewer bytes than the size of a response.
    Short {
        /// The number of bytes used.
        used: usize,
    },
    /// `type` has an unknown value.
    UnknownType(u16),
    /// `state` has an unknown value.
    UnknownState(u16),
}

impl Request {
    /// The encoded size of a request in bytes.
    pub const SIZE: usize = 24;

    /// Makes a request for a range of whole blocks. Returns `None` if the number of blocks is zero
    /// or exceeds 65 535, or if the range is not aligned to blocks.
    pub(super) fn new(kind: RequestKind, range: PfnRange, block_frames: u64) -> Option<Request> {
        let blocks = u16::try_from(range.frames().checked_div(block_frames)?).ok()?;
        (blocks != 0 && range.is_aligned(block_frames)).then_some(Request { kind, range, blocks })
    }

    /// Makes the request to unplug all blocks of a device with this region.
    pub(super) fn unplug_all(region: PfnRange) -> Request {
        Request { kind: RequestKind::UnplugAll, range: region, blocks: 0 }
    }

    /// Returns the type of the request.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// Returns the range of blocks, or the device's region for [`RequestKind::UnplugAll`].
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// Encodes the request.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..2].copy_from_slice(&(self.kind as u16).to_le_bytes());
        // UNPLUG_ALL names no blocks.
        if self.kind != RequestKind::UnplugAll {
            bytes[8..16].copy_from_slice(&self.range.start().phys_addr().to_le_bytes());
            bytes[16..18].copy_from_slice(&self.blocks.to_le_bytes());
        }
        bytes
    }
}

impl Response {
    /// The encoded size of a response in bytes.
    pub const SIZE: usize = 10;

    /// Decodes the bytes that the device used.
    ///
    /// # Errors
    /// `bytes` is shorter than a response, or the specification does not define the value of
    /// `type`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Response, ResponseError> {
        let Some(bytes) = bytes.first_chunk::<{ Self::SIZE }>() else {
            return Err(ResponseError::Short { used: bytes.len() });
        };
        match u16::from_le_bytes([bytes[0], bytes[1]]) {
            0 => Ok(Response::Ack { state: u16::from_le_bytes([bytes[8], bytes[9]]) }),
            1 => Ok(Response::Nack),
            2 => Ok(Response::Busy),
            3 => Ok(Response::Error),
            unknown => Err(ResponseError::UnknownType(unknown)),
        }
    }
}

impl BlockState {
    /// Decodes the state in the answer to a [`RequestKind::State`] request.
    ///
    /// # Errors
    /// The specification does not define the value.
    pub fn from_wire(state: u16) -> Result<BlockState, ResponseError> {
        match state {
            0 => Ok(BlockState::Plugged),
            1 => Ok(BlockState::Unplugged),
            2 => Ok(BlockState::Mixed),
            unknown => Err(ResponseError::UnknownState(unknown)),
        }
    }
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ResponseError::Short { used } => {
                write!(
                    f,
                    "the used length {used} is less than the size of a response, {}",
                    Response::SIZE
                )
            }
            ResponseError::UnknownType(value) => write!(f, "the response type {value} is unknown"),
            ResponseError::UnknownState(value) => write!(f, "the block state {value} is unknown"),
        }
    }
}

impl core::error::Error for ResponseError {}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Bytes;

    fn range(start: u64, len: Bytes) -> PfnRange {
        PfnRange::from_bytes(start, len).unwrap()
    }

    #[test]
    fn a_request_is_encoded_as_specified() {
        let request =
            Request::new(RequestKind::Unplug, range(0x1_4000_0000, Bytes::mib(6)), 512).unwrap();
        let mut expected = [0; 24];
        expected[0] = 1;
        expected[8..16].copy_from_slice(&[0, 0, 0, 0x40, 1, 0, 0, 0]);
        expected[16] = 3;
        assert_eq!(request.to_bytes(), expected);
    }

    #[test]
    fn unplug_all_names_no_blocks() {
        let mut expected = [0; 24];
        expected[0] = 2;
        let request = Request::unplug_all(range(0x1_4000_0000, Bytes::mib(6)));
        assert_eq!(request.to_bytes(), expected);
    }

    #[test]
    fn a_request_names_one_to_65535_whole_blocks() {
        let whole = range(0, Bytes(65_535 << 21));
        let request = Request::new(RequestKind::Plug, whole, 512).unwrap();
        assert_eq!(request.to_bytes()[16..18], [0xff, 0xff]);
        for wrong in [
            range(0, Bytes(65_536 << 21)),
            range(0, Bytes::ZERO),
            range(0x1000, Bytes::mib(2)),
            range(0, Bytes(2052 << 10)),
        ] {
            assert_eq!(Request::new(RequestKind::State, wrong, 512), None);
        }
    }

    #[test]
    fn responses_are_decoded_and_invalid_ones_refused() {
        let wire = |kind: u16, state: u16| {
            let mut bytes = [0; 10];
            bytes[..2].copy_from_slice(&kind.to_le_bytes());
            bytes[8..].copy_from_slice(&state.to_le_bytes());
            bytes
        };
        assert_eq!(Response::from_bytes(&wire(0, 2)), Ok(Response::Ack { state: 2 }));
        assert_eq!(Response::from_bytes(&wire(1, 0)), Ok(Response::Nack));
        assert_eq!(Response::from_bytes(&wire(2, 0)), Ok(Response::Busy));
        assert_eq!(Response::from_bytes(&wire(3, 0)), Ok(Response::Error));
        assert_eq!(Response::from_bytes(&wire(4, 0)), Err(ResponseError::UnknownType(4)));
        let short = &wire(0, 0)[..9];
        assert_eq!(Response::from_bytes(short), Err(ResponseError::Short { used: 9 }));
        assert_eq!(BlockState::from_wire(1), Ok(BlockState::Unplugged));
        assert_eq!(BlockState::from_wire(3), Err(ResponseError::UnknownState(3)));
    }
}
