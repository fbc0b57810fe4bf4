//! Tests of a kernel that fills frames when it frees them. Every frame that it allocates must be
//! filled, including new frames and frames that the engine used for itself.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::Config;

/// Plugs and unplugs memory. The guest checks each frame that it allocates, and fails if one is not
/// filled.
fn plug_and_unplug(word: u32, churn: &str, plugged: Bytes) {
    let config = Config { cpus: 2, ..config(plugged) }.touching(Bytes::mib(64));
    let config = config.with("poison", word).with("churn", churn).with("exit", "size:2M");
    let mut vm = start(&config);
    for size in [plugged, Bytes::mib(64), Bytes(plugged.0 / 2), Bytes::ZERO] {
        vm.resize_checked(size);
    }
    vm.finish(Bytes::mib(2));
}

#[test]
fn memory_that_the_engine_frees_is_zeroed_if_the_kernel_requires_it() {
    plug_and_unplug(0, "on", Bytes::gib(2));
}

#[test]
fn memory_that_comes_online_is_filled() {
    for churn in ["off", "on"] {
        plug_and_unplug(7, churn, Bytes::mib(512));
    }
}
