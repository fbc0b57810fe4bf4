//! Tests of CXL memory devices.

mod dynamic;

use crate::support::{config, daxctl, wait_for_touched};
use hotmem::Bytes;
use hotmem_lab::qemu::{
    Config, Cxl, CxlDevice, CxlKind, CxlMemory, CxlWindow, Dax, Emulator, Error, Event, Vm,
};
use serde_json::json;

/// The unit of windows and devices.
const UNIT: Bytes = Bytes::mib(256);

/// Returns a machine with these CXL devices. The guest binds their memory as device memory, and then
/// takes commands.
fn machine(cxl: Cxl) -> Config {
    // Volatile devices need a newer QEMU than Debian's.
    let emulator =
        Emulator::with_cxl().expect("no backport of QEMU: `cargo xtask setup` unpacks it");
    let config = Config { emulator, cxl: Some(cxl), ..config(Bytes::ZERO) };
    config.with_guest_option("cxl", "devdax").with_commands()
}

/// Returns the state of all memory.
fn list(vm: &mut Vm) -> Vec<Dax> {
    let events = vm.command("list").unwrap();
    let states = events.into_iter().filter_map(|event| match event {
        Event::Dax(dax) => Some(dax),
        _ => None,
    });
    states.collect()
}

/// Returns the reason why the guest refuses the command.
fn refusal(vm: &mut Vm, command: &str) -> String {
    match vm.command(command) {
        Err(Error::GuestRefused { reason, .. }) => reason,
        other => panic!("{command}: {other:?}"),
    }
}

/// Waits until the guest refuses a device, or a structure of the CEDT. Returns the reason.
fn refused_device(vm: &mut Vm) -> String {
    let refused = |event: &Event| match event {
        Event::CxlRefused { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    vm.wait("refusal", refused).unwrap().0
}

fn end(mut vm: Vm) {
    vm.command("end").unwrap();
    vm.finish().unwrap();
}

#[test]
fn memory_of_a_device_becomes_ram_of_a_node_of_its_own_and_goes_back_while_in_use() {
    let touched = Bytes::mib(8);
    let config = machine(Cxl::volatile(&[UNIT])).with_touched_memory(touched);
    let mut vm = Vm::start(&config.with_guest_option("release", "off")).unwrap();
    let CxlMemory { number, size, ways, node, .. } = vm.wait_for_cxl().unwrap();
    assert_eq!((number, size, ways, node), (0, UNIT, 1, 1));
    let device = Dax {
        memory: 0,
        size: UNIT.0,
        node: 1,
        align: 2 << 20,
        mode: "devdax".into(),
        online: 0,
        movable: false,
    };
    assert_eq!(list(&mut vm), std::slice::from_ref(&device));
    let ram = Dax { mode: "system-ram".into(), online: UNIT.0, movable: true, ..device.clone() };
    // In the second round the guest uses as much memory as it may, and none of the device.
    for touched in [touched, Bytes::ZERO] {
        let with = vm.reconfigure("system-ram 0").unwrap().online;
        assert_eq!(list(&mut vm), std::slice::from_ref(&ram));
        assert_eq!(refusal(&mut vm, "system-ram 0"), "the memory is online already");
        vm.command("touch").unwrap();
        assert_eq!(wait_for_touched(&mut vm), touched);
        // The memory is in use, so the guest migrates what it has there.
        assert_eq!(refusal(&mut vm, "devdax 0"), "the memory is online");
        let without = vm.reconfigure("devdax 0 force").unwrap().online;
        assert_eq!(with, without + UNIT);
        assert_eq!(list(&mut vm), std::slice::from_ref(&device));
    }
    assert_eq!(refusal(&mut vm, "devdax 0"), "the memory is device memory already");
    assert_eq!(refusal(&mut vm, "devdax 1"), "there is no such memory");
    assert!(refusal(&mut vm, "devdx 0").contains("unknown"));
    end(vm);
}

#[test]
fn memory_is_unchanged_if_its_change_is_vetoed_or_what_is_in_use_has_no_room_elsewhere() {
    // The guest uses a random run of each pageblock, more than fits into boot memory.
    let config = machine(Cxl::volatile(&[UNIT])).with_touched_memory(UNIT);
    let config = config.with_guest_option("release", "off").with_guest_option("vetoes", 1);
    let mut vm = Vm::start(&Config { boot_memory: Bytes::mib(64), ..config }).unwrap();
    vm.wait_for_cxl().unwrap();
    assert!(refusal(&mut vm, "system-ram 0").contains("asks for a veto"));
    assert_eq!(list(&mut vm)[0].mode, "devdax");
    vm.reconfigure("system-ram 0").unwrap();
    vm.command("touch").unwrap();
    wait_for_touched(&mut vm);
    assert!(refusal(&mut vm, "devdax 0 force").contains("free elsewhere"));
    assert_eq!(list(&mut vm)[0].online, UNIT.0);
    end(vm);
}

#[test]
fn offline_ram_comes_online_for_any_allocation_and_goes_back() {
    let mut vm = Vm::start(&machine(Cxl::volatile(&[UNIT]))).unwrap();
    vm.wait_for_cxl().unwrap();
    vm.reconfigure("system-ram 0 offline").unwrap();
    let state = |vm: &mut Vm| list(vm).into_iter().map(|dax| (dax.online, dax.movable)).next();
    assert_eq!(state(&mut vm), Some((0, false)));
    vm.reconfigure("system-ram 0 online_kernel").unwrap();
    assert_eq!(state(&mut vm), Some((UNIT.0, false)));
    vm.reconfigure("devdax 0 force").unwrap();
    vm.reconfigure("system-ram 0 offline").unwrap();
    vm.reconfigure("devdax 0").unwrap();
    end(vm);
}

/// Returns a volatile device below a bridge.
fn below(bridge: u8) -> CxlDevice {
    CxlDevice { size: UNIT, kind: CxlKind::Volatile, bridge }
}

#[test]
fn addresses_alternate_between_devices_below_one_bridge_and_below_two() {
    // Two devices alternate by the decoder of their bridge, two others by the window.
    let windows = [vec![0], vec![1, 2]].map(|bridges| CxlWindow { size: Bytes::mib(512), bridges });
    let devices = vec![below(0), below(1), below(0), below(2)];
    let config = machine(Cxl { devices, windows: windows.to_vec() });
    let mut vm = Vm::start(&config.with_guest_option("ways", 2)).unwrap();
    for number in 0..2 {
        let memory = vm.wait_for_cxl().unwrap();
        assert_eq!((memory.number, memory.ways, memory.size), (number, 2, Bytes::mib(512)));
        assert_eq!(memory.node, 1 + u32::try_from(number).unwrap());
    }
    // The guest checks patterns in device memory before the memory becomes RAM.
    for number in 0..2 {
        vm.reconfigure(&format!("system-ram {number}")).unwrap();
    }
    for number in 0..2 {
        vm.reconfigure(&format!("devdax {number} force")).unwrap();
    }
    end(vm);
}

#[test]
fn a_device_without_a_window_is_refused_and_affects_no_other() {
    // The window has room for one of the devices below its bridge.
    let windows = vec![CxlWindow { size: UNIT, bridges: vec![0] }];
    let mut vm = Vm::start(&machine(Cxl { devices: vec![below(0), below(0), below(1)], windows }));
    let vm = vm.as_mut().unwrap();
    assert_eq!(vm.wait_for_cxl().unwrap().number, 0);
    let reason = refused_device(vm);
    assert!(reason.contains("has no room"), "{reason}");
    assert!(refused_device(vm).contains("no window"));
    assert_eq!(list(vm).len(), 1);
}

/// Returns a structure of the CEDT: a window that is routed to bridge 12.
fn window(start: u64, len: u64) -> Vec<u8> {
    let mut raw = vec![1, 0, 40, 0, 0, 0, 0, 0];
    raw.extend([start, len].map(u64::to_le_bytes).concat());
    raw.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xf, 0, 0, 0, 12, 0, 0, 0]);
    raw
}

#[test]
fn malformed_structures_of_the_cedt_are_refused() {
    let file = std::env::temp_dir().join(format!("hotmem-cedt-{}", std::process::id()));
    // Any QEMU passes a table on. The machine has no CXL devices.
    let machine = Config {
        emulator: Emulator::Installed,
        cxl: None,
        acpi_tables: vec![("CEDT", file.clone())],
        ..machine(Cxl::default())
    };
    let gib = 1 << 30;
    for (structures, wanted) in [
        (window(0, gib), "overlaps RAM"),
        (window(4 * gib, 1), "not whole units"),
        (window(4 * gib, gib)[..20].to_vec(), "20 bytes remain"),
        ([window(4 * gib, gib), window(4 * gib, gib)].concat(), "overlaps"),
        (vec![1, 0, 4, 0], "must be 40"),
    ] {
        std::fs::write(&file, structures).unwrap();
        let mut vm = Vm::start(&machine).unwrap();
        let reason = refused_device(&mut vm);
        assert!(reason.contains(wanted), "{reason}");
        end(vm);
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn daxctl_lists_and_reconfigures_devices() {
    let (listed, _) = daxctl(&["list", "--device", "256M", "--device", "512M"]);
    let device = |name: &str, size: u64, node: u32| json!({ "chardev": name, "size": size, "target_node": node, "align": 2 << 20, "mode": "devdax" });
    let both = [device("dax0.0", 256 << 20, 1), device("dax1.0", 512 << 20, 2)];
    assert_eq!(listed.unwrap(), json!(both));
    let (changed, said) = daxctl(&["reconfigure-device", "--mode=system-ram", "-u", "dax0.0"]);
    let ram = json!({
        "chardev": "dax0.0", "size": "256.00 MiB (268.44 MB)", "target_node": 1,
        "align": "2097152", "mode": "system-ram",
        "online_memblocks": 2, "total_memblocks": 2, "movable": true
    });
    assert_eq!((changed.unwrap(), said.lines().last()), (ram, Some("reconfigured 1 device")));
    let (none, said) = daxctl(&["reconfigure-device", "--mode=devdax", "all", "--system-ram"]);
    assert!(none.is_none() && said.contains("dax0.0: the memory is online"), "{said}");
}
