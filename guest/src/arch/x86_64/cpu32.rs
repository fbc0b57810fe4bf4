//! Ends the run on a CPU without a 64-bit mode: 32-bit code reports this and ends the machine.

use super::console::{BASE, FIFO_CONTROL, LINE_CONTROL, LINE_STATUS, TRANSMITTER_EMPTY};
use super::exit::{ACPI_SLEEP, DEBUG_EXIT, FAIL, KEYBOARD, RESET, SOFT_OFF};
use super::{console, image};
use core::arch::global_asm;

// Writes a report and ends the machine, as `report` and `exit` do in 64-bit code. The boot code
// jumps to `no_long_mode` with paging off.
global_asm!(
    r#"
    .section .rodata.no_long_mode, "a"
no_long_mode_report:
    .ascii "TAP version 14\n\nBail out! boot: the CPU has no 64-bit mode\nhotmem: FAIL\n"
no_long_mode_report_end:

    .section .text.entry, "ax"
    .code32
    .globl no_long_mode
no_long_mode:
    xorl %eax, %eax
    movw ${interrupts}, %dx
    outb %al, %dx
    movb ${frame}, %al
    movw ${line_control}, %dx
    outb %al, %dx
    movb ${fifos}, %al
    movw ${fifo_control}, %dx
    outb %al, %dx
    movl $no_long_mode_report - {base}, %esi
    movl $no_long_mode_report_end - no_long_mode_report, %ecx
1:  movw ${line_status}, %dx
2:  inb %dx, %al
    testb ${empty}, %al
    jz 2b
    movw ${console}, %dx
    outsb
    loop 1b
    movl ${fail}, %eax
    movw ${debug_exit}, %dx
    outl %eax, %dx
    movb ${off}, %al
    movw ${sleep}, %dx
    outb %al, %dx
    movb ${reset}, %al
    movw ${keyboard}, %dx
    outb %al, %dx
3:  hlt
    jmp 3b
    .code64
    "#,
    base = const image::KERNEL_BASE,
    console = const BASE,
    interrupts = const console::INTERRUPTS,
    frame = const console::EIGHT_BITS,
    line_control = const LINE_CONTROL,
    fifos = const console::FIFOS_ON,
    fifo_control = const FIFO_CONTROL,
    line_status = const LINE_STATUS,
    empty = const TRANSMITTER_EMPTY,
    fail = const FAIL,
    debug_exit = const DEBUG_EXIT,
    reset = const RESET,
    keyboard = const KEYBOARD,
    off = const SOFT_OFF,
    sleep = const ACPI_SLEEP,
    options(att_syntax)
);
