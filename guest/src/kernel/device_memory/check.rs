//! Checks bound memory: the descriptors, the frames that hold the descriptors, and the device's
//! data.

use super::BoundMemory;
use crate::arch::LAYOUT;
use crate::kernel::memory::{AddressSpace, FRAME_WORDS, RAM_OWNER};
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{Bytes, Pfn, PfnRange};
use hotmem_directmap::Access;
use hotmem_guest::descriptor::{HEAD, Page};
use hotmem_guest::pattern::{self, Mismatch, mix_bits};
use hotmem_guest::to_usize;

/// The maximal size of a device whose descriptors are all checked, in frames: 1 GiB.
const MAX_FULL_CHECK: u64 = 1 << 18;
/// The number of frames of data that are written, spread over the device. The number is small,
/// because each frame may cost the host a huge page.
const DATA_FRAMES: u64 = 256;

/// An error in bound memory.
pub(in crate::kernel) enum CheckError {
    /// A word of a descriptor is wrong.
    Descriptor { pfn: Pfn, offset: usize, found: u64, expected: u64 },
    /// The descriptor of a frame does not lead to the head of its compound.
    Head(Pfn),
    /// A page of descriptors maps the wrong frame.
    Backing(u64),
    /// The device's data have changed.
    Data(Mismatch),
}

/// Checks all descriptors if `all` is set and the device is small, and a sample of them otherwise.
/// Returns the number of checked descriptors.
pub(in crate::kernel) fn descriptors(bound: &BoundMemory, all: bool) -> Result<u64, CheckError> {
    let all = all && bound.data.frames() <= MAX_FULL_CHECK;
    let mut checked = 0;
    for block in bound.data.chunks(PAGEBLOCK_FRAMES as u64) {
        let first = block.start().number();
        let sample = [0, 1, 63, 64, 511, mix_bits(first) % PAGEBLOCK_FRAMES as u64];
        let (range, sample) = if all { (0..block.frames(), &[][..]) } else { (0..0, &sample[..]) };
        for offset in range.chain(sample.iter().copied()) {
            if let Some(pfn) = Pfn::new(first + offset) {
                check_descriptor(bound, pfn)?;
                checked += 1;
            }
        }
        WATCHDOG.progress();
    }
    Ok(checked)
}

fn check_descriptor(bound: &BoundMemory, pfn: Pfn) -> Result<(), CheckError> {
    let expected = bound.owner.page(pfn, bound.parameters.kind, &bound.layout);
    let found = read_descriptor(RAM_OWNER.descriptor(pfn));
    for (n, (found, expected)) in found.words().into_iter().zip(expected.words()).enumerate() {
        if found != expected {
            return Err(CheckError::Descriptor { pfn, offset: 8 * n, found, expected });
        }
    }
    // The head's frame follows from the address of its descriptor.
    let head = pfn.align_down(bound.layout.compound().frames());
    let address = found.head_address(RAM_OWNER.descriptor(pfn), &bound.layout);
    let is_head = head == pfn || read_descriptor(address).flags & HEAD != 0;
    if address == RAM_OWNER.descriptor(head) && is_head {
        Ok(())
    } else {
        Err(CheckError::Head(pfn))
    }
}

/// Reads a descriptor of bound memory.
fn read_descriptor(address: u64) -> Page {
    let page = core::ptr::with_exposed_provenance::<Page>(to_usize(address));
    // SAFETY: the caller owns the bound memory, so its descriptors are mapped and nothing writes to
    // them. Volatile, because several addresses may map the same frame.
    unsafe { page.read_volatile() }
}

/// Checks the frames that hold the descriptors. Returns the total size of these frames; the frame
/// of the shared tails counts once.
pub(in crate::kernel) fn backing(
    bound: &BoundMemory,
    space: &mut AddressSpace,
) -> Result<Bytes, CheckError> {
    let mut writable_frames = 0;
    for page in LAYOUT.descriptors.pages_of(bound.data) {
        match (space.descriptor_map_mut().frame(page), bound.tails) {
            (Some((_, Access::Write)), _) => writable_frames += 1,
            (Some((frame, Access::Read)), Some(tails)) if frame == tails => {}
            _ => return Err(CheckError::Backing(page)),
        }
    }
    WATCHDOG.progress();
    Ok(Bytes((writable_frames + u64::from(bound.tails.is_some())) * FRAME_SIZE))
}

/// Writes patterns to some of the device's data.
pub(in crate::kernel) fn write_data(bound: &BoundMemory, seed: u64) {
    for frame in data_frames(bound.data) {
        // SAFETY: the device's memory is mapped, and nothing else uses it.
        unsafe { pattern::write(FRAME_WORDS, frame, seed) };
    }
    WATCHDOG.progress();
}

/// Checks the patterns that [`write_data`] has written. Returns the number of frames with patterns.
pub(in crate::kernel) fn data(bound: &BoundMemory, seed: u64) -> Result<u64, CheckError> {
    let mut found = 0;
    for frame in data_frames(bound.data) {
        // SAFETY: the device's memory is mapped, and nothing else uses it.
        unsafe { pattern::check(FRAME_WORDS, frame, seed) }.map_err(CheckError::Data)?;
        found += 1;
    }
    WATCHDOG.progress();
    Ok(found)
}

/// Returns the first and the last frame of `data`, and up to [`DATA_FRAMES`] frames between them.
fn data_frames(data: PfnRange) -> impl Iterator<Item = Pfn> {
    let (first, last) = (data.start().number(), data.end().number().saturating_sub(1));
    let step = data.frames().div_ceil(DATA_FRAMES).max(1);
    let between = (1..DATA_FRAMES).map(move |n| first + n * step + mix_bits(n) % step);
    let between = between.filter(move |&frame| frame < last);
    [first].into_iter().chain(between).chain([last]).filter_map(Pfn::new)
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Descriptor { pfn, offset, found, expected } => write!(
                f,
                "the descriptor of frame {pfn} holds {found:#x} at {offset:#x}, not {expected:#x}"
            ),
            CheckError::Head(pfn) => write!(f, "frame {pfn} does not lead to its head"),
            CheckError::Backing(page) => write!(f, "page {page} of the map has the wrong frame"),
            CheckError::Data(mismatch) => write!(f, "data: {mismatch}"),
        }
    }
}
