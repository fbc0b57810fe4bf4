//! Tests that wrong options are reported, by the guest or by QEMU.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Vm};

/// Starts a machine that must fail to start, and returns the error.
fn refused(config: &Config) -> Error {
    let end =
        Vm::start(config).and_then(|mut vm| vm.wait("event that never comes", |_| None::<()>));
    end.unwrap_err()
}

#[test]
fn a_misspelt_key_fails_the_guest() {
    for (key, value) in [("tuch", "1G"), ("touch", "much"), ("exit", "now"), ("watchdog", "0")] {
        match refused(&config(Bytes::gib(1)).with(key, value)) {
            Error::BailOut(why) => assert!(why.contains(key), "{why}"),
            Error::Failed(Some(point)) => assert!(point.contains(key), "{point}"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn qemus_error_message_is_passed_on() {
    let no_kernel = Config { kernel: "/nowhere/kernel".into(), ..config(Bytes::gib(1)) };
    let complaint = refused(&no_kernel).to_string();
    assert!(complaint.contains("/nowhere/kernel"), "{complaint}");

    let odd_block = Config { block_size: Bytes::mib(3), ..config(Bytes::gib(1)) };
    let complaint = refused(&odd_block).to_string();
    assert!(complaint.contains("block-size"), "{complaint}");
}

#[test]
fn a_target_that_is_no_multiple_of_the_block_is_refused_by_qemu() {
    let mut vm = start(&config(Bytes::gib(1)));
    let refusal = vm.request(Bytes(4096)).unwrap_err();
    assert!(matches!(refusal, Error::Refused { .. }), "{refusal}");
    vm.resize_checked(Bytes::gib(1));
}

#[test]
fn a_guests_reason_for_giving_up_is_reported_even_if_the_monitor_fails_first() {
    let mut vm = Vm::start(&config(Bytes::gib(1)).with("tuch", "1G")).unwrap();
    let end = loop {
        if let Err(end) = vm.device_size() {
            break end;
        }
    };
    assert!(matches!(end, Error::BailOut(_) | Error::Failed(_)), "{end}");
}

#[test]
fn a_request_to_an_ended_machine_fails_at_the_next_call() {
    let mut vm = Vm::start(&config(Bytes::gib(1))).unwrap();
    // QEMU may end before it answers.
    let _ = vm.ask_monitor("quit");
    while vm.device_size().is_ok() {}
    vm.request(Bytes::gib(1)).unwrap();
    let end = vm.finish().unwrap_err();
    assert!(matches!(end, Error::Ended { .. }), "{end}");
}
