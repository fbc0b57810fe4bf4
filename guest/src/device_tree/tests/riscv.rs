//! Tests of what is read from trees of riscv64.

use super::blob::{Blob, cells};
use super::*;

/// The phandles of the harts' interrupt controllers, and of the PLIC.
const CONTROLLERS: [u32; 3] = [0x11, 0x12, 0x13];
pub(super) const PLIC: u32 = 0x20;

/// Returns a tree like that of QEMU's machine `virt`, with a hart 0 that only monitors and two harts, 5 and
/// 2, that can run a kernel.
pub(super) fn virt() -> Blob {
    let mut blob = Blob::default();
    blob.begin("").number("#address-cells", 2).number("#size-cells", 2);
    blob.begin("memory@80000000").property("reg", &cells(&[0, 0x8000_0000, 0, 0x1000_0000])).end();
    blob.begin("cpus").number("#address-cells", 1).number("#size-cells", 0);
    blob.number("timebase-frequency", 10_000_000);
    let harts = [(0, None), (5, Some("riscv,sv39\0")), (2, Some("riscv,sv57\0"))];
    for ((id, mmu), controller) in harts.into_iter().zip(CONTROLLERS) {
        blob.begin(&format!("cpu@{id}")).property("compatible", b"riscv\0").number("reg", id);
        if let Some(mmu) = mmu {
            blob.property("mmu-type", mmu.as_bytes());
        }
        blob.begin("interrupt-controller").property("compatible", b"riscv,cpu-intc\0");
        blob.number("#interrupt-cells", 1).property("interrupt-controller", &[]);
        blob.number("phandle", controller).end().end();
    }
    blob.end();
    blob.begin("soc").number("#address-cells", 2).number("#size-cells", 2).property("ranges", &[]);
    blob.begin("serial@10000000").property("compatible", b"ns16550a\0");
    blob.property("reg", &cells(&[0, 0x1000_0000, 0, 0x100])).end();
    blob.begin("plic@c000000").property("compatible", b"sifive,plic-1.0.0\0riscv,plic0\0");
    blob.property("reg", &cells(&[0, 0xc00_0000, 0, 0x60_0000])).number("riscv,ndev", 96);
    blob.number("phandle", PLIC).property("interrupt-controller", &[]);
    blob.number("#address-cells", 0).number("#interrupt-cells", 1);
    // Hart 0 has a context for M-mode only, so that the contexts are not two for each hart.
    let [monitor, first, second] = CONTROLLERS;
    let contexts = [monitor, 11, first, 11, first, 9, second, u32::MAX, second, 9];
    blob.property("interrupts-extended", &cells(&contexts)).end();
    blob.begin("pci@30000000").property("compatible", b"pci-host-ecam-generic\0");
    blob.number("#address-cells", 3).number("#size-cells", 2).number("#interrupt-cells", 1);
    blob.property("reg", &cells(&[0, 0x3000_0000, 0, 0x1000_0000]));
    blob.property("ranges", &cells(&[0x200_0000, 0, 0x4000_0000, 0, 0x4000_0000, 0, 0x4000_0000]));
    blob.property("interrupt-map-mask", &cells(&[0x1800, 0, 0, 7]));
    let entry = |device, pin| [device << 11, 0, 0, pin, PLIC, 32 + (device + pin - 1) % 4];
    let map: Vec<_> =
        (0..4).flat_map(|device| (1..5).flat_map(move |pin| entry(device, pin))).collect();
    blob.property("interrupt-map", &cells(&map)).end();
    blob.end().end();
    blob
}

#[test]
fn the_machine_of_qemu_is_described() {
    let words = virt().words();
    let tree = read(&words).unwrap();
    assert_eq!((tree.cpu_count, &*tree.cpu_ids), (2, &[5, 2][..]), "hart 0 has no MMU");
    assert_eq!(tree.riscv.timer_hz, Some(10_000_000));
    let serial = EarlyDevices::find(&words).ns16550;
    assert_eq!(serial, Some(Ns16550 { address: 0x1000_0000, shift: 0, width: 1 }));
}

#[test]
fn a_16550_whose_registers_lie_outside_of_its_range_or_are_not_aligned_is_not_used() {
    let serial = |reg: &[u32], properties: &[(&str, u32)]| {
        let mut blob = Blob::default();
        blob.begin("").number("#address-cells", 2).number("#size-cells", 2);
        blob.begin("serial").property("compatible", b"ns16550a\0").property("reg", &cells(reg));
        for &(name, value) in properties {
            blob.number(name, value);
        }
        blob.end().end();
        EarlyDevices::find(&blob.words()).ns16550
    };
    let words = [("reg-shift", 2), ("reg-io-width", 4)];
    let found = Some(Ns16550 { address: 0x1000_0100, shift: 2, width: 4 });
    assert_eq!(serial(&[0, 0x1000_0100, 0, 0x100], &words), found);
    for (reg, properties) in [
        ([0, 0x1000_0000, 0, 5], &[][..]),
        ([0, 0x1000_0000, 0, 0x100], &[("reg-offset", 0xfb)]),
        ([0, 0x1000_0000, 0, 0x100], &[("reg-shift", 6)]),
        ([0, 0x1000_0000, 0, 0x100], &[("reg-shift", 64)]),
        ([0, 0x1000_0000, 0, 0x100], &[("reg-io-width", 4)]),
        ([0, 0x1000_0000, 0, 0x100], &[("reg-shift", 2), ("reg-io-width", 8)]),
        ([0, 0x1000_0001, 0, 0x100], &words),
        // The registers lie in two pages of 2 MiB.
        ([0, 0x101f_fffc, 0, 0x100], &[]),
        // The address has more bits than an entry of a page table.
        ([0x0100_0000, 0, 0, 0x100], &[]),
    ] {
        assert_eq!(serial(&reg, properties), None, "{reg:x?} {properties:?}");
    }
}

#[test]
fn a_context_of_the_plic_is_found_by_the_harts_id_and_its_mode() {
    let words = virt().words();
    let riscv = read(&words).unwrap().riscv;
    assert_eq!([5, 2, 0, 1].map(|hart| riscv.context_of(hart)), [Some(2), Some(4), None, None]);
    // A PLIC has the registers of 15872 contexts.
    for (before, expected) in [(15871, Some(15871)), (15872, None)] {
        let contexts = [&[CONTROLLERS[1], 11].repeat(before), &[CONTROLLERS[1], 9][..]].concat();
        let words = virt().replacing("interrupts-extended", &cells(&contexts)).words();
        assert_eq!(read(&words).unwrap().riscv.context_of(5), expected);
    }
}

#[test]
fn a_hart_without_a_controller_does_not_get_that_of_a_hart_that_only_monitors() {
    let mut blob = Blob::default();
    blob.begin("").number("#address-cells", 2).number("#size-cells", 2);
    blob.begin("memory").property("reg", &cells(&[0, 0x8000_0000, 0, 0x1000])).end();
    blob.begin("cpus").number("#address-cells", 1).number("#size-cells", 0);
    blob.begin("cpu@1").property("compatible", b"riscv\0").number("reg", 1);
    blob.property("mmu-type", b"riscv,sv39\0").end();
    blob.begin("cpu@0").property("compatible", b"riscv\0").number("reg", 0);
    blob.begin("interrupt-controller").property("compatible", b"riscv,cpu-intc\0");
    blob.number("phandle", 7).end().end().end();
    blob.begin("plic").property("compatible", b"riscv,plic0\0").number("riscv,ndev", 1);
    blob.property("reg", &cells(&[0, 0xc00_0000, 0, 0x60_0000]));
    blob.property("interrupts-extended", &cells(&[7, 9])).end().end();
    let words = blob.words();
    assert_eq!(read(&words).unwrap().riscv.context_of(1), None);
}

#[test]
fn pci_lines_of_another_controller_than_the_first_plic_are_not_used() {
    const OTHER: u32 = 0x21;
    let other = [0, 0, 0, 1, OTHER, 32];
    let mixed = [0, 0, 0, 1, PLIC, 32, 0x800, 0, 0, 1, OTHER, 33];
    for (map, expected) in [(&other[..], [None; 2]), (&mixed, [Some(32), None])] {
        let mut blob = virt().replacing_in("pci@30000000", "interrupt-map", &cells(map));
        blob.add_to_root(|blob| {
            blob.begin("plic@d000000").property("compatible", b"riscv,plic0\0");
            blob.property("reg", &cells(&[0, 0xd00_0000, 0, 0x60_0000])).number("riscv,ndev", 96);
            blob.number("phandle", OTHER).property("interrupt-controller", &[]);
            blob.number("#address-cells", 0).number("#interrupt-cells", 1).end();
        });
        let words = blob.words();
        let lines = read(&words).unwrap().pci_lines;
        assert_eq!([lines.number(0, 1), lines.number(1, 1)], expected, "{map:x?}");
    }
}

#[test]
fn pci_lines_of_the_second_plic_are_not_used_if_nothing_can_name_the_first_one() {
    let mut blob = Blob::default();
    blob.begin("").number("#address-cells", 2).number("#size-cells", 2);
    blob.begin("memory").property("reg", &cells(&[0, 0x8000_0000, 0, 0x1000])).end();
    for (name, phandle) in [("plic@c000000", None), ("plic@d000000", Some(PLIC))] {
        blob.begin(name).property("compatible", b"riscv,plic0\0").number("riscv,ndev", 96);
        blob.property("reg", &cells(&[0, 0xc00_0000, 0, 0x60_0000]));
        blob.property("interrupt-controller", &[]).number("#interrupt-cells", 1);
        if let Some(phandle) = phandle {
            blob.number("phandle", phandle);
        }
        blob.end();
    }
    blob.begin("pci@30000000").property("compatible", b"pci-host-ecam-generic\0");
    blob.number("#address-cells", 3).number("#size-cells", 2);
    blob.property("reg", &cells(&[0, 0x3000_0000, 0, 0x1000_0000])).property("ranges", &[]);
    blob.property("interrupt-map-mask", &cells(&[0, 0, 0, 7]));
    blob.property("interrupt-map", &cells(&[0, 0, 0, 1, PLIC, 32])).end().end();
    let words = blob.words();
    assert_eq!(read(&words).unwrap().pci_lines.number(0, 1), None);
}

#[test]
fn the_registers_of_the_plic_lie_where_its_specification_says_and_not_outside() {
    let words = virt().words();
    let plic = read(&words).unwrap().riscv.plic.unwrap();
    assert_eq!(
        [0, 1, 96, 97].map(|source| plic.priority(source)),
        [None, Some(0xc00_0004), Some(0xc00_0180), None]
    );
    assert_eq!(plic.enables(4, 33), Some(0xc00_2204));
    assert_eq!((plic.threshold(4), plic.claim(4)), (Some(0xc20_4000), Some(0xc20_4004)));
    assert_eq!((plic.claim(0x3ff), plic.claim(0x400)), (Some(0xc5f_f004), None));
    assert_eq!(plic.claim(u64::MAX), None);
}

#[test]
fn the_frequency_of_the_timer_may_have_two_cells_and_is_not_zero() {
    let two = virt().replacing("timebase-frequency", &cells(&[1, 0])).words();
    assert_eq!(read(&two).unwrap().riscv.timer_hz, Some(1 << 32));
    for bad in [&[][..], &[0], &[0, 0], &[1, 0, 0]] {
        let words = virt().replacing("timebase-frequency", &cells(bad)).words();
        let malformed = TreeError::Malformed { node: "cpus", property: "timebase-frequency" };
        assert_eq!(read(&words).unwrap_err(), malformed, "{bad:?}");
    }
}

#[test]
fn a_pin_of_pci_leads_to_the_interrupt_that_the_map_names() {
    let words = virt().words();
    let lines = read(&words).unwrap().pci_lines;
    let number = |device, pin| lines.number(device, pin);
    assert_eq!([number(0, 1), number(1, 1), number(3, 2)], [Some(32), Some(33), Some(32)]);
    // The mask leaves two bits of the device.
    assert_eq!((number(5, 1), number(31, 4)), (Some(33), Some(34)));
    assert_eq!((number(0, 0), number(0, 5)), (None, None));
}

#[test]
fn the_shared_interrupts_of_a_gic_begin_at_32_and_its_other_ones_are_not_used() {
    for (kind, expected) in [(0, Some(35)), (1, None)] {
        let mut blob = Blob::default();
        blob.begin("").number("#address-cells", 2).number("#size-cells", 2);
        blob.begin("memory").property("reg", &cells(&[0, 0x4000_0000, 0, 0x1000])).end();
        blob.begin("pci@30000000").property("compatible", b"pci-host-ecam-generic\0");
        blob.number("#address-cells", 3).number("#size-cells", 2);
        blob.property("reg", &cells(&[0, 0x3000_0000, 0, 0x1000_0000])).property("ranges", &[]);
        blob.property("interrupt-map-mask", &cells(&[0, 0, 0, 7]));
        blob.property("interrupt-map", &cells(&[0, 0, 0, 1, 7, 0, 0, kind, 3, 4])).end();
        // The controller follows the node that names it.
        blob.begin("intc").property("compatible", b"arm,gic-v3\0");
        blob.property("reg", &cells(&[0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0x2_0000]));
        blob.number("phandle", 7).number("#interrupt-cells", 3);
        blob.number("#address-cells", 2).property("interrupt-controller", &[]).end().end();
        let words = blob.words();
        assert_eq!(read(&words).unwrap().pci_lines.number(9, 1), expected);
    }
}

#[test]
fn malformed_properties_are_named() {
    for (node, property, value, reported) in [
        ("plic@c000000", "interrupts-extended", &[0x11][..], "plic"),
        ("plic@c000000", "interrupts-extended", &[0x11, 99], "plic"),
        ("plic@c000000", "riscv,ndev", &[], "plic"),
        ("plic@c000000", "riscv,ndev", &[1024], "plic"),
        ("plic@c000000", "reg", &[], "plic"),
        ("pci@30000000", "interrupt-map-mask", &[0x1800, 0, 0], "pci"),
        ("pci@30000000", "interrupt-map", &[0, 0, 0, 1, PLIC], "pci"),
    ] {
        let words = virt().replacing_in(node, property, &cells(value)).words();
        let malformed = TreeError::Malformed { node: reported, property };
        assert_eq!(read(&words).unwrap_err(), malformed, "{value:x?}");
    }
}

#[test]
fn a_map_that_leads_to_an_unknown_controller_has_no_lines() {
    let map = cells(&[0, 0, 0, 1, 0x99, 32]);
    let words = virt().replacing_in("pci@30000000", "interrupt-map", &map).words();
    assert_eq!(read(&words).unwrap().pci_lines.number(0, 1), None);
}

#[test]
fn every_truncation_of_a_tree_is_refused() {
    let words = virt().words();
    for len in 0..words.len() {
        assert!(read(&words[..len]).is_err(), "{len}");
    }
}
