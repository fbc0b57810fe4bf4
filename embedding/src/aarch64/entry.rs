//! Turns the MMU on, and calls `kernel_main` with the address of the device tree.
//!
//! The stack has 16 KiB, as in many kernels. The page below it is not mapped, so that an overflow
//! ends the kernel (`exceptions.rs`).

use core::arch::global_asm;
use hotmem_pgtable::aarch64::MAIR;

/// A page of data as `hotmem-pgtable` writes it: inner shareable, accessed, not global, writable, never
/// executed. (Arm ARM, D8.3)
const DATA: u64 = 1 | 3 << 8 | 1 << 10 | 1 << 11 | 1 << 51 | 1 << 53 | 1 << 54;
/// A page of the image, which EL1 executes.
const IMAGE: u64 = DATA & !(1 << 53);
/// Registers of devices: attribute 1 of `MAIR_EL1`.
const REGISTERS: u64 = DATA & !(3 << 8) | 1 << 2;
/// An entry for a table.
const TABLE: u64 = 3;
/// The translation control: 48 bits and the 4 KiB granule in both halves. (Arm ARM, D19.2.139)
const TRANSLATION: u64 = 0xb510_3510;
/// The system control: the bits that are always 1, the caches, the MMU. (Arm ARM, D19.2.118)
const CONTROL: u64 = 0x30d0_180d;

// The tables are named as on x86-64: `l3` has entries for GiBs (level 1 of the Arm ARM), `l1` for pages.
//
// While the MMU is off, all memory is Device memory, where no Rust code can run. QEMU puts the device
// tree of an ELF image at the start of RAM.
global_asm!(
    r#"
    .section .text.entry, "ax"
    .globl start
start:
    msr     daifset, #0xf
    adrp    x0, boot_stack_guard
    ubfx    x1, x0, #12, #9
    adrp    x2, boot_l1_table
    str     xzr, [x2, x1, lsl #3]
    ldr     x2, ={mair}
    msr     mair_el1, x2
    ldr     x2, ={translation}
    mrs     x3, id_aa64mmfr0_el1
    bfi     x2, x3, #32, #3             // the size of physical addresses
    msr     tcr_el1, x2
    adrp    x2, boot_lower_root
    msr     ttbr0_el1, x2
    adrp    x2, boot_upper_root
    msr     ttbr1_el1, x2
    dsb     sy
    tlbi    vmalle1
    dsb     nsh
    isb
    ldr     x2, ={control}
    msr     sctlr_el1, x2
    isb
    adrp    x2, boot_stack_top
    mov     sp, x2
    mov     x0, #0x40000000
    mov     x29, xzr
    bl      kernel_main
    udf     #0
    .ltorg

    .section .data.boot_tables, "aw"
    .balign 4096
boot_lower_root:                        // the identity map
    .quad boot_identity_l3 + {table}
    .fill 511, 8, 0
boot_upper_root:                        // the direct map
    .fill 256, 8, 0
    .quad boot_direct_l3 + {table}
    .fill 255, 8, 0
boot_identity_l3:
    .quad {registers}
    .quad boot_l2_table + {table}
    .fill 254, 8, 0
    .quad 256 << 30 | {registers}       // the configuration space of PCI
    .fill 255, 8, 0
boot_direct_l3:
    .quad 0
    .quad 1 << 30 | {data}
    .fill 510, 8, 0
boot_l2_table:                          // 1 GiB in pages of 2 MiB, except the image's first, which has 4 KiB
    .quad 1 << 30 | {image}
    .quad boot_l1_table + {table}
    .set page, 2
    .rept 510
    .quad 1 << 30 | page * 0x200000 | {image}
    .set page, page + 1
    .endr
boot_l1_table:
    .set page, 0x200
    .rept 512
    .quad 1 << 30 | page * 0x1000 | {image} | 2
    .set page, page + 1
    .endr

    .section .bss.boot_stack, "aw", @nobits
    .balign 4096
    .globl boot_stack_guard
boot_stack_guard:
    .skip 0x1000
    .skip 0x4000
    .globl boot_stack_top
boot_stack_top:
    "#,
    mair = const MAIR,
    translation = const TRANSLATION,
    control = const CONTROL,
    table = const TABLE,
    data = const DATA,
    image = const IMAGE,
    registers = const REGISTERS,
);
