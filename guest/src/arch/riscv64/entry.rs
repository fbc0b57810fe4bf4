//! Switches from the state in which the SBI implementation starts a hart to the kernel's page tables, and
//! calls the kernel's `kernel_main` or [`other_cpu_main`](super::firmware_cpus::other_cpu_main).

use super::image::{BOOT_PAGES, KERNEL_BASE};
use super::layout::LAYOUT;
use super::{firmware_cpus, stack_layout, trap};
use core::arch::global_asm;

/// A page of the kernel's data, as `hotmem-pgtable` writes it: valid, readable, writable, accessed and
/// dirty, because a hart may fault instead of setting the last two.
pub(super) const DATA_PAGE: u64 = 0b1100_0111;
/// A page of the image, which the kernel executes.
const IMAGE_PAGE: u64 = DATA_PAGE | 1 << 3;
/// An entry for a table.
const TABLE: u64 = 1;
/// The levels of tables, and the mode of `satp` with them.
const LEVELS: u64 = if cfg!(feature = "sv48") { 4 } else { 3 };
const MODE: u64 = (LEVELS + 5) << 60;
/// The SBI's calls that print a character, and that switch the machine off.
const SBI_PUTCHAR: u64 = 1;
const SBI_RESET: u64 = 0x5352_5354;
/// The root entry of the direct map's start, if there are four levels.
const DIRECT_MAP_ROOT_ENTRY: u64 = LAYOUT.direct_map.base() >> 39 & 511;
/// The first entry for a GiB of the direct map in its table.
const FIRST_DIRECT_MAP_ENTRY: u64 = LAYOUT.direct_map.base() >> 30 & 511;
/// The number of such entries that the boot code can write, which are all in one table.
const DIRECT_MAP_ENTRIES: u64 = {
    let (all, in_table) = (LAYOUT.direct_map.bytes().0 >> 30, 512 - FIRST_DIRECT_MAP_ENTRY);
    if all < in_table { all } else { in_table }
};
/// The states of the floating-point and vector units in `sstatus`. Both are off, so that no code
/// changes registers that an interrupt does not save.
const UNITS: u64 = 0b11 << 13 | 0b11 << 9;

// The image begins with the header by which loaders recognise it (Linux,
// Documentation/arch/riscv/boot-image-header.rst). The SBI implementation passes the hart's ID in a0 and
// the device tree's address in a1, with address translation and interrupts off.
//
// Code that turns translation on runs at its physical address, where the page tables map nothing. So the
// hart takes a page fault right after the write to `satp`, and `stvec` names the next instruction at its
// virtual address. No page has to be mapped at its physical address for this.
global_asm!(
    r#"
    .attribute arch, "rv64imac_zicsr_zifencei"
    .section .text.entry, "ax"
    .globl image_start
image_start:
    .option push
    .option norvc
    j       start_first_hart
    .option pop
    .word   0
    .quad   0x200000                    // the image lies at a multiple of 2 MiB
    .quad   image_bytes
    .quad   0                           // little-endian
    .word   2                           // version 0.2 of the header
    .word   0
    .quad   0
    .ascii  "RISCV\0\0\0"
    .ascii  "RSC\x05"
    .word   0

    // Turns translation on, and continues at the address in ra, which is a physical one, at the virtual
    // one.
    .macro  enable_translation
    csrw    sie, zero
    li      t0, {units}
    csrc    sstatus, t0
    lla     t0, image_start
    li      t1, {kernel_base}
    sub     t1, t1, t0                  // from physical to virtual addresses
    lla     t0, 99f
    add     t0, t0, t1
    csrw    stvec, t0
    lla     t0, boot_root
    srli    t0, t0, 12
    li      t2, {mode}
    or      t0, t0, t2
    sfence.vma                          // the tables were written before
    csrw    satp, t0
    lla     s0, no_such_mode            // the hart has ignored the write
    j       give_up
    .balign 4
99: lla     t0, trap_entry
    csrw    stvec, t0
    sfence.vma
    .endm

    // Makes an entry of a table point to another table.
    .macro  set_table from, entry, to
    lla     t0, \from
    lla     t1, \to
    srli    t1, t1, 2
    ori     t1, t1, {table}
    li      t2, \entry * 8
    add     t2, t2, t0
    sd      t1, (t2)
    .endm

start_first_hart:
    // OpenSBI (1.1) may start another hart here instead of at the address of hart_start: it lets the
    // hart go before it writes the address, and a hart that is late reads the old one.
    lla     t0, first_hart_has_come
    li      t1, 1
    amoswap.w t1, t1, (t0)
    bnez    t1, start_other_hart
    mv      s0, a0
    mv      s1, a1
    lla     s2, image_start
    slli    t0, s2, 64 - 21
    bnez    t0, misplaced
    lla     t0, bss_start
    lla     t1, bss_end
1:  sd      zero, (t0)
    addi    t0, t0, 8
    bltu    t0, t1, 1b

    // With four levels, the root has two tables, of the direct map and of the image.
    .if     {levels} == 4
    set_table boot_root, {direct_map_root_entry}, direct_l3
    set_table boot_root, 511, kernel_l3
    .endif

    // The image at its link address.
    set_table kernel_l3, {kernel_entry}, kernel_l2
    lla     t0, kernel_l2
    srli    t1, s2, 2
    ori     t1, t1, {image_page}
    ld      t2, 16(s2)                  // the image's size
    li      t3, 0x200000
    srli    t4, t3, 2
2:  sd      t1, (t0)
    add     t1, t1, t4
    addi    t0, t0, 8
    sub     t2, t2, t3
    bgtz    t2, 2b

    // The page with the boot stack in pages of 4 KiB, except those below the stack.
    lla     t0, boot_guard
    sub     t0, t0, s2                  // its offset in the image
    srli    t1, t0, 21
    slli    t1, t1, 3
    lla     t2, kernel_l2
    add     t2, t2, t1                  // the entry of its page
    ld      t3, (t2)
    lla     t4, guard_l1
    srli    t5, t4, 2
    ori     t5, t5, {table}
    sd      t5, (t2)
    srli    t0, t0, 12
    andi    t0, t0, 511                 // the first page below the stack
    li      t1, 0
    li      t6, 512
3:  sub     t5, t1, t0
    li      t2, {guard_pages}
    bltu    t5, t2, 4f
    sd      t3, (t4)
4:  addi    t3, t3, 0x400               // the next frame
    addi    t4, t4, 8
    addi    t1, t1, 1
    bltu    t1, t6, 3b

    // The direct map of the memory from the image on, and of the device tree, perhaps in the same GiB. A
    // tree beyond the direct map is not mapped, and the kernel cannot read it. Neither is an image.
    lla     s3, direct_l3
    lla     s4, direct_l2
    mv      a0, s2
    li      a1, {boot_pages}
    mv      a2, s4
    call    map_pages
    srli    t0, s1, 30
    srli    t1, s2, 30
    mv      a2, s4
    beq     t0, t1, 5f
    lla     a2, tree_l2
5:  mv      a0, s1
    li      a1, 2
    call    map_pages
    mv      s5, a0

    enable_translation
    lla     sp, boot_stack_end
    mv      tp, zero
    lla     t0, boot_image_address
    sd      s2, (t0)
    lla     t0, boot_tree_address
    sd      s1, (t0)
    lla     t0, boot_tree_pages
    sd      s5, (t0)
    lla     t0, boot_hart
    sd      s0, (t0)
    mv      a0, s1
    mv      ra, zero
    tail    kernel_main

    // Maps up to a1 pages of 2 MiB from the page of a0 on in the table a2. Ends with the GiB. Returns a1,
    // or 0 if the memory lies beyond the direct map.
map_pages:
    srli    t0, a0, 30
    li      t1, {direct_map_entries}
    bgeu    t0, t1, 7f
    addi    t0, t0, {first_direct_map_entry}
    slli    t0, t0, 3
    add     t0, t0, s3
    srli    t1, a2, 2
    ori     t1, t1, {table}
    sd      t1, (t0)
    srli    t0, a0, 21
    andi    t1, t0, 511
    slli    t2, t1, 3
    add     a2, a2, t2
    slli    t0, t0, 19
    ori     t0, t0, {data_page}
    li      t3, 512
    li      t4, 0x200000 >> 2
    mv      t5, a1
6:  sd      t0, (a2)
    add     t0, t0, t4
    addi    a2, a2, 8
    addi    t1, t1, 1
    addi    t5, t5, -1
    beqz    t5, 8f
    bltu    t1, t3, 6b
8:  mv      a0, a1
    ret
7:  mv      a0, zero
    ret

    // The entry for the SBI implementation's hart_start.
    .globl start_other_hart
start_other_hart:
    mv      s1, a0
    fence.i                             // this hart has not yet fetched what the loader has written
    enable_translation
    lla     t0, next_hart
5:  ld      t1, (t0)                    // its ID
    bne     t1, s1, 5b
    fence   r, r                        // pairs with the Release of the ID
    ld      tp, 8(t0)                   // the number of the CPU
    ld      sp, 16(t0)                  // the end of its stack
    mv      a0, tp
    mv      ra, zero
    tail    {other_cpu_main}

misplaced:
    lla     s0, misplaced_image
    // Prints the text at s0 by the SBI, because no console is known yet, and switches the machine off.
give_up:
9:  lbu     a0, (s0)
    beqz    a0, 10f
    li      a7, {sbi_putchar}
    ecall
    addi    s0, s0, 1
    j       9b
10: li      a0, 0                       // off
    li      a1, 1                       // because of a failure
    li      a6, 0
    li      a7, {sbi_reset}
    ecall
11: wfi
    j       11b
no_such_mode:
    .asciz  "Bail out! the hart has no page tables of {levels} levels\n"
misplaced_image:
    .asciz  "Bail out! the loader has not put the image at a multiple of 2 MiB\n"

    // Not in .bss, which the first hart clears.
    .section .data.first_hart_has_come, "aw"
    .balign 4
first_hart_has_come: .word 0

    .section .bss.boot_tables, "aw", @nobits
    .balign 4096
    .globl boot_root
boot_root:  .skip 4096
    .globl kernel_l2
kernel_l2:  .skip 4096
direct_l2:  .skip 4096
tree_l2:    .skip 4096
guard_l1:   .skip 4096
    .if     {levels} == 4
kernel_l3:  .skip 4096
direct_l3:  .skip 4096
    .else
    .set    kernel_l3, boot_root
    .set    direct_l3, boot_root
    .endif

    .section .bss.boot_stack, "aw", @nobits
    .balign 2 * {stack}
boot_guard: .skip {stack}
    .skip {stack}
boot_stack_end:
    "#,
    table = const TABLE,
    sbi_putchar = const SBI_PUTCHAR,
    sbi_reset = const SBI_RESET,
    image_page = const IMAGE_PAGE,
    data_page = const DATA_PAGE,
    boot_pages = const BOOT_PAGES,
    kernel_base = const KERNEL_BASE,
    kernel_entry = const KERNEL_BASE >> 30 & 511,
    direct_map_entries = const DIRECT_MAP_ENTRIES,
    first_direct_map_entry = const FIRST_DIRECT_MAP_ENTRY,
    direct_map_root_entry = const DIRECT_MAP_ROOT_ENTRY,
    levels = const LEVELS,
    mode = const MODE,
    units = const UNITS,
    stack = const stack_layout::BYTES,
    guard_pages = const stack_layout::BYTES / 4096,
    other_cpu_main = sym firmware_cpus::other_cpu_main,
);

// The handlers are part of the image.
const _: extern "C" fn(i64, u64, u64) = trap::handle_trap;
