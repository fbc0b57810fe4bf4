//! Switches from the entry of a boot protocol to this kernel's 64-bit mode, and calls `kernel_main`.
//!
//! | entry | protocol | loaders |
//! |---|---|---|
//! | `pvh_start`, named by a note | PVH | QEMU, Firecracker, Cloud Hypervisor, this kernel |
//! | `linux_start`, the entry of the ELF file | Linux's 64-bit boot protocol | libkrun, microsandbox |

use super::image::{BOOT_PAGES, KERNEL_BASE, PAGE_FLAGS, STACK_BYTES, TABLE_FLAGS};
use core::arch::global_asm;

// `linux_start`: 64-bit mode, the kernel and the zero page mapped at their physical addresses, the address
// of the zero page in rsi, interrupts off. (Linux, Documentation/arch/x86/boot.rst) It leaves the 64-bit
// mode, and continues at PVH's entry with the zero page in the place of `start_info`, so that there is one
// way from there on.
//
// `pvh_start`, XEN_ELFNOTE_PHYS32_ENTRY: paging off, flat 32-bit segments, `start_info` in ebx, interrupts
// off. (Xen, docs/misc/pvh.pandoc)
global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_start - {base}

    .section .text.entry, "ax"
    .code64
    .globl linux_start
linux_start:
    cld
    movl %esi, %ebx
    cmpq %rbx, %rsi
    je 4f
    movl $-1, %ebx                      # above 4 GiB: an address that is refused
4:  movl $boot_stack_top - {base}, %esp
    # Paging cannot be turned off with PCIDE, nor WP cleared with CET. (Intel SDM volume 3, 2.5) LA57
    # cannot change before paging is off.
    movq %cr4, %rax
    andl $0x1020, %eax                  # PAE, LA57
    movq %rax, %cr4
    lgdt boot_gdt_low - {base}
    pushq $16
    pushq $5f - {base}
    lretq
    .code32
5:  movl $24, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $0x11, %eax                    # PE, ET
    movl %eax, %cr0
    movl $0xc0000080, %ecx              # EFER
    xorl %eax, %eax
    xorl %edx, %edx
    wrmsr
    movl %eax, %cr4

    .globl pvh_start
pvh_start:
    cld
    movl %ebx, %esi
    movl $boot_stack_top - {base}, %esp
    # CPUID exists if the ID flag can be changed. (Intel SDM volume 1, 20.1.2)
    pushfl
    popl %eax
    movl %eax, %ecx
    xorl $0x200000, %eax
    pushl %eax
    popfl
    pushfl
    popl %eax
    xorl %ecx, %eax
    testl $0x200000, %eax
    jz no_long_mode
    # Map the 2 MiB around the stack by pages of 4 KiB, without the guard page.
    movl $boot_guard - {base}, %eax
    andl $0xffe00000, %eax
    orl ${table_flags}, %eax
    movl $boot_guard_table - {base}, %edi
3:  movl %eax, (%edi)
    addl $0x1000, %eax
    addl $8, %edi
    testl $0x1ff000, %eax
    jnz 3b
    movl $boot_guard - {base}, %eax
    shrl $12, %eax
    andl $511, %eax
    movl $0, boot_guard_table - {base}(, %eax, 8)
    movl $boot_guard - {base}, %eax
    shrl $21, %eax
    movl $boot_guard_table - {base} + {table_flags}, boot_kernel_directory - {base}(, %eax, 8)
    movl $0x80000000, %eax
    cpuid
    cmpl $0x80000001, %eax
    jb no_long_mode
    movl $0x80000001, %eax
    cpuid
    testl $0x20000000, %edx             # Intel 64 architecture
    jz no_long_mode
    shrl $9, %edx                       # Execute Disable Bit, bit 20
    andl $0x800, %edx                   # NXE, bit 11
    movl %edx, %edi
    movl $boot_root - {base}, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x20, %eax                     # PAE
    movl %eax, %cr4
    movl $0xc0000080, %ecx              # EFER
    rdmsr
    orl $0x100, %eax                    # LME
    orl %edi, %eax                      # NXE, if the CPU has it
    wrmsr
    movl %cr0, %eax
    orl $0x80010001, %eax               # PG, WP, PE
    movl %eax, %cr0
    lgdt boot_gdt_low - {base}
    ljmpl $8, $1f - {base}
    .code64
1:  movabsq $2f, %rax
    jmpq *%rax
2:  lgdt boot_gdt_high(%rip)
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    leaq boot_stack_top(%rip), %rsp
    xorl %ebp, %ebp
    movl %esi, %edi
    call kernel_main
    ud2

    .section .rodata.boot_gdt, "a"
    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff            # 64-bit code
    .quad 0x00cf9b000000ffff            # 32-bit code
    .quad 0x00cf93000000ffff            # 32-bit data
boot_gdt_low:                           # read in 64-bit mode by `linux_start`
    .word boot_gdt_low - boot_gdt - 1
    .quad boot_gdt - {base}
    .globl boot_gdt_high
boot_gdt_high:
    .word boot_gdt_low - boot_gdt - 1
    .quad boot_gdt

    .section .data.boot_tables, "aw"
    .balign 4096
    .globl boot_root
boot_root:
    .quad boot_kernel_pointers_low - {base} + {table_flags}   # until the jump to the virtual address
    .fill 255, 8, 0
    .quad boot_direct_pointers - {base} + {table_flags}
    .fill 254, 8, 0
    .quad boot_kernel_pointers - {base} + {table_flags}
    .globl boot_kernel_pointers_low
boot_kernel_pointers_low:
    .quad boot_kernel_directory - {base} + {table_flags}
    .fill 511, 8, 0
boot_kernel_pointers:
    .fill 510, 8, 0
    .quad boot_kernel_directory - {base} + {table_flags}
    .quad 0
boot_direct_pointers:
    .quad boot_direct_directory - {base} + {table_flags}
    .fill 511, 8, 0
boot_kernel_directory:
    .set page, 0
    .rept {pages}
    .quad page * 0x200000 + {page_flags}
    .set page, page + 1
    .endr
    .fill 512 - {pages}, 8, 0
boot_direct_directory:
    .set page, 0
    .rept {pages}
    .quad page * 0x200000 + {page_flags}
    .set page, page + 1
    .endr
    .fill 512 - {pages}, 8, 0

    .section .bss.boot_stack, "aw", @nobits
    .balign 4096
boot_guard_table:
    .skip 4096
    .globl boot_guard
boot_guard:                             # not mapped at its virtual address
    .skip 4096
    .skip {stack}
boot_stack_top:
    "#,
    base = const KERNEL_BASE,
    table_flags = const TABLE_FLAGS,
    page_flags = const PAGE_FLAGS,
    pages = const BOOT_PAGES,
    stack = const STACK_BYTES,
    options(att_syntax)
);
