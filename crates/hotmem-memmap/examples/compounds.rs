//! Writes the descriptors of 2 MiB pages: a head with a reference count, and tails that point to it.

use core::mem::MaybeUninit;
use hotmem_memmap::{Bytes, Compound, Describe, Frame, Kind, Memmap, PfnRange, Role, Slots};

/// A kernel's descriptor.
#[repr(C, align(64))]
struct Page {
    flags: u64,
    head: u64,
    refcount: u64,
    device: u64,
    for_the_driver: [u64; 4],
}

struct Device {
    id: u64,
}

impl Describe for Device {
    type Descriptor = Page;
    type Words = [u64; 8];

    fn words(&self, frame: &Frame) -> [u64; 8] {
        let (flags, head) = match frame.role {
            Role::Single(pfn) => (0, pfn.number()),
            Role::Head { pfn, .. } => (1, pfn.number()),
            Role::Tail { head, .. } => (2, head.number()),
            Role::SharedTail { .. } => (3, 0),
        };
        [flags, head, frame.refcount.into(), self.id, 0, 0, 0, 0]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let range = PfnRange::from_bytes(4 << 30, Bytes::mib(4))?;
    let mut map: Vec<MaybeUninit<Page>> = Vec::new();
    map.resize_with(1024, MaybeUninit::uninit);

    let device = Device { id: 7 };
    let memmap = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &device);
    println!("{} written", memmap.describe(Slots::of(range, &mut map)?)?);

    for number in [0, 1, 511, 512, 513] {
        // SAFETY: every slot of the range has been written, and any words are a valid `Page`.
        let page = unsafe { map[number].assume_init_ref() };
        let Page { flags, head, refcount, device, for_the_driver } = page;
        println!("{number:4}: flags {flags}, head {head:#x}, {refcount} references");
        assert_eq!((*device, *for_the_driver), (7, [0; 4]));
        assert_eq!(*head, range.start().number() + if number < 512 { 0 } else { 512 });
    }
    Ok(())
}

#[test]
fn tails_point_to_their_heads() {
    main().unwrap();
}
