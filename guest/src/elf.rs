//! Reads kernel images: 64-bit ELF files with a PVH entry.

use core::fmt;

/// An image whose headers lie within the file. The addresses of its segments are not checked.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    bytes: &'a [u8],
    headers: usize,
    count: usize,
    entry: u32,
}

/// A segment of an image that must be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The offset in the image.
    pub offset: u64,
    /// The number of bytes in the image.
    pub file_len: u64,
    /// The physical address to load it at.
    pub phys_addr: u64,
    /// The number of bytes in memory. Those that are not in the image are zeros.
    pub len: u64,
}

/// The reason why an image was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageError {
    /// The image is not a 64-bit ELF file for x86-64.
    NotElf,
    /// A header, or the part that the header describes, lies outside the image.
    OutOfBounds,
    /// The image has no note with a PVH entry.
    NoEntry,
}

const MACHINE_X86_64: u16 = 62;
const HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// `XEN_ELFNOTE_PHYS32_ENTRY`, a note of the owner "Xen".
const PHYS32_ENTRY: u32 = 18;

impl<'a> Image<'a> {
    /// Reads an image's headers.
    ///
    /// # Errors
    /// [`ImageError`] if the file is not a kernel image, or is damaged.
    pub fn read(bytes: &'a [u8]) -> Result<Self, ImageError> {
        // The last two bytes are the class, 64-bit, and the byte order, little-endian.
        if bytes.get(..6) != Some(b"\x7fELF\x02\x01") || u16_at(bytes, 18) != Some(MACHINE_X86_64) {
            return Err(ImageError::NotElf);
        }
        let headers = u64_at(bytes, 32).and_then(|offset| usize::try_from(offset).ok());
        let (size, count) = (u16_at(bytes, 54), u16_at(bytes, 56));
        let (Some(headers), Some(count)) = (headers, count) else {
            return Err(ImageError::OutOfBounds);
        };
        let image = Image { bytes, headers, count: count.into(), entry: 0 };
        let is_whole = (0..image.count).all(|index| image.header(index).is_some());
        if size.map(usize::from) != Some(HEADER_BYTES) || !is_whole {
            return Err(ImageError::OutOfBounds);
        }
        let entry = image.find_entry()?.ok_or(ImageError::NoEntry)?;
        image.segments().try_for_each(|segment| image.check(segment))?;
        Ok(Image { entry, ..image })
    }

    /// Returns the address of the PVH entry.
    #[must_use]
    pub fn entry(&self) -> u32 {
        self.entry
    }

    /// Returns the segments to load.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.segments_of_kind(PT_LOAD)
    }

    fn segments_of_kind(&self, kind: u32) -> impl Iterator<Item = Segment> + '_ {
        let headers = (0..self.count).filter_map(|index| self.header(index));
        headers.filter(move |header| u32_at(header, 0) == Some(kind)).filter_map(|header| {
            Some(Segment {
                offset: u64_at(header, 8)?,
                phys_addr: u64_at(header, 24)?,
                file_len: u64_at(header, 32)?,
                len: u64_at(header, 40)?,
            })
        })
    }

    fn header(&self, index: usize) -> Option<&'a [u8]> {
        let start = self.headers.checked_add(index * HEADER_BYTES)?;
        self.bytes.get(start..start.checked_add(HEADER_BYTES)?)
    }

    fn check(&self, segment: Segment) -> Result<(), ImageError> {
        let is_within = self.file_bytes(segment).is_some() && segment.file_len <= segment.len;
        let ends = segment.phys_addr.checked_add(segment.len).is_some();
        if is_within && ends { Ok(()) } else { Err(ImageError::OutOfBounds) }
    }

    fn file_bytes(&self, segment: Segment) -> Option<&'a [u8]> {
        let start = usize::try_from(segment.offset).ok()?;
        let end = start.checked_add(usize::try_from(segment.file_len).ok()?)?;
        self.bytes.get(start..end)
    }

    fn find_entry(&self) -> Result<Option<u32>, ImageError> {
        for segment in self.segments_of_kind(PT_NOTE) {
            let mut notes = self.file_bytes(segment).ok_or(ImageError::OutOfBounds)?;
            while !notes.is_empty() {
                let (note, remaining) = Note::split(notes).ok_or(ImageError::OutOfBounds)?;
                if note.owner == b"Xen\0" && note.kind == PHYS32_ENTRY {
                    return u32_at(note.value, 0).ok_or(ImageError::OutOfBounds).map(Some);
                }
                notes = remaining;
            }
        }
        Ok(None)
    }
}

struct Note<'a> {
    owner: &'a [u8],
    kind: u32,
    value: &'a [u8],
}

impl<'a> Note<'a> {
    /// Splits `notes` into the first note and the bytes of the others.
    fn split(notes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let len = |offset| usize::try_from(u32_at(notes, offset)?).ok();
        let (owner_len, value_len, kind) = (len(0)?, len(4)?, u32_at(notes, 8)?);
        let value_at = 12usize.checked_add(owner_len)?.checked_next_multiple_of(4)?;
        let value_end = value_at.checked_add(value_len)?;
        let owner = notes.get(12..12usize.checked_add(owner_len)?)?;
        let value = notes.get(value_at..value_end)?;
        // The last note may lack padding.
        let remaining = notes.get(value_end.checked_next_multiple_of(4)?..).unwrap_or_default();
        Some((Note { owner, kind, value }, remaining))
    }
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ImageError::NotElf => "it is not a 64-bit ELF image for x86-64",
            ImageError::OutOfBounds => {
                "a header, or the part that it describes, lies outside the image"
            }
            ImageError::NoEntry => "it has no PVH entry",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an image with two headers at 0x40, a note at 0x100, and a segment at 0x140. The
    /// segment has 0x20 bytes in the file and 0x40 bytes in memory.
    fn sample() -> Vec<u8> {
        let mut raw = vec![0; 0x160];
        let mut put = |to: usize, bytes: &[u8]| raw[to..to + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(18, &62u16.to_le_bytes());
        put(32, &0x40u64.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &2u16.to_le_bytes());
        for (header, kind, offset, len, zeros) in
            [(0x40, PT_NOTE, 0x100u64, 0x18u64, 0), (0x78, PT_LOAD, 0x140, 0x20, 0x20)]
        {
            put(header, &kind.to_le_bytes());
            put(header + 8, &offset.to_le_bytes());
            put(header + 24, &(0x10_0000 + offset).to_le_bytes());
            put(header + 32, &len.to_le_bytes());
            put(header + 40, &(len + zeros).to_le_bytes());
        }
        put(0x100, &[4, 0, 0, 0, 8, 0, 0, 0, 18, 0, 0, 0]);
        put(0x10c, b"Xen\0");
        put(0x110, &0x10_0123u64.to_le_bytes());
        raw
    }

    #[test]
    fn an_image_is_read_with_its_entry_and_segments() {
        let raw = sample();
        let image = Image::read(&raw).unwrap();
        assert_eq!(image.entry(), 0x10_0123);
        let segment = Segment { offset: 0x140, file_len: 0x20, phys_addr: 0x10_0140, len: 0x40 };
        assert!(image.segments().eq([segment]));
    }

    #[test]
    fn truncated_images_and_other_files_are_refused() {
        for len in 0..sample().len() {
            assert!(Image::read(&sample()[..len]).is_err(), "{len}");
        }
        let error_with_byte = |offset: usize, value: u8| {
            let mut raw = sample();
            raw[offset] = value;
            Image::read(&raw).unwrap_err()
        };
        assert_eq!(error_with_byte(4, 1), ImageError::NotElf);
        assert_eq!(error_with_byte(18, 3), ImageError::NotElf);
        assert_eq!(error_with_byte(39, 0xff), ImageError::OutOfBounds, "headers");
        assert_eq!(
            error_with_byte(0x78 + 32, 0x50),
            ImageError::OutOfBounds,
            "more in the file than in memory"
        );
        assert_eq!(
            error_with_byte(0x78 + 15, 0xff),
            ImageError::OutOfBounds,
            "the place of a segment"
        );
        assert_eq!(error_with_byte(0x103, 0xff), ImageError::OutOfBounds, "the name in a note");
        assert_eq!(error_with_byte(0x108, 17), ImageError::NoEntry);
        assert_eq!(error_with_byte(0x10c, b'x'), ImageError::NoEntry);
    }
}
