//! The `hotmem` command where no machine is needed: arguments and what is missing.

use std::process::{Command, Output};

fn hotmem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmem"));
    // Nothing to be found: no QEMU, no cargo.
    command.args(args).env("PATH", "").output().unwrap()
}

fn complaint(args: &[&str]) -> String {
    let output = hotmem(args);
    assert!(!output.status.success(), "{args:?} went well");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn bad_arguments_are_named() {
    let cases: [(&[&str], &str); 14] = [
        (&["vm"], "--plug"),
        (&["vm", "--plug", "64X"], "unknown unit `X`"),
        (&["vm", "--plug", "0"], "--plug"),
        (&["vm", "--plug", "3M"], "whole blocks"),
        (&["vm", "--plug", "64G", "--block-size", "3M"], "power of two"),
        (&["vm", "--plug", "64G", "--boot-memory", "1M"], "--boot-memory"),
        (&["vm", "--plug", "1G", "--touch", "2G"], "--touch"),
        (&["vm", "--plug", "1G", "--accel", "magic"], "tcg"),
        (&["vm", "--plug", "1G", "--policy", "sideways"], "online_movable"),
        (&["vm", "--plug", "1G", "--icount", "--accel", "kvm"], "--icount"),
        (
            &["vm", "--guest", "linux", "--plug", "64G", "--boot-memory", "1G"],
            "linux needs 1280MiB",
        ),
        (&["vm", "--guest", "linux", "--plug", "1000M"], "whole memory blocks of 128MiB"),
        (&["bench", "vm", "--runs", "0"], "--runs"),
        (&["bench", "vm", "--guests", "hotmem,windows"], "linux"),
    ];
    for (args, word) in cases {
        let said = complaint(args);
        assert!(said.contains(word), "{args:?}: no `{word}` in\n{said}");
    }
}

#[test]
fn a_missing_qemu_says_how_to_get_it() {
    let image = env!("CARGO_BIN_EXE_hotmem");
    let said = complaint(&["vm", "--plug", "64G", "--guest-image", image]);
    assert!(said.contains("qemu-system-x86"), "{said}");
}

#[test]
fn a_missing_image_is_named() {
    let said = complaint(&["bench", "vm", "--guest-image", "/nowhere/guest"]);
    assert!(said.contains("/nowhere/guest"), "{said}");
}
