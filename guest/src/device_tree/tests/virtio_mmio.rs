//! Tests of the places for virtio devices in memory.

use super::blob::{Blob, cells};
use super::riscv::{PLIC, virt};
use super::*;

/// Adds a place whose node has these properties.
fn add_place(blob: &mut Blob, phys_addr: u32, properties: &[(&str, &[u32])]) {
    blob.begin(&format!("virtio_mmio@{phys_addr:x}")).property("compatible", b"virtio,mmio\0");
    blob.property("reg", &cells(&[0, phys_addr, 0, 0x200]));
    for (name, value) in properties {
        blob.property(name, &cells(value));
    }
    blob.end();
}

fn places(blob: &Blob) -> Result<Vec<(u64, Option<u32>)>, String> {
    let words = blob.words();
    let tree = read(&words).map_err(|error| error.to_string())?;
    Ok(tree.mmio_devices.iter().map(|place| (place.phys_addr, place.irq)).collect())
}

#[test]
fn a_place_has_the_line_of_the_controller_that_the_kernel_drives() {
    let mut blob = virt();
    blob.add_to_root(|root| {
        add_place(root, 0x1000, &[("interrupts", &[8]), ("interrupt-parent", &[PLIC])]);
        add_place(root, 0x2000, &[("interrupts", &[8]), ("interrupt-parent", &[0x99])]);
        add_place(root, 0x3000, &[("interrupts", &[8])]);
        add_place(root, 0x4000, &[("interrupt-parent", &[PLIC])]);
    });
    let expected = vec![(0x1000, Some(8)), (0x2000, None), (0x3000, None), (0x4000, None)];
    assert_eq!(places(&blob), Ok(expected));
}

#[test]
fn an_ancestor_names_the_controller_of_a_place() {
    let mut blob = Blob::default();
    blob.begin("").number("#address-cells", 2).number("#size-cells", 2);
    blob.number("interrupt-parent", 7);
    blob.begin("memory").property("reg", &cells(&[0, 0x4000_0000, 0, 0x1000])).end();
    add_place(&mut blob, 0xa00_0000, &[("interrupts", &[0, 16, 1])]);
    add_place(&mut blob, 0xa00_0200, &[("interrupts", &[1, 16, 1])]);
    blob.begin("intc").property("compatible", b"arm,gic-v3\0");
    blob.property("reg", &cells(&[0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0x2_0000]));
    blob.number("phandle", 7).number("#interrupt-cells", 3);
    blob.property("interrupt-controller", &[]).end().end();
    assert_eq!(places(&blob), Ok(vec![(0xa00_0000, Some(48)), (0xa00_0200, None)]));
}

#[test]
fn a_place_with_a_part_of_an_interrupt_and_one_place_too_many_are_refused() {
    let mut blob = virt();
    let parent = ("interrupt-parent", &[PLIC][..]);
    blob.add_to_root(|root| add_place(root, 0x1000, &[("interrupts", &[]), parent]));
    let malformed = "`interrupts` of the node `virtio_mmio` is malformed";
    assert_eq!(places(&blob), Err(malformed.into()));
    let mut blob = virt();
    blob.add_to_root(|root| (0..32).for_each(|place| add_place(root, place << 12, &[])));
    assert_eq!(places(&blob).map(|places| places.len()), Ok(32));
    blob.add_to_root(|root| add_place(root, 32 << 12, &[]));
    assert_eq!(places(&blob), Err("more than 32 virtio devices in memory".into()));
}
