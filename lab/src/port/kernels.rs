//! The kernels that `cargo xtask ports` builds.

use super::Kernel;
use hotmem::Bytes;

/// ArceOS. Its boot code maps memory.
pub const ARCEOS: Kernel = Kernel {
    name: "ArceOS",
    port: "arceos",
    image: "a/x86_64-unknown-none/release/hotmem-arceos",
    boot_memory: Bytes::mib(128),
    cpus: 1,
};

/// ArceOS that maps memory itself, and has threads and interrupts.
pub const ARCEOS_PAGING: Kernel = Kernel {
    name: "ArceOS with page tables",
    image: "b/x86_64-unknown-none/release/hotmem-arceos",
    ..ARCEOS
};

/// [`ARCEOS_PAGING`] with four CPUs, of which three allocate and free continuously.
pub const ARCEOS_SMP: Kernel = Kernel {
    name: "ArceOS with four CPUs",
    image: "smp/x86_64-unknown-none/release/hotmem-arceos",
    cpus: 4,
    ..ARCEOS
};

/// ArceOS with its own allocator.
pub const ARCEOS_ALONE: Kernel = Kernel {
    name: "ArceOS as it is",
    image: "stock/x86_64-unknown-none/release/hotmem-arceos-stock",
    ..ARCEOS
};

/// OSTD. It has 16 MiB of metadata for each GiB up to the end of the device's region.
pub const OSTD: Kernel = Kernel {
    name: "OSTD",
    port: "ostd",
    image: "ostd/x86_64-unknown-none/release/hotmem-ostd",
    boot_memory: Bytes::mib(512),
    cpus: 1,
};

/// A kernel that measures OSTD with Hotmem.
pub const OSTD_HOTMEM: Kernel =
    Kernel { image: "ostd/x86_64-unknown-none/release/hotmem", boot_memory: Bytes::gib(3), ..OSTD };

/// A kernel that measures OSTD with its own allocator, which caches blocks of one to four frames
/// for each CPU.
pub const OSTD_OSDK: Kernel =
    Kernel { image: "ostd/x86_64-unknown-none/release/osdk", ..OSTD_HOTMEM };

/// OSTD's own tests of frames, page tables, DMA memory and address spaces.
pub const OSTD_ITSELF: Kernel = Kernel {
    image: "ostd-ktest/x86_64-unknown-none/release/hotmem-ostd-ktest",
    boot_memory: Bytes::gib(3),
    ..OSTD
};

/// A freestanding kernel in C.
pub const C_KERNEL: Kernel = Kernel {
    name: "the kernel in C",
    port: "c-kernel",
    image: "c/kernel",
    boot_memory: Bytes::mib(128),
    cpus: 1,
};
