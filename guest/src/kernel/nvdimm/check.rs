//! Checks bound memory: its descriptors, the frames that hold them, and the device's data.

use super::Bound;
use crate::kernel::memory::{AddressSpace, FRAME_WORDS};
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{Bytes, Pfn, PfnRange};
use hotmem_directmap::Access;
use hotmem_guest::descriptor::{HEAD, Page, address_of};
use hotmem_guest::layout::DESCRIPTORS;
use hotmem_guest::pattern::{self, Mismatch, mix};
use hotmem_guest::to_usize;

/// The maximal number of frames of a device whose descriptors are all checked: 1 GiB.
const ALL: u64 = 1 << 18;
/// The number of frames of data that are written, spread over the device. Each may cost the host a
/// huge page.
const PLACES: u64 = 256;

/// An error in bound memory.
pub(super) enum Wrong {
    /// A word of a descriptor is wrong.
    Descriptor { pfn: Pfn, offset: usize, found: u64, expected: u64 },
    /// The descriptor of a frame does not lead to the head of its compound.
    Head(Pfn),
    /// A page of descriptors maps the wrong frame.
    Backing(u64),
    /// The device's data have changed.
    Data(Mismatch),
}

/// Checks descriptors: all of them if `all` is set and the device is small. Returns how many it
/// checked.
pub(super) fn descriptors(bound: &Bound, all: bool) -> Result<u64, Wrong> {
    let all = all && bound.data.frames() <= ALL;
    let mut checked = 0;
    for block in bound.data.chunks(PAGEBLOCK_FRAMES as u64) {
        let first = block.start().number();
        let some = [0, 1, 63, 64, 511, mix(first) % PAGEBLOCK_FRAMES as u64];
        let (every, sample) = if all { (block.frames(), &[][..]) } else { (0, &some[..]) };
        for offset in (0..every).chain(sample.iter().copied()) {
            if let Some(pfn) = Pfn::new(first + offset) {
                descriptor(bound, pfn)?;
                checked += 1;
            }
        }
        WATCHDOG.progress();
    }
    Ok(checked)
}

fn descriptor(bound: &Bound, pfn: Pfn) -> Result<(), Wrong> {
    let expected = bound.owner.page(pfn, bound.how.kind, &bound.layout);
    let found = read(address_of(pfn));
    for (n, (found, expected)) in found.words().into_iter().zip(expected.words()).enumerate() {
        if found != expected {
            return Err(Wrong::Descriptor { pfn, offset: 8 * n, found, expected });
        }
    }
    // The head's frame follows from the address of its descriptor.
    let head = pfn.align_down(bound.layout.compound().frames());
    let address = found.head_address(address_of(pfn), &bound.layout);
    let is_head = head == pfn || read(address).flags & HEAD != 0;
    if address == address_of(head) && is_head { Ok(()) } else { Err(Wrong::Head(pfn)) }
}

/// Reads a descriptor of bound memory.
fn read(address: u64) -> Page {
    let page = core::ptr::with_exposed_provenance::<Page>(to_usize(address));
    // SAFETY: the caller owns the bound memory, and nothing writes to its descriptors. Volatile,
    // because several addresses may map the same frame.
    unsafe { page.read_volatile() }
}

/// Checks the frames that hold the descriptors. Returns their size, with one frame for all shared
/// tails.
pub(super) fn backing(bound: &Bound, space: &mut AddressSpace) -> Result<Bytes, Wrong> {
    let mut own = 0;
    for page in DESCRIPTORS.pages_of(bound.data) {
        match (space.descriptor_map_mut().frame(page), bound.tails) {
            (Some((_, Access::Write)), _) => own += 1,
            (Some((frame, Access::Read)), Some(tails)) if frame == tails => {}
            _ => return Err(Wrong::Backing(page)),
        }
    }
    WATCHDOG.progress();
    Ok(Bytes((own + u64::from(bound.tails.is_some())) * FRAME_SIZE))
}

/// Writes patterns to some of the device's data.
pub(super) fn write_data(bound: &Bound, seed: u64) {
    for frame in places(bound.data) {
        // SAFETY: the device's memory is mapped, and nothing else uses it.
        unsafe { pattern::write(FRAME_WORDS, frame, seed) };
    }
    WATCHDOG.progress();
}

/// Checks these patterns. Returns the number of frames.
pub(super) fn data(bound: &Bound, seed: u64) -> Result<u64, Wrong> {
    let mut found = 0;
    for frame in places(bound.data) {
        // SAFETY: as above.
        unsafe { pattern::check(FRAME_WORDS, frame, seed) }.map_err(Wrong::Data)?;
        found += 1;
    }
    WATCHDOG.progress();
    Ok(found)
}

/// Returns the first and the last frame, and some between.
fn places(data: PfnRange) -> impl Iterator<Item = Pfn> {
    let (first, last) = (data.start().number(), data.end().number().saturating_sub(1));
    let step = data.frames().div_ceil(PLACES).max(1);
    let between = (1..PLACES).map(move |n| first + n * step + mix(n) % step);
    let between = between.filter(move |&frame| frame < last);
    [first].into_iter().chain(between).chain([last]).filter_map(Pfn::new)
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Descriptor { pfn, offset, found, expected } => write!(
                f,
                "the descriptor of frame {pfn} holds {found:#x} at {offset:#x}, not {expected:#x}"
            ),
            Wrong::Head(pfn) => write!(f, "frame {pfn} does not lead to its head"),
            Wrong::Backing(page) => write!(f, "page {page} of the map has the wrong frame"),
            Wrong::Data(mismatch) => write!(f, "data: {mismatch}"),
        }
    }
}
