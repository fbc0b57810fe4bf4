//! The bitmap by which a device says which frames of an inflate request it has initialised.
//!
//! The specification has only a draft of it, for `VIRTIO_BALLOON_F_DEVICE_INIT_ON_INFLATE`. Where
//! the draft is silent, this file decides:
//!
//! - Bit N % 8 of byte N / 8 is that of the Nth frame number of the request. The draft numbers the
//!   bits, and not their places in bytes. This is the order of Linux's and QEMU's patches.
//! - Bytes beyond the used length say nothing, because a driver must not rely on them (2.7.8.2).
//! - Bits beyond the last frame number say nothing.
//! - An answer whose used length exceeds the bitmap is invalid, and says nothing.

use super::frame_list::FrameNumbers;

/// What a device has written to the bitmap of an inflate request. Nothing of it is trusted before
/// [`Driver::step`](super::Driver::step) has checked it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InflateBitmap([u8; Self::MAX_BYTES]);

impl InflateBitmap {
    /// The maximal size in bytes of a bitmap.
    pub const MAX_BYTES: usize = FrameNumbers::MAX_LEN.div_ceil(8);

    /// Makes a bitmap of the bytes of its buffer. Bytes beyond the [size of the
    /// bitmap](FrameNumbers::bitmap_bytes) may have any value.
    #[must_use]
    pub const fn new(bytes: [u8; Self::MAX_BYTES]) -> InflateBitmap {
        InflateBitmap(bytes)
    }

    /// Returns what the device says of a request with this number of frames, if it has used
    /// `written` bytes: each bit for one frame, and 0 for each frame of which it says nothing.
    /// Returns `None` if the answer is invalid.
    pub(super) fn checked(&self, written: u32, frames: usize) -> Option<[u8; Self::MAX_BYTES]> {
        let written = usize::try_from(written).ok().filter(|&bytes| bytes <= frames.div_ceil(8))?;
        let mut checked = [0; Self::MAX_BYTES];
        for (number, (to, &from)) in checked.iter_mut().zip(&self.0).take(written).enumerate() {
            let bits = frames.saturating_sub(8 * number).min(8);
            // A byte has a frame, so `bits` is not 0.
            *to = from & (u8::MAX >> (8 - bits.max(1)));
        }
        Some(checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bits_of_frames_within_the_used_length_count() {
        let all = InflateBitmap::new([u8::MAX; InflateBitmap::MAX_BYTES]);
        for frames in 1..=FrameNumbers::MAX_LEN {
            let bytes = frames.div_ceil(8);
            for written in 0..=bytes {
                let checked = all.checked(u32::try_from(written).unwrap(), frames).unwrap();
                let bits: u32 = checked.iter().map(|byte| byte.count_ones()).sum();
                assert_eq!(bits as usize, frames.min(8 * written), "{written} of {frames}");
                assert!(checked[written..].iter().all(|&byte| byte == 0));
            }
            for written in [bytes + 1, u32::MAX as usize] {
                assert_eq!(all.checked(u32::try_from(written).unwrap(), frames), None);
            }
        }
    }

    #[test]
    fn bits_keep_their_places() {
        let mut bytes = [0; InflateBitmap::MAX_BYTES];
        (bytes[0], bytes[1]) = (0b1010_0001, 0b0000_0110);
        let checked = InflateBitmap::new(bytes).checked(2, 10).unwrap();
        assert_eq!(checked[..2], [0b1010_0001, 0b0000_0010]);
    }
}
