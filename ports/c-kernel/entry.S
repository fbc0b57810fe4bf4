/* Switches from PVH's 32-bit entry to 64-bit mode, and calls kernel_main. Maps the first 4 GiB of
   physical memory twice: at equal virtual addresses, and in the direct map. */

    /* XEN_ELFNOTE_PHYS32_ENTRY: paging off, flat segments, start_info in ebx, interrupts off. */
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_start

    .section .text.entry, "ax"
    .code32
    .globl pvh_start
pvh_start:
    movl $boot_root, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x20, %eax                     /* PAE */
    movl %eax, %cr4
    movl $0xc0000080, %ecx              /* EFER */
    rdmsr
    orl $0x900, %eax                    /* LME; NXE, for pages that are not executed */
    wrmsr
    movl %cr0, %eax
    orl $0x80010001, %eax               /* PG, WP, PE */
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
    .quad 0x00af9b000000ffff            /* 64-bit code */
boot_gdt_pointer:
    .word boot_gdt_pointer - boot_gdt - 1
    .long boot_gdt

    .section .data.boot_tables, "aw"
    .balign 4096
    .globl boot_root
boot_root:
    .quad boot_pointers + 0x63          /* the identity map */
    .fill 255, 8, 0
    .quad boot_pointers + 0x63          /* the direct map */
    .fill 255, 8, 0
boot_pointers:
    .quad boot_directories + 0x0063, boot_directories + 0x1063
    .quad boot_directories + 0x2063, boot_directories + 0x3063
    .fill 508, 8, 0
boot_directories:                       /* 4 GiB in pages of 2 MiB */
    .set page, 0
    .rept 2048
    .quad page * 0x200000 + 0xe3
    .set page, page + 1
    .endr

    .section .bss.boot_stack, "aw", @nobits
    .balign 16
    .skip 0x8000
boot_stack_top:

    .section .note.GNU-stack, "", @progbits
