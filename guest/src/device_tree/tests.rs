//! Tests of the description that is read from device trees.

mod blob;
mod riscv;
mod virtio_mmio;

use super::*;
use blob::{Blob, cells};
use proptest::prelude::*;

/// Returns a tree like that of QEMU's machine `virt`.
fn virt() -> Blob {
    let mut blob = Blob::default();
    blob.reserve(0x4800_0000, 0x1000);
    blob.begin("").number("#address-cells", 2).number("#size-cells", 2);
    blob.begin("psci").property("compatible", b"arm,psci-1.0\0arm,psci-0.2\0arm,psci\0");
    blob.property("method", b"hvc\0").end();
    blob.begin("memory@40000000").property("device_type", b"memory\0");
    blob.property("reg", &cells(&[0, 0x4000_0000, 0, 0x1000_0000])).end();
    blob.begin("reserved-memory").number("#address-cells", 2).number("#size-cells", 2);
    blob.property("ranges", &[]);
    blob.begin("log@4f000000").property("reg", &cells(&[0, 0x4f00_0000, 0, 0x2000])).end().end();
    blob.begin("cpus").number("#address-cells", 1).number("#size-cells", 0);
    for (id, status) in [(0, "okay\0"), (1, "disabled\0"), (0x100, "okay\0")] {
        blob.begin(&format!("cpu@{id:x}")).property("status", status.as_bytes());
        blob.number("reg", id).end();
    }
    blob.end();
    blob.begin("pl011@9000000").property("compatible", b"arm,pl011\0arm,primecell\0");
    blob.property("reg", &cells(&[0, 0x0900_0000, 0, 0x1000])).end();
    blob.begin("fw-cfg@9020000").property("compatible", b"qemu,fw-cfg-mmio\0");
    blob.property("reg", &cells(&[0, 0x0902_0000, 0, 0x18])).end();
    blob.begin("pcie@10000000").property("compatible", b"pci-host-ecam-generic\0");
    blob.number("#address-cells", 3).number("#size-cells", 2);
    blob.property("bus-range", &cells(&[0, 0xff]));
    blob.property("reg", &cells(&[0x40, 0x1000_0000, 0, 0x1000_0000]));
    let io = [0x100_0000, 0, 0, 0, 0x3eff_0000, 0, 0x1_0000];
    let narrow = [0x200_0000, 0, 0x1000_0000, 0, 0x1000_0000, 0, 0x2eff_0000];
    let wide = [0x300_0000, 0x80, 0, 0x80, 0, 0x80, 0];
    blob.property("ranges", &cells(&[io, narrow, wide].concat())).end();
    blob.begin("intc@8000000").property("compatible", b"arm,gic-v3\0").property("ranges", &[]);
    blob.number("#address-cells", 2).number("#size-cells", 2);
    blob.property("reg", &cells(&[0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000]));
    blob.begin("its@8080000").property("compatible", b"arm,gic-v3-its\0");
    blob.property("reg", &cells(&[0, 0x808_0000, 0, 0x2_0000])).end().end();
    blob.begin("chosen").property("bootargs", b"hotmem.exit=boot\0").end();
    blob.end();
    blob
}

const HOST: PciHost = PciHost {
    config_space: 0x40_1000_0000,
    first_bus: 0,
    last_bus: 255,
    window_start: 0x1000_0000,
    window_end: 0x3eff_0000,
};

const ADDRESS: u64 = 0x4400_0000;

fn read(words: &[u64]) -> Result<DeviceTree<'_>, TreeError<'_>> {
    DeviceTree::read(words, ADDRESS)
}

#[test]
fn the_machine_of_qemu_is_described() {
    let words = virt().words();
    let tree = read(&words).unwrap();
    assert_eq!(tree.command_line, b"hotmem.exit=boot");
    assert_eq!(*tree.ram, [Range { start: 0x4000_0000, len: 0x1000_0000 }]);
    let own_len = size_of_val(&*words) as u64;
    let in_use = [(ADDRESS, own_len), (0x4800_0000, 0x1000), (0x4f00_0000, 0x2000)];
    assert_eq!(*tree.in_use, in_use.map(|(start, len)| Range { start, len }));
    assert_eq!((tree.cpu_count, &*tree.cpu_ids), (2, &[0, 0x100][..]));
    assert_eq!(tree.pci, Some(HOST));
    let range = |start, len| Range { start, len };
    let (distributor, redistributors) = (range(0x800_0000, 0x1_0000), range(0x80a_0000, 0xf6_0000));
    let its = Some(range(0x808_0000, 0x2_0000));
    assert_eq!(tree.fw_cfg, Some(range(0x902_0000, 0x18)));
    assert_eq!(tree.gic, Some(Gic { distributor, redistributors, its }));
    let early =
        EarlyDevices { pl011: Some(0x900_0000), ns16550: None, power_calls: Some(PowerCalls::Hvc) };
    assert_eq!(EarlyDevices::find(&words), early);
}

/// Returns a tree whose RAM is 256 MiB from 1 GiB on, and that forbids mappings of these ranges.
fn with_no_map(ranges: &[u32]) -> Blob {
    let mut blob = Blob::default();
    blob.begin("").number("#address-cells", 1).number("#size-cells", 1);
    blob.begin("memory@40000000").property("reg", &cells(&[0x4000_0000, 0x1000_0000])).end();
    blob.begin("reserved-memory").number("#address-cells", 1).number("#size-cells", 1);
    blob.begin("firmware").property("no-map", &[]).property("reg", &cells(ranges)).end();
    blob.end().end();
    blob
}

#[test]
fn memory_that_must_not_be_mapped_is_no_ram() {
    const START: u64 = 0x4000_0000;
    const END: u64 = 0x5000_0000;
    const PAGE: u64 = 2 << 20;
    for (hidden, ram) in [
        // At the start, as OpenSBI's, and at the end.
        (&[0x4000_0000, 0x4_0000][..], &[(START + PAGE, END)][..]),
        (&[0x4fff_f000, 0x1000], &[(START, END - PAGE)]),
        // Two ranges within, one of them across two pages.
        (
            &[0x4020_1000, 0x1000, 0x47ff_f000, 0x2000],
            &[
                (START, START + PAGE),
                (START + 2 * PAGE, 0x4800_0000 - PAGE),
                (0x4800_0000 + PAGE, END),
            ],
        ),
        // Beside the RAM.
        (&[0x5000_0000, 0x1000], &[(START, END)]),
        (&[0x3fff_f000, 0x1000], &[(START, END)]),
    ] {
        let words = with_no_map(hidden).words();
        let tree = read(&words).unwrap();
        let found: Vec<_> = tree.ram.iter().map(|ram| (ram.start, ram.start + ram.len)).collect();
        assert_eq!(found, ram, "{hidden:x?}");
        // It needs no reservation, because no table lists it as RAM.
        assert_eq!(tree.in_use.len(), 1);
        assert_eq!(tree.not_mapped.len(), hidden.len() / 2);
    }
}

#[test]
fn a_tree_whose_ram_must_not_be_mapped_has_no_ram() {
    let words = with_no_map(&[0x4000_0000, 0x1000_0000]).words();
    assert_eq!(read(&words).unwrap_err(), TreeError::NoRam);
}

#[test]
fn the_console_is_found_although_a_later_node_is_malformed() {
    let words = virt().replacing("bus-range", &cells(&[3, 2])).words();
    let malformed = TreeError::Malformed { node: "pcie", property: "bus-range" };
    assert_eq!(read(&words).unwrap_err(), malformed);
    assert_eq!(EarlyDevices::find(&words).pl011, Some(0x900_0000));
}

#[test]
fn buses_beyond_the_configuration_space_are_not_searched() {
    // With `highmem=off`, QEMU has 16 MiB directly below RAM.
    let reg = cells(&[0, 0x3f00_0000, 0, 0x100_0000]);
    let words = virt().replacing_in("pcie@10000000", "reg", &reg).words();
    let pci = read(&words).unwrap().pci.unwrap();
    assert_eq!((pci.config_space, pci.last_bus), (0x3f00_0000, 15));
    let too_small = cells(&[0, 0x3f00_0000, 0, 0xf_ffff]);
    let words = virt().replacing_in("pcie@10000000", "reg", &too_small).words();
    let malformed = TreeError::Malformed { node: "pcie", property: "reg" };
    assert_eq!(read(&words).unwrap_err(), malformed);
}

#[test]
fn a_window_at_other_addresses_for_devices_is_refused() {
    let ranges = cells(&[0x200_0000, 0, 0, 0, 0x1000_0000, 0, 0x2000_0000]);
    let words = virt().replacing_in("pcie@10000000", "ranges", &ranges).words();
    assert_eq!(read(&words).unwrap_err(), TreeError::TranslatedWindow);
}

#[test]
fn malformed_properties_are_named() {
    for (node, property, value, reported) in [
        ("memory@40000000", "reg", &[0, 0x4000_0000, 0][..], "memory"),
        ("memory@40000000", "reg", &[u32::MAX, 0, 1, 0], "memory"),
        ("cpus", "#address-cells", &[4], "cpus"),
        ("cpus", "#size-cells", &[0, 0], "cpus"),
        ("cpu@100", "reg", &[], "cpu"),
        ("pcie@10000000", "#address-cells", &[2], "pcie"),
        ("intc@8000000", "reg", &[0, 0x800_0000, 0, 0x1_0000], "intc"),
        ("pcie@10000000", "ranges", &[0x200_0000, 0, 0], "pcie"),
    ] {
        let words = virt().replacing_in(node, property, &cells(value)).words();
        let malformed = TreeError::Malformed { node: reported, property };
        assert_eq!(read(&words).unwrap_err(), malformed, "{value:x?}");
    }
}

#[test]
fn buses_without_cells_for_addresses_do_not_hold_up_the_reader() {
    let words = virt().replacing_in("cpus", "#address-cells", &cells(&[0])).words();
    let malformed = TreeError::Malformed { node: "cpu", property: "reg" };
    assert_eq!(read(&words).unwrap_err(), malformed);
}

#[test]
fn a_tree_without_ram_is_refused() {
    let words = virt().replacing_in("memory@40000000", "reg", &cells(&[0; 4])).words();
    assert_eq!(read(&words).unwrap_err(), TreeError::NoRam);
}

#[test]
fn more_ranges_than_the_kernel_has_room_for_are_refused() {
    let reg = cells(&[0, 0x4000_0000, 0, 0x1000].repeat(MAX_RANGES + 1));
    let words = virt().replacing_in("memory@40000000", "reg", &reg).words();
    let too_many = TreeError::TooMany { what: "ranges of RAM", max: MAX_RANGES };
    assert_eq!(read(&words).unwrap_err(), too_many);
}

#[test]
fn nodes_that_are_nested_deeply_are_refused() {
    let mut blob = Blob::default();
    blob.begin("");
    for _ in 0..9 {
        blob.begin("bus");
    }
    for _ in 0..10 {
        blob.end();
    }
    assert_eq!(read(&blob.words()).unwrap_err(), TreeError::TooDeep);
}

#[test]
fn a_device_behind_a_bus_that_translates_addresses_is_not_used() {
    for (ranges, found) in [(&[][..], Some(0x1000)), (&[0, 0x5000_0000, 0x1000], None)] {
        let mut blob = Blob::default();
        blob.begin("").begin("soc").number("#address-cells", 1).number("#size-cells", 1);
        blob.property("ranges", &cells(ranges)).begin("serial");
        blob.property("compatible", b"arm,pl011\0").property("reg", &cells(&[0x1000, 0x1000]));
        blob.end().end().end();
        assert_eq!(EarlyDevices::find(&blob.words()).pl011, found);
    }
}

#[test]
fn every_truncation_of_a_tree_is_refused() {
    let words = virt().words();
    for len in 0..words.len() {
        assert!(read(&words[..len]).is_err(), "{len}");
        let _ = EarlyDevices::find(&words[..len]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("HOTMEM_DEEP").is_some() {
        20_000
    } else {
        300
    }))]

    #[test]
    fn a_tree_with_changed_bytes_is_read_or_refused(
        is_riscv in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = if is_riscv { riscv::virt() } else { virt() }.bytes();
        for (at, value) in changes {
            *at.get_mut(&mut bytes) = value;
        }
        let words = blob::words_of(&bytes);
        let _ = EarlyDevices::find(&words);
        if let Ok(tree) = read(&words) {
            let ranges = tree.ram.iter().chain(&tree.in_use[1..]);
            prop_assert!(ranges.copied().all(|range| range.start.checked_add(range.len).is_some()));
            let is_valid = |pci: PciHost| {
                pci.first_bus <= pci.last_bus && pci.window_start <= pci.window_end
            };
            prop_assert!(tree.pci.is_none_or(is_valid));
            if let Some(plic) = tree.riscv.plic {
                let Range { start, len } = plic.registers;
                for source in [1, 31, plic.sources] {
                    let register = plic.priority(source);
                    prop_assert!(register.is_none_or(|at| at >= start && at - start <= len - 4));
                }
            }
        }
    }
}
