//! Requests and responses as bytes on the queue (5.15.6): little-endian, 24 and 10 bytes.

use core::fmt;
use hotmem::PfnRange;

/// A request for the queue: 24 bytes that the device reads, answered by
/// [`Response::SIZE`] bytes that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    kind: RequestKind,
    range: PfnRange,
    blocks: u16,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RequestKind {
    /// Plug blocks that are all unplugged (`VIRTIO_MEM_REQ_PLUG`).
    Plug = 0,
    /// Unplug blocks that are all plugged (`VIRTIO_MEM_REQ_UNPLUG`).
    Unplug = 1,
    /// Unplug every block of the device (`VIRTIO_MEM_REQ_UNPLUG_ALL`).
    UnplugAll = 2,
    /// Say whether blocks are plugged (`VIRTIO_MEM_REQ_STATE`).
    State = 3,
}

/// The device's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Done. `state` means something after [`RequestKind::State`] only.
    Ack {
        /// As the device wrote it: see [`BlockState::from_wire`].
        state: u16,
    },
    /// Refused: the blocks may not be plugged now.
    Nack,
    /// Refused: the device has no time.
    Busy,
    /// The request is wrong, or the device failed at it.
    Error,
}

/// Whether blocks are plugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// All are.
    Plugged,
    /// None is.
    Unplugged,
    /// Some are.
    Mixed,
}

/// An answer that is not a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// The device used fewer bytes than a response has.
    Short {
        /// How many.
        used: usize,
    },
    /// `type` holds none of the known answers.
    UnknownType(u16),
    /// `state` holds none of the known states.
    UnknownState(u16),
}

impl Request {
    /// Bytes of a request on the wire.
    pub const SIZE: usize = 24;

    /// Returns the request for a range of whole blocks, or `None` if its count does not fit, is
    /// zero, or the range is not a multiple of the block.
    pub(super) fn new(kind: RequestKind, range: PfnRange, block_frames: u64) -> Option<Request> {
        let blocks = u16::try_from(range.frames() / block_frames).ok()?;
        (blocks != 0 && range.is_aligned(block_frames)).then_some(Request { kind, range, blocks })
    }

    /// Returns the request to unplug all of a device, whose region this is.
    pub(super) fn unplug_all(region: PfnRange) -> Request {
        Request { kind: RequestKind::UnplugAll, range: region, blocks: 0 }
    }

    /// Returns what it asks for.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// Returns the blocks it is about; the device's region for [`RequestKind::UnplugAll`].
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// As it travels.
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
    /// Bytes of a response on the wire.
    pub const SIZE: usize = 10;

    /// Reads the bytes that the device used.
    ///
    /// # Errors
    /// Fewer bytes than a response has, or a `type` that the specification does not know.
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
    /// Returns the state in an acknowledged [`RequestKind::State`] request.
    ///
    /// # Errors
    /// A value that the specification does not know.
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
                write!(f, "used length {used} is less than a response's {}", Response::SIZE)
            }
            ResponseError::UnknownType(value) => write!(f, "unknown response type {value}"),
            ResponseError::UnknownState(value) => write!(f, "unknown block state {value}"),
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
    fn a_request_travels_as_the_specification_says() {
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
            range(0, Bytes::kib(2052)),
        ] {
            assert_eq!(Request::new(RequestKind::State, wrong, 512), None);
        }
    }

    #[test]
    fn responses_are_read_and_bad_ones_named() {
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
