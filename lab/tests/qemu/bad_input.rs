//! Tests that the guest or QEMU reports invalid options.

use crate::support::{check_that_overflows_are_reported, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Error, Vm};

/// Starts a machine that must fail, and returns the error.
fn error_of(config: &Config) -> Error {
    let result =
        Vm::start(config).and_then(|mut vm| vm.wait("event that does not occur", |_| None::<()>));
    result.unwrap_err()
}

#[test]
fn an_invalid_key_or_value_ends_the_guest_with_an_error_that_names_it() {
    for (key, value) in [("tuch", "1G"), ("touch", "much"), ("exit", "now"), ("watchdog", "0")] {
        match error_of(&config(Bytes::gib(1)).with_guest_option(key, value)) {
            Error::BailOut(reason) => assert!(reason.contains(key), "{reason}"),
            Error::Failed(Some(failed_check)) => {
                assert!(failed_check.contains(key), "{failed_check}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn an_overflow_of_a_cpus_stack_ends_the_run_with_that_reason() {
    check_that_overflows_are_reported(&config(Bytes::gib(1)));
}

#[test]
fn the_error_has_the_message_of_qemu() {
    let no_kernel = Config { kernel: "/nowhere/kernel".into(), ..config(Bytes::gib(1)) };
    let message = error_of(&no_kernel).to_string();
    assert!(message.contains("/nowhere/kernel"), "{message}");

    let invalid_block = Config { block_size: Bytes::mib(3), ..config(Bytes::gib(1)) };
    let message = error_of(&invalid_block).to_string();
    assert!(message.contains("block-size"), "{message}");
}

#[test]
fn qemu_refuses_a_target_that_is_not_a_multiple_of_the_block_size() {
    let mut vm = start(&config(Bytes::gib(1)));
    let refusal = vm.request(Bytes(4096)).unwrap_err();
    assert!(matches!(refusal, Error::Refused { .. }), "{refusal}");
    vm.resize_checked(Bytes::gib(1));
}

#[test]
fn the_error_has_the_guests_reason_even_if_the_monitor_fails_first() {
    let mut vm = Vm::start(&config(Bytes::gib(1)).with_guest_option("tuch", "1G")).unwrap();
    let error = loop {
        if let Err(error) = vm.device_size() {
            break error;
        }
    };
    assert!(matches!(error, Error::BailOut(_) | Error::Failed(_)), "{error}");
}

#[test]
fn the_call_after_a_request_to_an_ended_machine_fails() {
    let mut vm = Vm::start(&config(Bytes::gib(1))).unwrap();
    // QEMU may end before it answers the command.
    let _ = vm.query_monitor("quit");
    while vm.device_size().is_ok() {}
    vm.request(Bytes::gib(1)).unwrap();
    let error = vm.finish().unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
}
