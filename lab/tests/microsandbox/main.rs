//! Tests of the reference guest on the VMM of microsandbox, which needs KVM. Unlike QEMU, this VMM boots it
//! by Linux's 64-bit boot protocol, describes its CPUs by an MP table and its devices by the command line,
//! and can leave out the 8259 and the 8254.

use hotmem::Bytes;
use hotmem_lab::conformance::Results;
use hotmem_lab::microsandbox::{self, BLOCK_SIZE, Config};
use hotmem_lab::patience;
use hotmem_lab::qemu::{Event, Resize, Vm, image};
use hotmem_lab::resident;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

static KERNEL: LazyLock<PathBuf> = LazyLock::new(|| image::find(None).expect("the guest"));
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| microsandbox::find().expect("the program"));

/// The sizes are small, because on a host that is itself a virtual machine, each first write to a page takes
/// long.
const SIZE: Bytes = Bytes::mib(128);

fn config() -> Config {
    let config = Config::new(PROGRAM.clone(), KERNEL.clone(), SIZE);
    let config = Config { patience: patience(), ..config };
    // The guest's watchdog ends before that, and names the operation that hangs.
    let config = config.with_guest_option("watchdog", patience().as_secs() * 4 / 5);
    config.with_guest_option("exit", format!("size:{}", BLOCK_SIZE.0))
}

fn start(config: &Config) -> Vm {
    let mut vm = Vm::start(config).unwrap();
    let is_device = |event: &Event| matches!(event, Event::Device { .. }).then_some(());
    vm.wait("device", is_device).unwrap();
    vm
}

fn resize_checked(vm: &mut Vm, target: Bytes) -> Resize {
    let resize = vm.resize(target).unwrap();
    assert_eq!(vm.device_size().unwrap(), target);
    resize
}

/// Makes the last request, and waits for the guest's verdict PASS.
fn finish(mut vm: Vm) {
    vm.request(BLOCK_SIZE).unwrap();
    vm.finish().unwrap();
}

#[test]
fn the_guest_plugs_and_unplugs_memory_at_the_vmms_interrupts() {
    let mut vm = start(&config());
    let sizes = [Bytes::mib(64), SIZE, Bytes::mib(32), Bytes::ZERO];
    let resizes = sizes.map(|size| resize_checked(&mut vm, size));
    let boot_memory = resizes[3].online;
    let online = resizes.map(|resize| resize.online);
    assert_eq!(online, sizes.map(|size| boot_memory + size));
    // A busy guest may look at the device before the interrupt arrives.
    assert!(resizes.iter().any(|resize| resize.interrupted), "no interrupt arrived");
    finish(vm);
}

#[test]
fn the_guest_plugs_and_unplugs_memory_without_8259_and_8254() {
    let mut vm = start(&Config { split_irqchip: true, ..config() });
    for target in [SIZE, Bytes::ZERO] {
        resize_checked(&mut vm, target);
    }
    finish(vm);
}

/// The second CPU is found by the MP table.
#[test]
fn pages_that_another_cpu_writes_to_are_migrated_before_memory_is_unplugged() {
    let memory = Bytes::mib(1);
    let config = Config { cpus: 2, ..config() };
    let mut vm = start(&config.with_guest_option("writers", memory.0));
    let migrated = |event: &Event| match *event {
        Event::Written { moved, .. } => Some(Bytes(moved)),
        _ => None,
    };
    resize_checked(&mut vm, SIZE);
    let (before, _) = vm.wait("report of the writes", migrated).unwrap();
    resize_checked(&mut vm, Bytes::ZERO);
    let (after, _) = vm.wait("report of the writes", migrated).unwrap();
    assert!(after >= before + memory, "{before} {after}");
    finish(vm);
}

/// The guest reads its patterns before it frees them, and the VMM must discard what is reported.
#[test]
fn the_host_gets_back_memory_that_the_guest_has_used_and_reported() {
    let used = Bytes::mib(64);
    let config = Config { balloon: true, ..config() }.with_touched_memory(used);
    let mut vm = start(&config.with_guest_option("hold", "off"));
    let resident = |vm: &Vm| resident::proportional(vm.pid()).expect("the VMM has ended");
    resize_checked(&mut vm, SIZE);
    let at_start = resident(&vm);
    let freed = |event: &Event| matches!(event, Event::Freed { .. }).then_some(());
    vm.wait("end of the guest's work", freed).unwrap();
    let reported = |event: &Event| matches!(event, Event::Reported { .. }).then_some(());
    vm.wait("reports", reported).unwrap();
    let (kept, limit) = (resident(&vm), at_start + Bytes(used.0 / 2));
    assert!(kept < limit, "{at_start} were resident before the guest used {used}, and now {kept}");
    finish(vm);
}

/// The VMM names its devices only on the command line of the first kernel, which passes them on.
#[test]
fn the_next_kernel_adopts_plugged_memory() {
    let plugged = Bytes::mib(64);
    let mut config = config().with_guest_option("exit", "resizes:1");
    config.append.extend(["--".to_owned(), format!("hotmem.exit=size:{}", BLOCK_SIZE.0)]);
    let mut vm = start(&Config { initrd: Some(KERNEL.clone()), ..config });
    resize_checked(&mut vm, plugged);
    let device = |event: &Event| match *event {
        Event::Device { plugged, .. } => Some(Bytes(plugged)),
        _ => None,
    };
    assert_eq!(vm.wait("device of the next kernel", device).unwrap().0, plugged);
    let resized = |event: &Event| match *event {
        Event::Resized { online, .. } => Some(Bytes(online)),
        _ => None,
    };
    assert!(vm.wait("adoption", resized).unwrap().0 > plugged);
    assert_eq!(vm.device_size().unwrap(), plugged);
    resize_checked(&mut vm, Bytes::mib(32));
    finish(vm);
}

#[test]
#[ignore = "it takes minutes on a host that is itself a virtual machine"]
fn the_guest_checks_the_memory_device() {
    let config = Config { device_memory: Bytes::mib(32), ..config() };
    let config = config.with_guest_option("check", "memory");
    let mut vm = Vm::start(&config).unwrap();
    let results = Results::collect(&mut vm, config.boot_memory).unwrap();
    assert_eq!(results.differences(include_str!("memory.txt")), [""; 0]);
    assert_eq!(results.counts().iter().sum::<usize>(), 54, "{results:?}");
}

#[test]
fn the_command_vm_runs_this_vmm() {
    LazyLock::force(&KERNEL);
    LazyLock::force(&PROGRAM);
    let args = ["vm", "--vmm", "microsandbox", "--plug", "64M", "--touch", "2M", "--unplug"];
    let output = Command::new(env!("CARGO_BIN_EXE_hotmem")).args(args).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["plug", "touch", "unplug", "PASS"] {
        assert!(stdout.contains(part), "no `{part}` in\n{stdout}");
    }
}
