//! Tests of ArceOS with Hotmem as its only frame allocator, and of unchanged ArceOS to compare
//! with.

use crate::kernel::Kernel;
use hotmem::Bytes;

/// ArceOS's boot code maps memory.
pub(crate) const PLAIN: Kernel = Kernel {
    name: "ArceOS",
    image: "a/x86_64-unknown-none/release/hotmem-arceos",
    boot_memory: Bytes::mib(128),
    cpus: 1,
};

/// ArceOS maps memory itself, and has threads and interrupts.
const PAGING: Kernel = Kernel {
    name: "ArceOS with page tables",
    image: "b/x86_64-unknown-none/release/hotmem-arceos",
    ..PLAIN
};

/// The same with four CPUs, of which three allocate and free all the time.
const SMP: Kernel = Kernel {
    name: "ArceOS with four CPUs",
    image: "smp/x86_64-unknown-none/release/hotmem-arceos",
    cpus: 4,
    ..PLAIN
};

/// ArceOS with its own allocator.
const STOCK: Kernel = Kernel {
    name: "ArceOS as it is",
    image: "stock/x86_64-unknown-none/release/hotmem-arceos-stock",
    ..PLAIN
};

#[test]
fn memory_is_mapped_by_the_boot_code() {
    PLAIN.grows_and_shrinks(Bytes::gib(4));
}

#[test]
fn memory_is_mapped_by_arceos_itself() {
    PAGING.grows_and_shrinks(Bytes::gib(4));
}

/// Boots with maps of memory that ArceOS's own allocator does not support: its bitmap is for 256
/// MiB, and it manages one range.
#[test]
fn boots_with_memory_that_arceos_alone_does_not_boot_with() {
    STOCK.boot(false).unwrap();
    for boot_memory in [Bytes::gib(1), Bytes::gib(6)] {
        let stock = Kernel { boot_memory, ..STOCK }.boot(false).unwrap_err().to_string();
        assert!(stock.contains("bitmap capacity exceeded"), "{boot_memory}: {stock}");
        for kernel in [PLAIN, PAGING] {
            let found = Kernel { boot_memory, ..kernel }.boot(true).unwrap();
            assert_eq!(found, boot_memory, "{}", kernel.name);
        }
    }
}

#[test]
fn memory_comes_and_goes_while_other_cpus_allocate() {
    SMP.changes_while_cpus_allocate();
}

#[test]
fn free_memory_goes_back_to_the_host() {
    PLAIN.reports_free_memory();
}

#[test]
fn memory_in_use_stays_until_it_is_freed() {
    PAGING.keeps_memory_in_use();
}
