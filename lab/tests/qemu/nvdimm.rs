//! Tests of persistent memory. The guest checks all descriptors and some frames of data, and fails
//! if one of them is incorrect.

use crate::support::{config, daxctl};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Event, Vm};
use serde_json::json;
use std::fs;

const SIZE: Bytes = Bytes::gib(1);
const REBINDS: usize = 30;
/// The number of frames of data of a device whose descriptors of 64 bytes are on the device. The
/// descriptors of a pageblock take eight frames, so 502 or 503 of 512 pageblocks are for data.
const DATA_FRAMES: std::ops::RangeInclusive<u64> = 502 * 512..=503 * 512;

/// The guest's figures of a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BindCounts {
    frames: u64,
    memmap_bytes: u64,
    bytes_saved: u64,
    bytes_written: u64,
}

/// Returns a machine with one NVDIMM, and these options of the guest.
fn nvdimm(options: &[(&str, &str)]) -> Config {
    let config =
        Config { nvdimms: vec![SIZE], ..config(Bytes::ZERO).with_guest_option("exit", "nvdimm") };
    options.iter().fold(config, |config, (key, value)| config.with_guest_option(key, value))
}

/// Runs a machine with one device until the guest ends. Returns the figures of the binds, which
/// must be equal, and the number of descriptors that the guest has checked after the last bind.
fn run(config: &Config, binds: usize) -> (BindCounts, u64) {
    let mut vm = Vm::start(config).unwrap();
    let found = |event: &Event| match *event {
        Event::Nvdimm { size, .. } => Some(size),
        _ => None,
    };
    assert_eq!(vm.wait("persistent memory", found).unwrap().0, config.nvdimms[0].0);
    let mut all_counts = Vec::new();
    let mut checked_descriptors = 0;
    for _ in 0..binds {
        let bound = |event: &Event| match *event {
            Event::Bound { frames, map, saved, written, .. } => Some(BindCounts {
                frames,
                memmap_bytes: map,
                bytes_saved: saved,
                bytes_written: written,
            }),
            _ => None,
        };
        all_counts.push(vm.wait("bind", bound).unwrap().0);
        let checked = |event: &Event| match *event {
            Event::Checked { descriptors, data, .. } => Some((descriptors, data)),
            _ => None,
        };
        let (descriptors, data) = vm.wait("check", checked).unwrap().0;
        assert!(data > 200, "{data}");
        checked_descriptors = descriptors;
    }
    vm.finish().unwrap();
    assert!(all_counts.iter().all(|counts| *counts == all_counts[0]), "{all_counts:?}");
    (all_counts[0], checked_descriptors)
}

fn check_descriptors_on_the_device(mode: &str) {
    let (counts, checked) = run(&nvdimm(&[("nvdimm", mode)]), 1 + REBINDS);
    assert!(DATA_FRAMES.contains(&counts.frames), "{counts:?}");
    assert_eq!(
        (counts.memmap_bytes, counts.bytes_written, counts.bytes_saved),
        (counts.frames * 64, counts.frames * 64, 0)
    );
    assert_eq!(checked, counts.frames);
}

#[test]
fn each_bind_writes_descriptors_of_single_frames_to_the_device() {
    check_descriptors_on_the_device("fsdax");
}

#[test]
fn each_bind_writes_descriptors_of_compounds_to_the_device() {
    check_descriptors_on_the_device("devdax");
}

#[test]
fn each_bind_writes_descriptors_of_compounds_of_1_gib() {
    let gib = Bytes::gib(1);
    let devdax = nvdimm(&[("nvdimm", "devdax"), ("align", "1G"), ("rebinds", "2")]);
    let in_ram = devdax.clone().with_guest_option("map", "mem");
    let expected = BindCounts {
        frames: gib.frames(),
        memmap_bytes: 16 << 20,
        bytes_saved: 0,
        bytes_written: 16 << 20,
    };
    // The device has 2 GiB. With the descriptors on the device, it has one compound of 1 GiB.
    let on_device = Config { nvdimms: vec![Bytes::gib(2)], ..devdax };
    assert_eq!(run(&on_device, 3), (expected, gib.frames()));
    assert_eq!(run(&in_ram, 3), (expected, gib.frames()));
    let shared = BindCounts {
        memmap_bytes: 2 << 12,
        bytes_saved: (16 << 20) - (2 << 12),
        bytes_written: 1 << 12,
        ..expected
    };
    assert_eq!(run(&in_ram.with_guest_option("tails", "shared"), 3), (shared, gib.frames()));
}

#[test]
fn each_bind_writes_descriptors_of_compounds_to_ram() {
    let keys = [("nvdimm", "devdax"), ("map", "mem"), ("rebinds", "2")];
    let (counts, checked) = run(&nvdimm(&keys), 3);
    assert_eq!(
        counts,
        BindCounts {
            frames: SIZE.frames(),
            memmap_bytes: 16 << 20,
            bytes_saved: 0,
            bytes_written: 16 << 20
        }
    );
    assert_eq!(checked, counts.frames);
}

#[test]
fn descriptors_with_shared_tails_need_one_frame_for_each_compound() {
    for (map, min) in [("dev", 510), ("mem", 512)] {
        let keys = [("nvdimm", "devdax"), ("tails", "shared"), ("map", map), ("rebinds", "2")];
        let (counts, checked) = run(&nvdimm(&keys), 3);
        let compounds = counts.frames / 512;
        assert!((min..=512).contains(&compounds), "{counts:?}");
        // One more frame has the descriptors that the tails of all compounds share.
        assert_eq!(
            (counts.memmap_bytes, counts.bytes_written),
            ((compounds + 1) << 12, compounds << 12)
        );
        assert_eq!(counts.bytes_saved, (compounds * 7 - 1) << 12);
        assert_eq!(checked, counts.frames);
    }
}

#[test]
fn several_devices_with_parts_of_sections_are_bound_at_the_same_time() {
    let sizes = [130, 66, 4].map(Bytes::mib);
    // The number of frames of descriptors on each device is last.
    for (map, tails, descriptor_frames) in [("dev", "shared", 512), ("mem", "own", 0)] {
        let keys = [("nvdimm", "devdax"), ("map", map), ("tails", tails), ("rebinds", "2")];
        let mut vm = Vm::start(&Config { nvdimms: sizes.to_vec(), ..nvdimm(&keys) }).unwrap();
        let mut devices = Vec::new();
        for _ in sizes {
            let found = |event: &Event| match *event {
                Event::Nvdimm { device, size, .. } => Some((device, Bytes(size))),
                _ => None,
            };
            devices.push(vm.wait("persistent memory", found).unwrap().0);
        }
        for _ in 0..3 {
            for &(device, size) in &devices {
                let bound = |event: &Event| match *event {
                    Event::Bound { device, frames, .. } => Some((device, frames)),
                    _ => None,
                };
                let bound = vm.wait("bind", bound).unwrap().0;
                assert_eq!(bound, (device, size.frames() - descriptor_frames));
            }
            for &(device, size) in &devices {
                let checked = |event: &Event| match *event {
                    Event::Checked { device, data, .. } => Some((device, data)),
                    _ => None,
                };
                let (number, data) = vm.wait("check", checked).unwrap().0;
                assert_eq!(number, device);
                assert!(data >= 256.min(size.frames() - descriptor_frames), "{data}");
            }
        }
        vm.finish().unwrap();
        assert_eq!(devices.iter().map(|&(device, _)| device).collect::<Vec<_>>(), [0, 1, 2]);
        devices.sort_by_key(|&(_, size)| size);
        assert_eq!(
            devices.iter().map(|&(_, size)| size).collect::<Vec<_>>(),
            [4, 66, 130].map(Bytes::mib)
        );
    }
}

/// Waits until the guest has changed the device's mode to `wanted`. Returns the online and the free
/// memory.
fn wait_for_mode(vm: &mut Vm, wanted: &str) -> (u64, u64) {
    let reconfigured = |event: &Event| match event {
        Event::Reconfigured { mode, online, free, .. } => Some((mode.clone(), (*online, *free))),
        _ => None,
    };
    let ((mode, counts), _) = vm.wait("change of mode", reconfigured).unwrap();
    assert_eq!(mode, wanted);
    counts
}

#[test]
fn device_memory_becomes_ram_and_device_memory_again() {
    let touched = Bytes::mib(32);
    // Before the memory becomes device memory, the guest frees its frames or migrates them. The
    // memory is movable or for any allocation. In the last case the guest has descriptors of RAM.
    for keys in [
        [("release", "on"), ("online", "online_movable")],
        [("release", "off"), ("online", "online_kernel")],
        [("release", "off"), ("online", "online")],
        [("release", "off"), ("descriptors", "64")],
    ] {
        let config = nvdimm(&[("nvdimm", "system_ram"), ("rebinds", "2")])
            .with_guest_option("touch", touched.0);
        let config = keys
            .into_iter()
            .fold(config, |config, (key, value)| config.with_guest_option(key, value));
        let mut vm = Vm::start(&config).unwrap();
        for _ in 0..3 {
            let (online, free) = wait_for_mode(&mut vm, "system_ram");
            assert!(online > SIZE.0 && free > SIZE.0 + touched.0, "{online} {free}");
            let used = |event: &Event| match *event {
                Event::Touched { bytes, .. } => Some(bytes),
                _ => None,
            };
            assert_eq!(vm.wait("use", used).unwrap().0, touched.0);
            let (online_without, _) = wait_for_mode(&mut vm, "device");
            assert_eq!(online - online_without, SIZE.0);
        }
        vm.finish().unwrap();
    }
}

#[test]
fn device_memory_becomes_offline_ram_and_device_memory_again() {
    let keys =
        [("nvdimm", "system_ram"), ("online", "offline"), ("touch", "32M"), ("rebinds", "2")];
    let mut vm = Vm::start(&nvdimm(&keys)).unwrap();
    for _ in 0..3 {
        let (online, _) = wait_for_mode(&mut vm, "system_ram");
        assert_eq!(wait_for_mode(&mut vm, "device").0, online);
    }
    vm.finish().unwrap();
}

#[test]
fn ram_in_use_does_not_become_device_memory() {
    // The guest uses more memory than is free outside the device's memory.
    let keys = [("nvdimm", "system_ram"), ("release", "off"), ("touch", "256M")];
    let mut vm = Vm::start(&nvdimm(&keys)).unwrap();
    wait_for_mode(&mut vm, "system_ram");
    let end = vm.wait("end", |event| matches!(event, Event::Unbound { .. }).then_some(()));
    match end {
        Err(Error::BailOut(reason)) => assert!(reason.contains("free elsewhere"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// Returns the reason why the guest refuses the bind.
fn refusal(config: &Config) -> String {
    let end = Vm::start(config).and_then(|mut vm| {
        vm.wait("bind", |event| matches!(event, Event::Bound { .. }).then_some(()))
    });
    match end {
        // Before the guest reports the reason, it checks that nothing has changed. Otherwise the
        // reason contains "partly bound".
        Err(Error::BailOut(reason)) if !reason.contains("partly bound") => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_invalid_bind_is_refused() {
    let fsdax = nvdimm(&[("nvdimm", "fsdax")]);
    let reason = refusal(&Config { nvdimms: Vec::new(), ..fsdax.clone() });
    assert!(reason.contains("no persistent memory"), "{reason}");
    let reason = refusal(&fsdax.clone().with_guest_option("tails", "shared"));
    assert!(reason.contains("no more than one frame"), "{reason}");
    // The device is too small for its descriptors and a pageblock of data.
    let reason = refusal(&Config { nvdimms: vec![Bytes::mib(2)], ..fsdax.clone() });
    assert!(reason.contains("no room for data"), "{reason}");
    let devdax = nvdimm(&[("nvdimm", "devdax"), ("align", "1G")]);
    let reason = refusal(&devdax);
    assert!(reason.contains("no room for data"), "{reason}");
    let small = Config { nvdimms: vec![Bytes::mib(512)], ..devdax.with_guest_option("map", "mem") };
    let reason = refusal(&small);
    assert!(reason.contains("does not consist of whole pages"), "{reason}");
    // The descriptors of 8 GiB take 128 MiB, which is all memory of the machine.
    let reason =
        refusal(&Config { nvdimms: vec![Bytes::gib(8)], ..fsdax.with_guest_option("map", "mem") });
    assert!(reason.contains("no memory for descriptors"), "{reason}");
}

#[test]
fn a_bind_is_undone_if_there_is_no_memory_for_a_table_of_shared_tails() {
    // A compound of 1 GiB has one frame of descriptors of its own, and fills eight tables, all but the
    // first of which map shared tails only. The tables of 1 TiB take 32 MiB.
    let keys = [("nvdimm", "devdax"), ("align", "1G"), ("tails", "shared"), ("map", "mem")];
    let config =
        Config { nvdimms: vec![Bytes::gib(1024)], boot_memory: Bytes::mib(40), ..nvdimm(&keys) };
    let reason = refusal(&config);
    assert!(reason.contains("no frame was available"), "{reason}");
}

/// Returns the NFIT structure that describes a range of persistent memory.
fn nfit_range(base: u64, len: u64) -> Vec<u8> {
    let mut structure = vec![0_u8, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    structure.extend(0x66f0_d379_u32.to_le_bytes());
    structure.extend(0xb4f3_u16.to_le_bytes());
    structure.extend(0x4074_u16.to_le_bytes());
    structure.extend(0xac43_0d33_18b7_8cdb_u64.to_be_bytes());
    structure.extend([base, len, 8].map(u64::to_le_bytes).concat());
    structure
}

#[test]
fn invalid_nfit_structures_are_refused_and_affect_no_other_device() {
    let valid = nfit_range(4 << 30, 1 << 30);
    let truncated = valid[..40].to_vec();
    let mut on_other_node = valid.clone();
    // The structure has a valid proximity domain, in which there is no other memory.
    (on_other_node[6], on_other_node[13]) = (2, 0xff);
    let empty = [valid.clone(), vec![1, 0, 0, 0]].concat();
    let file = std::env::temp_dir().join(format!("hotmem-nfit-{}", std::process::id()));
    let table = Config {
        acpi_tables: vec![("NFIT", file.clone())],
        ..config(Bytes::ZERO).with_guest_option("exit", "nvdimm")
    };
    for (structures, reason) in [
        (truncated, "no structure of 56 bytes"),
        (empty, "no structure of 0 bytes"),
        (nfit_range(0x10_0000, 1 << 30), "overlaps RAM"),
        ([valid.clone(), nfit_range(5 << 30, 1 << 30), valid].concat(), "overlap"),
        (nfit_range(4 << 30, 0x800), "not whole frames"),
        (nfit_range(u64::MAX << 12, 1 << 30), "not whole frames"),
    ] {
        // The contents of the table begin with a reserved field of four bytes.
        fs::write(&file, [vec![0; 4], structures].concat()).unwrap();
        let found = refusal(&table.clone().with_guest_option("nvdimm", "fsdax"));
        assert!(found.contains(reason), "{found}");
    }
    fs::write(&file, [vec![0; 4], on_other_node].concat()).unwrap();
    let mut vm = Vm::start(&table.clone().with_guest_option("nvdimm", "fsdax")).unwrap();
    // The guest accepts any node. There is no memory at these addresses, which the guest finds out
    // only after the bind.
    vm.wait("bind", |event| matches!(event, Event::Bound { .. }).then_some(())).unwrap();
    drop(vm);
    Vm::start(&table.with_guest_option("exit", "boot")).unwrap().finish().unwrap();
    fs::remove_file(&file).unwrap();
}

/// The host keeps nothing that is written to such a device.
#[test]
fn memory_of_a_device_that_is_not_armed_is_not_bound() {
    let config = Config {
        max_memory: Some(Bytes::gib(16)),
        other_objects: vec!["memory-backend-ram,id=unarmed,size=1G,reserve=off"],
        other_device_options: vec!["nvdimm,id=nvdimm1,memdev=unarmed,unarmed=on"],
        ..nvdimm(&[("nvdimm", "devdax")])
    };
    let mut vm = Vm::start(&config).unwrap();
    let error = vm.wait("end", |_| None::<()>).unwrap_err();
    assert!(matches!(&error, Error::BailOut(why) if why.contains("is not armed")), "{error}");
}

#[test]
fn an_nvdimm_is_listed_and_reconfigured_as_a_device_of_daxctl() {
    let (listed, _) = daxctl(&["list", "--nvdimm", "1G", "--nvdimm", "256M"]);
    let device = |name: &str, size: u64| json!({ "chardev": name, "size": size, "target_node": 0, "align": 2 << 20, "mode": "devdax" });
    assert_eq!(listed.unwrap(), json!([device("dax0.0", 1 << 30), device("dax1.0", 256 << 20)]));
    let to_ram = ["reconfigure-device", "--mode=system-ram", "dax0.0", "--nvdimm", "1G"];
    let (changed, said) = daxctl(&to_ram);
    let ram = json!([{
        "chardev": "dax0.0", "size": 1 << 30, "target_node": 0, "align": 2 << 20,
        "mode": "system-ram", "online_memblocks": 8, "total_memblocks": 8, "movable": true
    }]);
    assert_eq!((changed.unwrap(), said.lines().last()), (ram, Some("reconfigured 1 device")));
    // Some of the memory is in use, and moves to RAM.
    let in_use = ["--nvdimm", "256M", "--system-ram", "--touch", "24M"];
    let (none, said) =
        daxctl(&[&["reconfigure-device", "--mode=devdax", "all"], &in_use[..]].concat());
    assert!(none.is_none() && said.contains("dax0.0: the memory is online"), "{said}");
    let forced = [&["reconfigure-device", "--mode=devdax", "all", "--force"], &in_use[..]].concat();
    assert_eq!(daxctl(&forced).0.unwrap(), json!([device("dax0.0", 256 << 20)]));
}
