//! Runs the command of docs/guest.md, as a visitor types it.

use hotmem_lab::{patience, qemu::image};
use std::process::Command;

#[test]
fn the_command_of_the_page_plugs_memory_and_passes() {
    let page = include_str!("../../../docs/guest.md");
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let command = block.strip_prefix("cargo xtask guest\n").unwrap();
    let image = image::find(None).unwrap();
    let command = command.replace("target/images/hotmem-guest-x86_64", image.to_str().unwrap());
    let limit = format!("timeout {} {command}", patience().as_secs());
    let output = Command::new("sh").args(["-c", &limit]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["ok 2 - plug 512MiB", "touched 64MiB, all found as written", "\nhotmem: PASS"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert_eq!(output.status.code(), Some(33), "{text}");
}
