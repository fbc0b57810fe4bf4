//! Tests of OSTD with Hotmem as its only frame allocator.

use crate::kernel::TestedKernel;
use hotmem::Bytes;
use hotmem_lab::port::{self, Kernel};

pub(crate) const OSTD: TestedKernel = TestedKernel(port::OSTD);

#[test]
fn segments_are_taken_from_plugged_memory() {
    OSTD.grows_and_shrinks(Bytes::gib(4));
}

/// QEMU puts the third of 3 GiB above 4 GiB. OSTD maps memory up to the end of the last RAM, and
/// cannot read ACPI tables above that.
#[test]
fn boots_without_a_device() {
    let boot_memory = Bytes::gib(3);
    assert_eq!(TestedKernel(Kernel { boot_memory, ..OSTD.0 }).boot(true).unwrap(), boot_memory);
}

#[test]
fn free_memory_is_returned_to_the_host() {
    OSTD.reports_free_memory();
}

#[test]
fn a_balloon_takes_memory_back() {
    OSTD.inflates_a_balloon();
}

#[test]
fn a_device_that_is_busy_is_asked_again() {
    OSTD.recovers_from_a_busy_device();
}

#[test]
fn memory_in_use_is_not_unplugged_until_it_is_freed() {
    OSTD.keeps_memory_in_use();
}

#[test]
fn memory_is_plugged_and_unplugged_while_other_cpus_allocate() {
    TestedKernel(Kernel { name: "OSTD with four CPUs", cpus: 4, ..OSTD.0 })
        .changes_while_cpus_allocate();
}

/// All of OSTD's own tests of frames, page tables, DMA memory and address spaces.
#[test]
fn the_tests_of_ostd_pass() {
    TestedKernel(port::OSTD_ITSELF).boot(false).unwrap();
}

/// Measures OSTD with Hotmem and with its own allocator, which caches blocks of one to four frames
/// for each CPU.
#[test]
fn segments_of_four_frames_and_more_cost_less_than_with_ostds_own_allocator() {
    let [ours, theirs] =
        [port::OSTD_HOTMEM, port::OSTD_OSDK].map(|kernel| TestedKernel(kernel).measures(9));
    let (free, osdk_free) = (ours.free, theirs.free);
    println!("OSTD: {} bytes free after boot, {} with OSTD's own allocator", free.0, osdk_free.0);
    assert!(free.0 > osdk_free.0 - Bytes::mib(1).0);
    for ((frames, ours), (_, theirs)) in ours.instructions.into_iter().zip(theirs.instructions) {
        println!("OSTD: a segment of {frames}: {ours} instructions, {theirs} with OSTD's own");
        let is_small = ["1 frames", "2 frames"].contains(&frames.as_str());
        assert!(is_small || ours < theirs, "{frames}: {ours} and {theirs}");
    }
}
