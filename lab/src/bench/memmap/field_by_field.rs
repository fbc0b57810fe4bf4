//! Implements the baseline. It writes each frame's descriptor field by field, as Linux's
//! `memmap_init_zone_device` does before the series that speeds up the initialisation of
//! `ZONE_DEVICE` memmaps (linux-mm, 2026).

use hotmem::{Pfn, PfnRange, geometry::PAGEBLOCK_FRAMES};
use hotmem_guest::descriptor::{
    HEAD, Owner, Page, RESERVED, SECTION, TAIL, TAIL_MAPPING, UNMAPPED, ZONE_AND_NODE,
};
use hotmem_memmap::{Compound, Kind};
use std::mem::MaybeUninit;

/// Writes the descriptors of the frames of `range` to `slots`. `range` consists of whole compounds.
#[inline(never)]
pub(super) fn describe(
    slots: &mut [MaybeUninit<Page>],
    range: PfnRange,
    kind: Kind,
    compound: Compound,
    owner: &Owner,
) {
    if slots.is_empty() {
        return;
    }
    let mut slots = slots.iter_mut();
    for compound_range in range.chunks(compound.frames()) {
        let head = compound_range.start();
        let [mut first, mut second] = [None, None];
        for (nth, slot) in slots.by_ref().take(index(compound.frames())).enumerate() {
            let pfn = head.checked_add(nth as u64).unwrap_or(Pfn::LIMIT);
            let descriptor = write_single(slot, pfn, kind, owner);
            if nth > 0 {
                make_tail(descriptor, owner.descriptor(head));
            }
            match nth {
                0 => first = Some(descriptor),
                1 => second = Some(descriptor),
                _ => {}
            }
        }
        // As in Linux, complete the head after all of its tails.
        if let (Some(first), Some(second)) = (first, second) {
            first.flags |= HEAD;
            second.index = compound.order().into();
        }
    }
}

/// Writes the descriptor of a single frame. Linux keeps some stores separate because another CPU
/// may read between them, so they are separate here too.
#[inline(always)]
fn write_single<'m>(
    slot: &'m mut MaybeUninit<Page>,
    pfn: Pfn,
    kind: Kind,
    owner: &Owner,
) -> &'m mut Page {
    // SAFETY: `slot` may be written, and a `Page` of zeroes is a valid `Page`.
    let page = unsafe {
        slot.as_mut_ptr().write_bytes(0, 1);
        slot.assume_init_mut()
    };
    page.flags = SECTION.set(ZONE_AND_NODE, pfn);
    store(&mut page.refcount, 1);
    store(&mut page.mapcount, UNMAPPED);
    // As Linux does, first make `owner` and `owner_data` an empty list, and overwrite them below.
    let address = std::ptr::from_mut(page).addr() as u64;
    store(&mut page.owner, address);
    page.owner_data = address;
    page.flags |= RESERVED;
    page.owner = owner.address;
    page.owner_data = 0;
    if pfn.number().is_multiple_of(PAGEBLOCK_FRAMES as u64) {
        page.read_zone();
    }
    if kind.refcount() == 0 {
        store(&mut page.refcount, 0);
    }
    page
}

/// Makes the descriptor a tail of the compound whose head is described at the address `head`.
#[inline(always)]
fn make_tail(page: &mut Page, head: u64) {
    page.mapping = TAIL_MAPPING;
    store(&mut page.owner, head | TAIL);
    page.private = 0;
    store(&mut page.refcount, 0);
}

/// Stores a value such that the compiler neither merges nor omits the store.
#[inline(always)]
fn store<T>(field: &mut T, value: T) {
    // SAFETY: the pointer comes from a `&mut T`, so it is valid for writes.
    unsafe { std::ptr::from_mut(field).write_volatile(value) };
}

#[inline(always)]
fn index(frames: u64) -> usize {
    usize::try_from(frames).unwrap_or(usize::MAX)
}
