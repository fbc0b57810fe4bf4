//! Tests of persistent memory. The guest checks every descriptor and its data, and fails if
//! anything is wrong.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Event, Vm};
use std::fs;

const SIZE: Bytes = Bytes::gib(1);
const REBINDS: usize = 30;
/// The frames for data of a device that holds its own descriptors of 64 bytes. Each pageblock of
/// data needs eight frames of descriptors, so 502 or 503 of 512 pageblocks are left.
const DATA: std::ops::RangeInclusive<u64> = 502 * 512..=503 * 512;

/// The guest's figures for one bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    frames: u64,
    map: u64,
    saved: u64,
    written: u64,
}

fn nvdimm(keys: &[(&str, &str)]) -> Config {
    let config = Config { nvdimms: vec![SIZE], ..config(Bytes::ZERO).with("exit", "nvdimm") };
    keys.iter().fold(config, |config, (key, value)| config.with(key, value))
}

/// Runs a machine with one device until the guest ends. Returns the figures of its binds, which
/// must all be equal, and the number of descriptors that it checked in the last.
fn run(config: &Config, binds: usize) -> (Bound, u64) {
    let mut vm = Vm::start(config).unwrap();
    let found = |event: &Event| match *event {
        Event::Nvdimm { size, .. } => Some(size),
        _ => None,
    };
    assert_eq!(vm.wait("persistent memory", found).unwrap().0, config.nvdimms[0].0);
    let mut all = Vec::new();
    let mut looked = 0;
    for _ in 0..binds {
        let bound = |event: &Event| match *event {
            Event::Bound { frames, map, saved, written, .. } => {
                Some(Bound { frames, map, saved, written })
            }
            _ => None,
        };
        all.push(vm.wait("bind", bound).unwrap().0);
        let checked = |event: &Event| match *event {
            Event::Checked { descriptors, data, .. } => Some((descriptors, data)),
            _ => None,
        };
        let (descriptors, data) = vm.wait("check", checked).unwrap().0;
        assert!(data > 200, "{data}");
        looked = descriptors;
    }
    vm.finish().unwrap();
    assert!(all.iter().all(|bound| *bound == all[0]), "{all:?}");
    (all[0], looked)
}

fn described_on_the_device_again_and_again(mode: &str) {
    let (bound, looked) = run(&nvdimm(&[("nvdimm", mode)]), 1 + REBINDS);
    assert!(DATA.contains(&bound.frames), "{bound:?}");
    assert_eq!((bound.map, bound.written, bound.saved), (bound.frames * 64, bound.frames * 64, 0));
    assert_eq!(looked, bound.frames);
}

#[test]
fn single_frames_are_described_on_the_device_again_and_again() {
    described_on_the_device_again_and_again("fsdax");
}

#[test]
fn compounds_are_described_on_the_device_again_and_again() {
    described_on_the_device_again_and_again("devdax");
}

#[test]
fn compounds_of_a_gibibyte_are_described() {
    let gib = Bytes::gib(1);
    let devdax = nvdimm(&[("nvdimm", "devdax"), ("align", "1G"), ("rebinds", "2")]);
    let in_memory = devdax.clone().with("map", "mem");
    let each = Bound { frames: gib.frames(), map: 16 << 20, saved: 0, written: 16 << 20 };
    // The descriptors lie on the device and leave room for one of its two compounds.
    let two = Config { nvdimms: vec![Bytes::gib(2)], ..devdax };
    assert_eq!(run(&two, 3), (each, gib.frames()));
    assert_eq!(run(&in_memory, 3), (each, gib.frames()));
    let shared = Bound { map: 2 << 12, saved: (16 << 20) - (2 << 12), written: 1 << 12, ..each };
    assert_eq!(run(&in_memory.with("tails", "shared"), 3), (shared, gib.frames()));
}

#[test]
fn compounds_are_described_in_ordinary_memory() {
    let keys = [("nvdimm", "devdax"), ("map", "mem"), ("rebinds", "2")];
    let (bound, looked) = run(&nvdimm(&keys), 3);
    assert_eq!(bound, Bound { frames: SIZE.frames(), map: 16 << 20, saved: 0, written: 16 << 20 });
    assert_eq!(looked, bound.frames);
}

#[test]
fn shared_tails_leave_one_frame_of_descriptors_in_eight() {
    for (map, least) in [("dev", 510), ("mem", 512)] {
        let keys = [("nvdimm", "devdax"), ("tails", "shared"), ("map", map), ("rebinds", "2")];
        let (bound, looked) = run(&nvdimm(&keys), 3);
        let compounds = bound.frames / 512;
        assert!((least..=512).contains(&compounds), "{bound:?}");
        // One more page is shared by all tails.
        assert_eq!((bound.map, bound.written), ((compounds + 1) << 12, compounds << 12));
        assert_eq!(bound.saved, (compounds * 7 - 1) << 12);
        assert_eq!(looked, bound.frames);
    }
}

#[test]
fn several_devices_with_parts_of_sections_are_bound_at_once() {
    let sizes = [130, 66, 4].map(Bytes::mib);
    // Each device loses a pageblock to its own descriptors, or none.
    for (map, tails, without) in [("dev", "shared", 512), ("mem", "own", 0)] {
        let keys = [("nvdimm", "devdax"), ("map", map), ("tails", tails), ("rebinds", "2")];
        let mut vm = Vm::start(&Config { nvdimms: sizes.to_vec(), ..nvdimm(&keys) }).unwrap();
        let mut seen = Vec::new();
        for _ in sizes {
            let found = |event: &Event| match *event {
                Event::Nvdimm { device, size, .. } => Some((device, Bytes(size))),
                _ => None,
            };
            seen.push(vm.wait("persistent memory", found).unwrap().0);
        }
        for _ in 0..3 {
            for &(device, size) in &seen {
                let bound = |event: &Event| match *event {
                    Event::Bound { device, frames, .. } => Some((device, frames)),
                    _ => None,
                };
                let bound = vm.wait("bind", bound).unwrap().0;
                assert_eq!(bound, (device, size.frames() - without));
            }
            for &(device, size) in &seen {
                let checked = |event: &Event| match *event {
                    Event::Checked { device, data, .. } => Some((device, data)),
                    _ => None,
                };
                let (number, data) = vm.wait("check", checked).unwrap().0;
                assert_eq!(number, device);
                assert!(data >= 256.min(size.frames() - without), "{data}");
            }
        }
        vm.finish().unwrap();
        assert_eq!(seen.iter().map(|&(device, _)| device).collect::<Vec<_>>(), [0, 1, 2]);
        seen.sort_by_key(|&(_, size)| size);
        assert_eq!(
            seen.iter().map(|&(_, size)| size).collect::<Vec<_>>(),
            [4, 66, 130].map(Bytes::mib)
        );
    }
}

/// Waits for a change of the device's mode. Returns how much memory is online and free then.
fn reconfigured(vm: &mut Vm, wanted: &str) -> (u64, u64) {
    let reconfigured = |event: &Event| match event {
        Event::Reconfigured { mode, online, free, .. } => Some((mode.clone(), (*online, *free))),
        _ => None,
    };
    let ((mode, counts), _) = vm.wait("change of mode", reconfigured).unwrap();
    assert_eq!(mode, wanted);
    counts
}

#[test]
fn a_device_becomes_ram_and_a_device_again() {
    let touched = Bytes::mib(32);
    // The guest frees its memory first, or moves it elsewhere; the memory is for any use; it has
    // descriptors while it is RAM.
    for keys in [
        [("release", "on"), ("online", "online_movable")],
        [("release", "off"), ("online", "online_kernel")],
        [("release", "off"), ("online", "online")],
        [("release", "off"), ("descriptors", "64")],
    ] {
        let config = nvdimm(&[("nvdimm", "system_ram"), ("rebinds", "2")]).with("touch", touched.0);
        let config = keys.into_iter().fold(config, |config, (key, value)| config.with(key, value));
        let mut vm = Vm::start(&config).unwrap();
        for _ in 0..3 {
            let (online, free) = reconfigured(&mut vm, "system_ram");
            assert!(online > SIZE.0 && free > SIZE.0 + touched.0, "{online} {free}");
            let used = |event: &Event| match *event {
                Event::Touched { bytes, .. } => Some(bytes),
                _ => None,
            };
            assert_eq!(vm.wait("use", used).unwrap().0, touched.0);
            let (left, _) = reconfigured(&mut vm, "device");
            assert_eq!(online - left, SIZE.0);
        }
        vm.finish().unwrap();
    }
}

#[test]
fn a_device_becomes_ram_that_stays_offline_and_a_device_again() {
    let keys =
        [("nvdimm", "system_ram"), ("online", "offline"), ("touch", "32M"), ("rebinds", "2")];
    let mut vm = Vm::start(&nvdimm(&keys)).unwrap();
    for _ in 0..3 {
        let (online, _) = reconfigured(&mut vm, "system_ram");
        assert_eq!(reconfigured(&mut vm, "device").0, online);
    }
    vm.finish().unwrap();
}

#[test]
fn memory_in_use_is_not_converted_back() {
    // The guest uses more than fits into the rest of its memory.
    let keys = [("nvdimm", "system_ram"), ("release", "off"), ("touch", "256M")];
    let mut vm = Vm::start(&nvdimm(&keys)).unwrap();
    reconfigured(&mut vm, "system_ram");
    let end = vm.wait("end", |event| matches!(event, Event::Unbound { .. }).then_some(()));
    match end {
        Err(Error::BailOut(why)) => assert!(why.contains("free elsewhere"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Returns the reason for which the guest fails.
fn refused(config: &Config) -> String {
    let end = Vm::start(config).and_then(|mut vm| {
        vm.wait("bind", |event| matches!(event, Event::Bound { .. }).then_some(()))
    });
    match end {
        // Before it reports the reason, it has checked that nothing has changed.
        Err(Error::BailOut(why)) if !why.contains("partly bound") => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_binding_that_does_not_fit_is_refused() {
    let fsdax = nvdimm(&[("nvdimm", "fsdax")]);
    let why = refused(&Config { nvdimms: Vec::new(), ..fsdax.clone() });
    assert!(why.contains("no persistent memory"), "{why}");
    let why = refused(&fsdax.clone().with("tails", "shared"));
    assert!(why.contains("no more than one frame"), "{why}");
    // The device is too small for its descriptors and a pageblock of data.
    let why = refused(&Config { nvdimms: vec![Bytes::mib(2)], ..fsdax.clone() });
    assert!(why.contains("no room for data"), "{why}");
    let devdax = nvdimm(&[("nvdimm", "devdax"), ("align", "1G")]);
    let why = refused(&devdax);
    assert!(why.contains("no room for data"), "{why}");
    let small = Config { nvdimms: vec![Bytes::mib(512)], ..devdax.with("map", "mem") };
    let why = refused(&small);
    assert!(why.contains("does not consist of whole pages"), "{why}");
    // Descriptors of 8 GiB would take all of the machine's 128 MiB.
    let why = refused(&Config { nvdimms: vec![Bytes::gib(8)], ..fsdax.with("map", "mem") });
    assert!(why.contains("no memory for descriptors"), "{why}");
}

/// Returns the NFIT structure that describes a range of persistent memory.
fn range(base: u64, len: u64) -> Vec<u8> {
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
    let good = range(4 << 30, 1 << 30);
    let torn = good[..40].to_vec();
    let mut elsewhere = good.clone();
    // Its proximity domain is valid, and no other range is in it.
    (elsewhere[6], elsewhere[13]) = (2, 0xff);
    let endless = [good.clone(), vec![1, 0, 0, 0]].concat();
    let file = std::env::temp_dir().join(format!("hotmem-nfit-{}", std::process::id()));
    let table = Config {
        acpi_tables: vec![("NFIT", file.clone())],
        ..config(Bytes::ZERO).with("exit", "nvdimm")
    };
    for (structures, reason) in [
        (torn, "no structure of 56 bytes"),
        (endless, "no structure of 0 bytes"),
        (range(0x10_0000, 1 << 30), "overlaps RAM"),
        ([good.clone(), range(5 << 30, 1 << 30), good].concat(), "overlap"),
        (range(4 << 30, 0x800), "not whole frames"),
        (range(u64::MAX << 12, 1 << 30), "not whole frames"),
    ] {
        // The table's reserved field comes first.
        fs::write(&file, [vec![0; 4], structures].concat()).unwrap();
        let why = refused(&table.clone().with("nvdimm", "fsdax"));
        assert!(why.contains(reason), "{why}");
    }
    fs::write(&file, [vec![0; 4], elsewhere].concat()).unwrap();
    let mut vm = Vm::start(&table.clone().with("nvdimm", "fsdax")).unwrap();
    // Any node is accepted. There is no memory at these addresses, which the guest finds later.
    vm.wait("bind", |event| matches!(event, Event::Bound { .. }).then_some(())).unwrap();
    drop(vm);
    Vm::start(&table.with("exit", "boot")).unwrap().finish().unwrap();
    fs::remove_file(&file).unwrap();
}
