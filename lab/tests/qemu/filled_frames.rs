//! Tests of a kernel that fills frames when it frees them. Each frame that the kernel allocates
//! must be filled. This includes frames of new memory and frames that contained the engine's
//! metadata.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::Config;

/// Plugs and unplugs memory. The guest checks each frame that it allocates, and fails if the frame
/// is not filled with `word`.
fn plug_and_unplug(word: u32, churn: &str, plugged: Bytes) {
    let config = Config { cpus: 2, ..config(plugged) }.with_touched_memory(Bytes::mib(64));
    let config = config
        .with_guest_option("poison", word)
        .with_guest_option("churn", churn)
        .with_guest_option("exit", "size:2M");
    let mut vm = start(&config);
    for size in [plugged, Bytes::mib(64), Bytes(plugged.0 / 2), Bytes::ZERO] {
        vm.resize_checked(size);
    }
    vm.finish(Bytes::mib(2));
}

#[test]
fn memory_is_filled_with_zeros_if_the_kernel_requires_it() {
    plug_and_unplug(0, "on", Bytes::gib(2));
}

#[test]
fn memory_that_comes_online_is_filled_with_the_word() {
    for churn in ["off", "on"] {
        plug_and_unplug(7, churn, Bytes::mib(512));
    }
}
