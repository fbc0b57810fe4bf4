//! Tests that the reference guest checks QEMU's devices over PCI and over MMIO, and finds what the adapter
//! of `hotmem-conformance` for QEMU finds without a guest.

use crate::support::config;
use hotmem::Bytes;
use hotmem_lab::conformance::Results;
use hotmem_lab::patience;
use hotmem_lab::qemu::{Balloon, Config, Transport, Vm};
use std::process::Command;
use std::{env, fs};

const MEMORY: &str = include_str!("conformance/memory.txt");
const BALLOON: &str = include_str!("conformance/balloon.txt");
const UNMAPPED: &str = include_str!("conformance/unmapped.txt");
/// The size of the memory device's region, which has 64 blocks.
const REGION: Bytes = Bytes::mib(128);

/// Checks the device. At most `skipped` points may be skipped.
fn check(device: &str, config: Config, expected: &str, points: usize, skipped: usize) {
    let config = config.with_guest_option("check", device);
    let mut vm = Vm::start(&config).unwrap();
    let results = Results::collect(&mut vm, config.boot_memory).unwrap();
    assert_eq!(results.differences(expected), [""; 0]);
    let counts = results.counts();
    assert_eq!(counts.iter().sum::<usize>(), points, "{results:?}");
    assert!(counts[2] <= skipped, "{results:#?}");
}

#[test]
fn a_guest_checks_the_memory_device_over_pci() {
    check("memory", config(REGION), MEMORY, 54, 4);
}

#[test]
fn a_guest_checks_the_memory_device_over_mmio() {
    let config = config(REGION);
    let config = Config { machine: "microvm,acpi=off", transport: Transport::Mmio, ..config };
    check("memory", config, &format!("{MEMORY}{UNMAPPED}"), 54, 4);
}

#[test]
fn a_guest_checks_the_balloon_over_pci() {
    let config = Config { balloon: Balloon::Everything, ..config(Bytes::ZERO) };
    check("balloon", config, BALLOON, 23, 6);
}

/// Runs the script and the command of docs/vmm.md, with other known failures. Returns whether the script
/// passes, and its output.
fn run_script(name: &str, known: &str) -> (bool, String) {
    let page = include_str!("../../../docs/vmm.md");
    let (_, script) = page.split_once("```python\n").unwrap();
    let (script, page) = script.split_once("```").unwrap();
    let (_, command) = page.split_once("```text\n").unwrap();
    let (command, _) = command.split_once("```").unwrap();
    // The first line builds the guest, which is built already.
    let (_, command) = command.split_once('\n').unwrap();
    let kernel = config(REGION).kernel;
    let command = command
        .replace("target/x86_64-unknown-none/release/hotmem-guest", kernel.to_str().unwrap())
        .replace("transport/features-unknown-bit-refused,", known);
    let dir = env::temp_dir().join(format!("hotmem-check-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("check.py"), script).unwrap();
    let output = Command::new("sh").args(["-c", &command]).current_dir(&dir).output().unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_script_of_the_document_passes_with_the_known_failures() {
    let (passes, text) = run_script("known", "transport/features-unknown-bit-refused,");
    assert!(passes, "{text}");
    let counts =
        "# points: 54, passed: 48, failed: 0, known failures: 3, skipped: 3\n1..55\nhotmem: PASS";
    assert!(text.contains(counts), "{text}");
}

#[test]
fn the_script_of_the_document_fails_with_a_failure_that_is_not_known() {
    let (passes, text) = run_script("unknown", "");
    assert!(!passes, "{text}");
    assert!(text.contains("failed: 1, known failures: 2"), "{text}");
}

/// Checks the memory device while nobody carries out what the guest wants. Returns the report's end.
fn check_without_host(config: &Config) -> Vec<String> {
    let mut vm = Vm::start(config).unwrap();
    let mut lines = Vec::new();
    loop {
        let line = vm.wait_for_line("line", patience(), |line| Some(line.to_owned())).unwrap().0;
        let is_last = line.starts_with("hotmem: ");
        lines.push(line);
        if is_last {
            return lines.split_off(lines.len().saturating_sub(4));
        }
    }
}

#[test]
fn a_run_without_a_host_fails_unless_the_operator_allows_it() {
    let known = "transport/features-unknown-bit-refused,\
                 mem/queue/unknown-type-does-not-lose-others,transport/generation-after-plug";
    let config = config(REGION).with_guest_option("check", "memory");
    let config = config.with_guest_option("check_known", known);
    let end = check_without_host(&config);
    let reason = "no one carried out `# host: requested-size ";
    assert!(end[0].starts_with("not ok ") && end[0].contains(reason), "{end:#?}");
    assert_eq!(end[3], "hotmem: FAIL");
    let end = check_without_host(&config.with_guest_option("check_host", "off"));
    assert!(end[1].contains("failed: 0, "), "{end:#?}");
    assert_eq!(end[3], "hotmem: PASS");
}
