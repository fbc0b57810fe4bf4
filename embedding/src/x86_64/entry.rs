//! Switches from PVH's 32-bit entry to 64-bit mode, and calls `kernel_main`.
//!
//! The stack has 16 KiB, as in many kernels. The page below it is not mapped, so that an overflow
//! ends the kernel (`exceptions.rs`).

use core::arch::global_asm;

// XEN_ELFNOTE_PHYS32_ENTRY: paging off, flat 32-bit segments, `start_info` in ebx, interrupts off.
global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_start

    .section .text.entry, "ax"
    .code32
    .globl pvh_start
pvh_start:
    movl $boot_stack_guard, %eax
    shrl $12, %eax
    movl $0, boot_l1_table(, %eax, 8)
    movl $boot_l4_table, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x20, %eax                     # PAE
    movl %eax, %cr4
    movl $0xc0000080, %ecx              # EFER
    rdmsr
    orl $0x900, %eax                    # LME; NXE, for pages that are not executed
    wrmsr
    movl %cr0, %eax
    orl $0x80010001, %eax               # PG, WP, PE
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmpl $8, $1f
    .code64
1:  xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    leaq boot_stack_top(%rip), %rsp
    movl %ebx, %edi
    call kernel_main
    ud2

    .section .rodata.boot_gdt, "a"
    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff            # 64-bit code
boot_gdt_pointer:
    .word boot_gdt_pointer - boot_gdt - 1
    .long boot_gdt

    .section .data.boot_tables, "aw"
    .balign 4096
boot_l4_table:
    .quad boot_l3_table + 0x63          # the identity map
    .fill 255, 8, 0
    .quad boot_l3_table + 0x63          # the direct map
    .fill 255, 8, 0
boot_l3_table:
    .quad boot_l2_table + 0x63
    .fill 511, 8, 0
boot_l2_table:                          # 1 GiB in pages of 2 MiB, except the first, which has 4 KiB
    .quad boot_l1_table + 0x63
    .set page, 1
    .rept 511
    .quad page * 0x200000 + 0xe3
    .set page, page + 1
    .endr

boot_l1_table:
    .set page, 0
    .rept 512
    .quad page * 0x1000 + 0x63
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
    options(att_syntax)
);
