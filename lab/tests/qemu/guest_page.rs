//! Runs the commands of docs/guest.md, as a visitor types them.

use hotmem_lab::{patience, qemu::image};
use std::{fs, path::Path, process::Command};

/// Returns the page's command that has this text, with the guest that was built.
fn command_with(text: &str) -> String {
    let page = include_str!("../../../docs/guest.md");
    let mut blocks = page.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    let command = blocks.find(|block| block.contains(text)).unwrap();
    let command = command.trim_start_matches("cargo xtask guest\n");
    let image = image::find(None).unwrap().canonicalize().unwrap();
    command.replace("target/images/hotmem-guest-x86_64", image.to_str().unwrap()).replace(
        "qemu-system-x86_64",
        &format!("timeout {} qemu-system-x86_64", patience().as_secs()),
    )
}

#[test]
fn the_command_of_the_page_plugs_memory_and_passes() {
    let output = Command::new("sh").args(["-c", &command_with("virtio-mem-pci")]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["ok 2 - plug 512MiB", "touched 64MiB, all found as written", "\nhotmem: PASS"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert_eq!(output.status.code(), Some(33), "{text}");
}

#[test]
fn the_balloon_of_the_page_is_inflated_and_takes_reports() {
    let inflate = command_with("echo balloon");
    let report = inflate.replace("exit=inflations:1", "exit=reported:64M");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (command, point) in [(inflate, " - inflate 32MiB\n"), (report, " requests answered\n")] {
        let run = Command::new("sh").args(["-c", &command]).current_dir(dir).output().unwrap();
        let text = fs::read_to_string(dir.join("guest.log")).unwrap();
        assert!(text.contains(point) && text.contains("\nhotmem: PASS"), "{text}");
        assert_eq!(run.status.code(), Some(33), "{text}");
    }
}
