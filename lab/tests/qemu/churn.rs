//! Tests in which all CPUs allocate and free while memory is plugged and unplugged.

use crate::support::{config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Balloon, Config};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Free memory is reported meanwhile, so some of it is known to be zero. The guest reads each such frame
/// when it allocates it, and fails if a byte of it is not zero.
#[test]
fn four_cpus_lose_and_share_no_frame_while_memory_is_resized() {
    let (block, blocks) = (Bytes::mib(2), 1024);
    let config = Config { cpus: 4, balloon: Balloon::Reports, ..config(Bytes(block.0 * blocks)) };
    let config = config
        .with_touched_memory(Bytes::mib(32))
        .with_guest_option("churn", "on")
        .with_guest_option("zero", "reported")
        .with_guest_option("heap", "2M");
    let config = config.with_guest_option("exit", "size:2M");
    let mut vm = start(&config);
    let mut random = SmallRng::seed_from_u64(0x4370_7573);
    let resizes = if std::env::var_os("HOTMEM_DEEP").is_some() { 1000 } else { 60 };
    for _ in 0..resizes {
        vm.resize_checked(Bytes(block.0 * random.random_range(2..=blocks)));
    }
    // All memory can be unplugged only if no frame is lost.
    vm.resize_checked(Bytes::ZERO);
    vm.finish(block);
}

#[test]
fn nmis_allocate_and_free_while_they_interrupt_allocations_and_frees() {
    let (block, blocks) = (Bytes::mib(2), 512);
    let config = Config { cpus: 4, ..config(Bytes(block.0 * blocks)) };
    let config = config
        .with_touched_memory(Bytes::mib(32))
        .with_guest_option("churn", "on")
        .with_guest_option("nmis", "on");
    let mut vm = start(&config.with_guest_option("exit", "size:2M"));
    let mut random = SmallRng::seed_from_u64(0x004e_4d49);
    let resizes = if std::env::var_os("HOTMEM_DEEP").is_some() { 300 } else { 12 };
    for _ in 0..resizes {
        let target = Bytes(block.0 * random.random_range(2..=blocks));
        vm.request(target).unwrap();
        for _ in 0..16 {
            vm.monitor_line("nmi").unwrap();
        }
        vm.resize_checked(target);
    }
    vm.resize_checked(Bytes::ZERO);
    // The guest fails if no NMI interrupted an allocation or a free.
    vm.finish(block);
}
