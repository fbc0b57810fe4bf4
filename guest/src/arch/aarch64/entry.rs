//! Switches from the state in which the loader starts a CPU to EL1 with the MMU on, and calls
//! the kernel's `kernel_main` or [`other_cpu_main`](super::firmware_cpus::other_cpu_main).

use super::image::{BOOT_PAGES, KERNEL_BASE};
use super::{firmware_cpus, stack_layout, trap};
use core::arch::global_asm;
use hotmem_pgtable::aarch64::MAIR;

/// A page of 2 MiB of the kernel's data, as `hotmem-pgtable` writes it: valid, inner shareable,
/// accessed, not global, writable, never executed.
const DATA_PAGE: u64 = 1 | 3 << 8 | 1 << 10 | 1 << 11 | 1 << 51 | EXECUTE_NEVER;
/// A page of the image, which EL1 executes.
const IMAGE_PAGE: u64 = DATA_PAGE & !(1 << 53);
const EXECUTE_NEVER: u64 = 1 << 53 | 1 << 54;
/// An entry for a table.
const TABLE: u64 = 3;
/// The bit of an entry for a page of 4 KiB.
const SMALL_PAGE: u64 = 2;
/// The translation control: 48 bits and the 4 KiB granule in both halves; walks of the tables are
/// write-back and inner shareable. (Arm ARM, D19.2.139)
const TRANSLATION: u64 = 0xb510_3510;
/// The system control: the bits that are always 1, the instruction cache, the check of the stack's
/// alignment, the data cache, the MMU. (Arm ARM, D19.2.118)
const CONTROL: u64 = 0x30d0_180d;
/// The same without the MMU and the caches.
const CONTROL_OFF: u64 = 0x30d0_0800;

// The image begins with the header by which loaders recognise it (Linux,
// Documentation/arch/arm64/booting.rst). The loader passes the device tree's address in x0. While the
// MMU is off, all memory is Device memory: it has no unaligned accesses and no exclusive ones, so that
// no Rust code can run.
global_asm!(
    r#"
    .section .text.entry, "ax"
    .globl image_start
image_start:
    b       start_first_cpu
    .long   0
    .quad   0                           // the image may be at any multiple of 2 MiB
    .quad   image_bytes
    .quad   0xa                         // little-endian, 4 KiB pages, anywhere in RAM
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .long   0

start_first_cpu:
    mov     x20, x0
    bl      to_el1
    adrp    x21, image_start
    // `.bss` is written past the caches. Drop its stale lines, which may be written back later.
    bl      drop_lines
    adrp    x0, bss_start
    adrp    x1, bss_end
1:  stp     xzr, xzr, [x0], #16
    cmp     x0, x1
    b.lo    1b

    // The lower half: the GiB with this code, at its physical address.
    adrp    x0, identity_root
    adrp    x1, identity_l3
    lsr     x2, x21, #39
    orr     x3, x1, #{table}
    str     x3, [x0, x2, lsl #3]
    lsr     x2, x21, #30
    lsl     x3, x2, #30
    ldr     x4, ={image_page}
    orr     x3, x3, x4
    and     x2, x2, #511
    str     x3, [x1, x2, lsl #3]

    // The image at its link address.
    adrp    x0, boot_root
    adrp    x1, kernel_l3
    orr     x2, x1, #{table}
    str     x2, [x0, #511 * 8]
    adrp    x3, kernel_l2
    orr     x2, x3, #{table}
    str     x2, [x1, #510 * 8]
    orr     x2, x21, x4
    ldr     x5, =image_bytes
2:  str     x2, [x3], #8
    add     x2, x2, #0x200000
    subs    x5, x5, #0x200000
    b.hi    2b

    // The page with the boot stack in pages of 4 KiB, except those below the stack.
    ldr     x0, =boot_guard
    adrp    x3, kernel_l2
    ubfx    x2, x0, #21, #9
    add     x3, x3, x2, lsl #3
    ldr     x2, [x3]
    orr     x2, x2, #{small_page}
    adrp    x1, guard_l1
    orr     x4, x1, #{table}
    str     x4, [x3]
    mov     x5, #512
12: str     x2, [x1], #8
    add     x2, x2, #0x1000
    subs    x5, x5, #1
    b.ne    12b
    adrp    x1, guard_l1
    ubfx    x2, x0, #12, #9
    add     x1, x1, x2, lsl #3
    mov     x5, #{guard_pages}
13: str     xzr, [x1], #8
    subs    x5, x5, #1
    b.ne    13b
    adrp    x0, boot_root

    // The direct map of the memory from the image on. Its root entries begin at 256.
    adrp    x1, direct_l3
    lsr     x2, x21, #39
    add     x2, x2, #256
    orr     x3, x1, #{table}
    str     x3, [x0, x2, lsl #3]
    adrp    x3, direct_l2
    mov     x5, x21
    mov     x6, #{boot_pages}
    bl      map_pages
    // The direct map of the device tree, which lies in two pages, perhaps in the same GiB. A tree in another
    // part of 512 GiB is not mapped, and the kernel cannot read it.
    mov     x22, xzr
    lsr     x2, x20, #39
    cmp     x2, x21, lsr #39
    b.ne    3f
    lsr     x2, x20, #30
    cmp     x2, x21, lsr #30
    adrp    x4, tree_l2
    csel    x3, x3, x4, eq
    bic     x5, x20, #0x1fffff
    mov     x6, #2
    mov     x22, x6
    bl      map_pages

    // Drop the lines that the caches have read since.
3:  bl      drop_lines
    bl      enable_mmu
    ldr     x0, =5f
    br      x0
5:  ldr     x0, =boot_stack_end
    mov     sp, x0
    msr     tpidr_el1, xzr
    bl      use_vectors
    ldr     x0, =boot_image_address
    str     x21, [x0]
    ldr     x0, =boot_tree_address
    str     x20, [x0]
    ldr     x0, =boot_tree_pages
    str     x22, [x0]
    mov     x0, x20
    mov     x29, xzr
    b       kernel_main

    // Maps up to x6 pages of 2 MiB from x5 on in the table x3, which the table x1 points to. Ends with
    // the GiB.
map_pages:
    ubfx    x2, x5, #30, #9
    orr     x4, x3, #{table}
    str     x4, [x1, x2, lsl #3]
    ldr     x4, ={data_page}
    ubfx    x2, x5, #21, #9
6:  orr     x7, x5, x4
    str     x7, [x3, x2, lsl #3]
    add     x5, x5, #0x200000
    add     x2, x2, #1
    cmp     x2, #512
    b.eq    7f
    subs    x6, x6, #1
    b.ne    6b
7:  ret

    // Drops the caches' lines of `.bss`, after all earlier writes.
drop_lines:
    adrp    x0, bss_start
    adrp    x1, bss_end
    dsb     sy
4:  dc      ivac, x0
    add     x0, x0, #16
    cmp     x0, x1
    b.lo    4b
    dsb     sy
    ret

    // The entry for the firmware's CPU_ON. x0 is the virtual address of two words, the CPU's number and
    // the end of its stack.
    .globl start_other_cpu
start_other_cpu:
    mov     x20, x0
    bl      to_el1
    bl      enable_mmu
    ldr     x0, =8f
    br      x0
8:  ldp     x0, x1, [x20]
    mov     sp, x1
    msr     tpidr_el1, x0
    bl      use_vectors
    mrs     x0, tpidr_el1
    mov     x29, xzr
    b       {other_cpu_main}

use_vectors:
    ldr     x0, ={vectors}
    msr     vbar_el1, x0
    isb
    ret

enable_mmu:
    ldr     x2, ={mair}
    msr     mair_el1, x2
    ldr     x2, ={translation}
    mrs     x3, id_aa64mmfr0_el1
    and     x3, x3, #7                  // the size of physical addresses; 6 means 48 bits here
    mov     x4, #5
    cmp     x3, x4
    csel    x3, x3, x4, lo
    bfi     x2, x3, #32, #3
    msr     tcr_el1, x2
    adrp    x2, identity_root
    msr     ttbr0_el1, x2
    adrp    x2, boot_root
    msr     ttbr1_el1, x2
    ic      iallu
    tlbi    vmalle1
    dsb     nsh
    isb
    ldr     x2, ={control}
    msr     sctlr_el1, x2
    isb
    ret

to_el1:
    msr     daifset, #0xf
    mrs     x0, CurrentEL
    cmp     x0, #(2 << 2)
    b.lo    11f
    mov     x0, #(1 << 31)              // EL1 is AArch64
    msr     hcr_el2, x0
    isb                                 // E2H decides what the next registers are
11: ldr     x0, ={control_off}
    msr     sctlr_el1, x0
    isb
    b.lo    10f
    mov     x0, #3                      // EL1 may use the timers
    msr     cnthctl_el2, x0
    msr     cntvoff_el2, xzr
    mov     x0, #0x33ff                 // SIMD does not trap
    msr     cptr_el2, x0
    msr     hstr_el2, xzr
    msr     vttbr_el2, xzr
    mrs     x0, midr_el1
    msr     vpidr_el2, x0
    mrs     x0, mpidr_el1
    msr     vmpidr_el2, x0
    mrs     x0, id_aa64pfr0_el1
    ubfx    x0, x0, #24, #4
    cbz     x0, 9f
    mrs     x0, S3_4_C12_C9_5           // ICC_SRE_EL2: EL1 may use GICv3's system registers
    orr     x0, x0, #1
    orr     x0, x0, #8
    msr     S3_4_C12_C9_5, x0
    isb
    mrs     x0, S3_4_C12_C9_5
    tbz     x0, #0, 9f                  // EL3 forbids it
    msr     S3_4_C12_C11_0, xzr         // ICH_HCR_EL2: no access of EL1 traps
9:  mov     x0, #0x3c5                  // EL1 with its own stack, all interrupts masked
    msr     spsr_el2, x0
    msr     elr_el2, x30
    eret
10: msr     spsel, #1                   // the stack of the vectors for EL1
    ret
    .ltorg

    .section .bss.boot_tables, "aw", @nobits
    .balign 4096
identity_root: .skip 4096
identity_l3: .skip 4096
    .globl boot_root
boot_root:  .skip 4096
kernel_l3:  .skip 4096
    .globl kernel_l2
kernel_l2:  .skip 4096
direct_l3:  .skip 4096
direct_l2:  .skip 4096
tree_l2:    .skip 4096
guard_l1:   .skip 4096

    .section .bss.boot_stack, "aw", @nobits
    .balign 2 * {stack}
boot_guard: .skip {stack}
    .skip {stack}
boot_stack_end:
    "#,
    table = const TABLE,
    image_page = const IMAGE_PAGE,
    data_page = const DATA_PAGE,
    boot_pages = const BOOT_PAGES,
    mair = const MAIR,
    translation = const TRANSLATION,
    control = const CONTROL,
    control_off = const CONTROL_OFF,
    stack = const stack_layout::BYTES,
    small_page = const SMALL_PAGE,
    guard_pages = const stack_layout::BYTES / 4096,
    other_cpu_main = sym firmware_cpus::other_cpu_main,
    vectors = sym trap::exception_vectors,
);

const _: () = assert!(KERNEL_BASE >> 30 & 511 == 510);
