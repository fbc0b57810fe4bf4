//! Tests a memmap in addresses that the test maps, so that one frame has the tails of several
//! compounds.
#![cfg(target_os = "linux")]

use hotmem::{Bytes, PfnRange, geometry::FRAME_SIZE};
use hotmem_memmap::{
    Backing, Compound, Describe, Frame, Kind, Memmap, Role, SectionField, Slots, Stores,
};
use rustix::{
    fs::{MemfdFlags, fstat, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};
use std::{
    os::fd::OwnedFd,
    ptr::{NonNull, null_mut},
    slice,
};

#[repr(C, align(64))]
struct Page {
    flags: u64,
    order: u64,
    refcount: u64,
    unused_words: [u64; 5],
}

const SECTION: SectionField = SectionField::at(38);
const HEAD: u64 = 1;
const TAIL: u64 = 2;

/// A kernel that describes device memory.
struct Device;

impl Describe for Device {
    type Descriptor = Page;
    type Words = [u64; 8];
    // The first tail of a compound has the order.
    const METADATA_TAILS: u64 = 1;

    fn words(&self, frame: &Frame) -> [u64; 8] {
        let (flags, order) = match frame.role {
            Role::Single(pfn) => (SECTION.set(0, pfn), 0),
            Role::Head { pfn, .. } => (SECTION.set(HEAD, pfn), 0),
            Role::Tail { pfn, compound, .. } => (SECTION.set(TAIL, pfn), compound.order()),
            Role::SharedTail { .. } => (TAIL, 0),
        };
        [flags, order.into(), frame.refcount.into(), 0, 0, 0, 0, 0]
    }
}

/// Reserved addresses for a memmap. Pages of a file stand for frames of the machine.
struct MemmapAddresses {
    reserved: *mut core::ffi::c_void,
    bytes: usize,
    /// The file.
    frames: OwnedFd,
}

impl MemmapAddresses {
    fn new(bytes: usize, frames: u64) -> MemmapAddresses {
        let fd = memfd_create("frames", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, frames * FRAME_SIZE).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses changes no existing mapping.
        let reserved = unsafe {
            mmap_anonymous(null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE).unwrap()
        };
        MemmapAddresses { reserved, bytes, frames: fd }
    }

    /// Maps a frame at an address within the reservation.
    fn map(&self, address: usize, frame: u64, access: ProtFlags) {
        let offset = address - self.reserved.addr();
        assert!(offset + 4096 <= self.bytes);
        let page = self.reserved.wrapping_byte_add(offset);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the page is within the reservation, and nothing uses it yet.
        let mapped = unsafe { mmap(page, 4096, access, flags, &self.frames, frame * FRAME_SIZE) };
        assert_eq!(mapped, Ok(page));
    }
}

impl Drop for MemmapAddresses {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and the test uses no address in it after the drop.
        unsafe { munmap(self.reserved, self.bytes).unwrap() };
    }
}

#[test]
fn heads_of_shared_tails_are_found_and_each_compound_needs_one_frame_of_descriptors() {
    let compound = Compound::MIB_2;
    let range = PfnRange::from_bytes(64 << 30, Bytes::mib(64)).unwrap();
    let memmap = Memmap::new(Kind::DeviceDax, compound, &Device).stores(Stores::best());
    let memmap = memmap.sharing_tails().unwrap();
    let layout = memmap.layout();

    // Page 0 of the file has the shared tails. The memmap's address is chosen so that the descriptor
    // of PFN 0 would have the alignment that the layout requires.
    let needed = layout.frames_needed(range);
    assert_eq!(needed, 32);
    let align = usize::try_from(layout.base_alignment().0).unwrap();
    let bytes = size_of::<Page>() * usize::try_from(range.frames()).unwrap();
    let addresses = MemmapAddresses::new(bytes + align, needed + 1);
    let start = addresses.reserved.addr().next_multiple_of(align);
    let base =
        start.wrapping_sub(size_of::<Page>() * usize::try_from(range.start().number()).unwrap());
    assert_eq!(base % align, 0);
    let (mut own_frames, mut shared_address) = (1..=needed, None);
    for page in layout.pages(range) {
        let address = base.wrapping_add(usize::try_from(page.offset.0).unwrap());
        match page.backing {
            Backing::OwnFrame => {
                addresses.map(
                    address,
                    own_frames.next().unwrap(),
                    ProtFlags::READ | ProtFlags::WRITE,
                );
            }
            Backing::SharedTails => {
                // The first page with shared tails is mapped writable until they are written.
                if shared_address.is_none() {
                    addresses.map(address, 0, ProtFlags::READ | ProtFlags::WRITE);
                    let tails = addresses.reserved.with_addr(address).cast();
                    // SAFETY: the page was mapped above, and nothing else uses it.
                    memmap.describe_shared_tails(unsafe { slice::from_raw_parts_mut(tails, 64) });
                    shared_address = Some(address);
                }
                addresses.map(address, 0, ProtFlags::READ);
            }
        }
    }
    assert_eq!(own_frames.next(), None);

    let first = NonNull::new(addresses.reserved.with_addr(start).cast::<Page>()).unwrap();
    // SAFETY: the pages without shared tails are mapped and writable, and nothing else uses them.
    let slots = unsafe { Slots::mapped(range, first, layout) }.unwrap();
    let written = memmap.describe(slots).unwrap();
    assert_eq!(written, Bytes(needed * FRAME_SIZE));

    let count = usize::try_from(range.frames()).unwrap();
    // SAFETY: all pages are mapped and have been written, and any bytes are a valid `Page`.
    let pages: &[Page] = unsafe { slice::from_raw_parts(first.as_ptr(), count) };
    for (nth, page) in pages.iter().enumerate() {
        let pfn = range.start().checked_add(nth as u64).unwrap();
        let head = layout.head_address(std::ptr::from_ref(page).addr());
        let head = &pages[(head - start) / size_of::<Page>()];
        let is_head = nth % 512 == 0;
        assert_eq!(page.flags & (HEAD | TAIL), if is_head { HEAD } else { TAIL });
        assert_eq!(page.refcount, u64::from(is_head));
        assert_eq!(page.order, if nth % 512 == 1 { 9 } else { 0 });
        assert_eq!(page.unused_words, [0; 5]);
        assert_eq!(head.flags & HEAD, HEAD);
        let section = SECTION.get(head.flags);
        assert_eq!(
            section,
            Some(pfn.align_down(1 << 15)),
            "{pfn:?} has the head of another compound"
        );
    }
    // Pages of the file that were not written have no memory. So the file has one page for each
    // compound, and one for the shared tails.
    let file_size = u64::try_from(fstat(&addresses.frames).unwrap().st_blocks).unwrap() * 512;
    assert_eq!(file_size, (needed + 1) * FRAME_SIZE);
}
