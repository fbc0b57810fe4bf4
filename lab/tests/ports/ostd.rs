//! Tests of OSTD with Hotmem as its only frame allocator.

use crate::kernel::{TestedKernel, assert_is_ram_of};
use hotmem::Bytes;
use hotmem_lab::{
    port::{self, Kernel},
    qemu::Config,
};

pub(crate) const OSTD: TestedKernel = TestedKernel(port::OSTD);

#[test]
fn memory_is_plugged_used_for_segments_and_unplugged() {
    OSTD.plugs_and_unplugs(Bytes::gib(4));
}

/// Of 3 GiB, 1 GiB is above 4 GiB. OSTD maps memory up to the end of the last RAM, and cannot read
/// ACPI tables above that end.
#[test]
fn ostd_boots_with_memory_above_4_gib_and_without_a_device() {
    let boot_memory = Bytes::gib(3);
    assert_is_ram_of(
        TestedKernel(Kernel { boot_memory, ..OSTD.0 }).boot(true).unwrap(),
        boot_memory,
    );
}

#[test]
fn a_cpu_without_fsgsbase_is_refused() {
    let reason = OSTD.refuses(|config| Config { cpu: Some("qemu64"), ..config });
    assert!(reason.contains("no FSGSBASE"), "{reason}");
}

#[test]
fn free_memory_is_returned_to_the_host() {
    OSTD.reports_free_memory();
}

#[test]
fn a_balloon_inflates_and_returns_memory_to_the_host() {
    OSTD.inflates_a_balloon();
}

#[test]
fn requests_to_a_busy_device_are_made_again() {
    OSTD.recovers_from_a_busy_device();
}

#[test]
fn memory_in_use_is_not_unplugged_until_it_is_freed() {
    OSTD.keeps_memory_in_use();
}

#[test]
fn memory_is_plugged_and_unplugged_while_other_cpus_allocate() {
    TestedKernel(Kernel { name: "OSTD with four CPUs", cpus: 4, ..OSTD.0 })
        .resizes_while_cpus_allocate();
}

/// Runs OSTD's own tests of frames, page tables, DMA memory and address spaces.
#[test]
fn the_tests_of_ostd_pass() {
    TestedKernel(port::OSTD_KTEST).boot(false).unwrap();
}

/// On TDX, OSTD adds the memory that it has to accept after the first allocations.
#[test]
fn memory_that_is_added_in_the_order_of_tdx_is_used() {
    TestedKernel(port::OSTD_LATE).boot(false).unwrap();
}

/// OSTD's own allocator caches blocks of one to four frames for each CPU.
#[test]
fn segments_of_four_frames_and_more_take_less_instructions_than_with_ostds_own_allocator() {
    let [hotmem, osdk] =
        [port::OSTD_HOTMEM, port::OSTD_OSDK].map(|kernel| TestedKernel(kernel).measure(9));
    let (free, osdk_free) = (hotmem.free_memory, osdk.free_memory);
    println!("OSTD: {} bytes free after boot, {} with OSTD's own allocator", free.0, osdk_free.0);
    assert!(free.0 > osdk_free.0 - Bytes::mib(1).0);
    for ((frames, hotmem), (_, osdk)) in hotmem.instructions.into_iter().zip(osdk.instructions) {
        println!(
            "OSTD: a segment of {frames}: {hotmem} instructions, {osdk} with OSTD's own allocator"
        );
        let is_small = ["1 frames", "2 frames"].contains(&frames.as_str());
        assert!(is_small || hotmem < osdk, "{frames}: {hotmem} and {osdk}");
    }
}

/// Objects are not migrated, so only pageblocks without objects in use are unplugged. OSTD's heap
/// caches freed objects and empty slabs, so a part of the memory is never unplugged.
#[test]
fn most_memory_is_unplugged_after_a_mixed_load() {
    let percent = OSTD.unplugged_after_mixed_load(Bytes::gib(2), false);
    assert!(percent >= 70, "{percent} %");
}
