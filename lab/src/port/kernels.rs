//! The kernels that `cargo xtask ports` builds.

use super::Kernel;
use hotmem::Bytes;

/// ArceOS without its paging: the page tables of its boot code stay in use.
pub const ARCEOS: Kernel = Kernel {
    name: "ArceOS",
    port: "arceos",
    image: "boot-tables/x86_64-unknown-none/release/hotmem-arceos",
    firmware: None,
    boot_memory: Bytes::mib(128),
    cpus: 1,
};

/// ArceOS with its own page tables, threads and interrupts.
pub const ARCEOS_PAGING: Kernel = Kernel {
    name: "ArceOS with page tables",
    image: "paging/x86_64-unknown-none/release/hotmem-arceos",
    ..ARCEOS
};

/// [`ARCEOS_PAGING`] with four CPUs. Three of them allocate and free all the time.
pub const ARCEOS_SMP: Kernel = Kernel {
    name: "ArceOS with four CPUs",
    image: "smp/x86_64-unknown-none/release/hotmem-arceos",
    cpus: 4,
    ..ARCEOS
};

/// ArceOS without Hotmem, with its own allocator.
pub const ARCEOS_STOCK: Kernel = Kernel {
    name: "ArceOS as it is",
    image: "stock/x86_64-unknown-none/release/hotmem-arceos-stock",
    ..ARCEOS
};

/// OSTD with Hotmem. OSTD's own metadata take 16 MiB for each GiB of addresses up to the end of the
/// device's region.
pub const OSTD: Kernel = Kernel {
    name: "OSTD",
    port: "ostd",
    image: "ostd/x86_64-unknown-none/release/hotmem-ostd",
    firmware: None,
    boot_memory: Bytes::mib(512),
    cpus: 1,
};

/// A kernel that measures OSTD's segments with Hotmem as the allocator.
pub const OSTD_HOTMEM: Kernel =
    Kernel { image: "ostd/x86_64-unknown-none/release/hotmem", boot_memory: Bytes::gib(3), ..OSTD };

/// A kernel that measures OSTD's segments with OSDK's allocator, which caches blocks of one to four
/// frames for each CPU.
pub const OSTD_OSDK: Kernel =
    Kernel { image: "ostd/x86_64-unknown-none/release/osdk", ..OSTD_HOTMEM };

/// OSTD's own tests of frames, page tables, DMA memory and address spaces.
pub const OSTD_KTEST: Kernel = Kernel {
    image: "ostd-ktest/x86_64-unknown-none/release/hotmem-ostd-ktest",
    boot_memory: Bytes::gib(3),
    ..OSTD
};

/// OSTD with memory that it adds after it has allocated, in the order in which it does so on TDX.
pub const OSTD_LATE: Kernel = Kernel {
    image: "ostd/x86_64-unknown-none/release/hotmem-ostd-late",
    boot_memory: Bytes::gib(5),
    ..OSTD
};

/// The freestanding kernel in C.
pub const C_KERNEL: Kernel = Kernel {
    name: "the kernel in C",
    port: "c-kernel",
    image: "c/kernel",
    firmware: None,
    boot_memory: Bytes::mib(128),
    cpus: 1,
};

/// ArceOS of TGOSKits, with its own page tables. Its boot code runs as an EFI application, and uses as
/// many CPUs as the machine has.
pub const TGOSKITS: Kernel = Kernel {
    name: "ArceOS of TGOSKits",
    port: "tgoskits",
    image: "tgoskits/kernel.efi",
    firmware: Some("/usr/share/ovmf/OVMF.fd"),
    boot_memory: Bytes::gib(1),
    cpus: 1,
};
