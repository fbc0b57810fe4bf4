# QEMU enters the image at its first byte with the MMU off. The processor may be big-endian or
# little-endian. r3 (device tree or 0) and r5 (Open Firmware's entry or 0) are ignored.

# Makes a big-endian processor little-endian (Linux's FIXUP_ENDIAN). A little-endian processor
# ignores `tdi`, and branches to the end. A big-endian processor reads the bytes of `tdi` as a
# branch to the words after `b`, which are big-endian instructions that switch the byte order.
.macro FIXUP_ENDIAN
    tdi   0,0,0x48
    b     191f
    .long 0xa600607d
    .long 0x01006b69
    .long 0x00004039
    .long 0x6401417d
    .long 0x05009f42
    .long 0xa602487d
    .long 0x14004a39
    .long 0xa6035a7d
    .long 0xa6037b7d
    .long 0x2400004c
191:
.endm

# Prepares the processor for compiled code: enables 64-bit mode and the vector and floating point
# units (SF | VEC | VSX | FP | RI), and makes r2 point to the table of contents, by which compiled
# code addresses global variables. Interrupts and the MMU stay off.
.macro FOR_COMPILED_CODE
    mfmsr 11
    lis   12, 0x0280
    ori   12, 12, 0x2002
    or    11, 11, 12
    li    12, 1
    sldi  12, 12, 63
    or    11, 11, 12
    mtmsrd 11
    bcl   20,31,192f
192:
    mflr  12
    addis 2, 12, .TOC.-192b@ha
    addi  2, 2, .TOC.-192b@l
.endm

.section .entry,"ax",@progbits
.globl _start
_start:
    FIXUP_ENDIAN
    FOR_COMPILED_CODE
    addis 1, 2, __stack_top@toc@ha
    addi  1, 1, __stack_top@toc@l
    addis 6, 2, __bss_start@toc@ha
    addi  6, 6, __bss_start@toc@l
    addis 7, 2, __bss_end@toc@ha
    addi  7, 7, __bss_end@toc@l
    li    0, 0
2:  cmpld 6, 7
    bge   3f
    std   0, 0(6)
    addi  6, 6, 8
    b     2b
3:  stdu  0, -64(1)
    bl    kernel_main
    nop
4:  b     4b

.text
# An exception ends the run. The vectors branch here with the exception's number in r3.
.globl exception
exception:
    FIXUP_ENDIAN
    FOR_COMPILED_CODE
    addis 1, 2, __exception_stack@toc@ha
    addi  1, 1, __exception_stack@toc@l
    li    0, 0
    stdu  0, -64(1)
    bl    exception_taken
    nop
5:  b     5b

# hypercall(number, arguments: *mut [u64; 4]) -> status; the arguments become the results.
.globl hypercall
hypercall:
    mr    12, 4
    std   12, -8(1)
    ld    4, 0(12)
    ld    5, 8(12)
    ld    6, 16(12)
    ld    7, 24(12)
    sc    1
    ld    12, -8(1)
    std   4, 0(12)
    std   5, 8(12)
    std   6, 16(12)
    std   7, 24(12)
    blr
