//! Handles exceptions and interrupts. An exception ends the run, except a fault on a page that is being
//! migrated, for which the handler waits until the page is mapped again.

use super::layout::LAYOUT;
use super::{gic, stack_layout};
use crate::arch::handlers;
use core::arch::global_asm;

unsafe extern "C" {
    /// The table of the handlers (Arm ARM, D1.4.1).
    pub(super) static exception_vectors: u8;
}

/// The class of a data abort in EL1, in bits 26 to 31 of the syndrome.
const DATA_ABORT: u64 = 0x25;
/// The status of a fault by an entry that is not valid, without the level in the two lowest bits.
const TRANSLATION_FAULT: u64 = 0b1_00;

/// Handles an exception that an instruction has caused.
extern "C" fn handle_exception(syndrome: u64, address_of_cause: u64, fault_address: u64) {
    let class = syndrome >> 26 & 0x3f;
    let is_not_present = class == DATA_ABORT && syndrome >> 2 & 0xf == TRANSLATION_FAULT >> 2;
    if is_not_present && (handlers::get().page_is_absent)(fault_address) {
        return;
    }
    let name = match class {
        0x07 => "use of SIMD registers",
        0x0e => "illegal state",
        0x21 => "instruction abort",
        0x22 => "unaligned program counter",
        DATA_ABORT => "data abort",
        0x26 => "unaligned stack pointer",
        0x2f => "system error",
        0x3c => "breakpoint",
        _ => "exception",
    };
    (handlers::get().give_up)(&format_args!(
        "{name} at {address_of_cause:#x}, syndrome {syndrome:#x}, address {fault_address:#x}"
    ))
}

/// Handles an exception that the kernel does not expect: a system error, or one on another stack.
extern "C" fn handle_unexpected(syndrome: u64, address_of_cause: u64, fault_address: u64) -> ! {
    (handlers::get().give_up)(&format_args!(
        "unexpected exception at {address_of_cause:#x}, syndrome {syndrome:#x}, address {fault_address:#x}"
    ))
}

// The check of the stack pointer needs this.
const _: () = assert!(LAYOUT.stacks.is_multiple_of(2 * stack_layout::BYTES));

/// Handles an exception or an interrupt for whose registers the stack has no room. It has a stack of its
/// own.
extern "C" fn handle_overflow(address_of_cause: u64) -> ! {
    let give_up = handlers::get().give_up;
    give_up(&format_args!("the stack has overflowed at {address_of_cause:#x}"))
}

// The handlers save the registers that a call may change, and the two that describe the interrupted
// code. The kernel uses no SIMD registers.
global_asm!(
    r#"
    .macro vector target
    .balign 128
    b       \target
    .endm

    .section .text.vectors, "ax"
    .balign 2048
    .globl exception_vectors
exception_vectors:
    .rept 4
    vector  unexpected
    .endr
    vector  synchronous
    vector  interrupt
    vector  unexpected
    vector  unexpected
    .rept 8
    vector  unexpected
    .endr

    // A fault on a full stack cannot be handled there. No other code uses tpidr_el0.
    .macro save_registers
    msr     tpidr_el0, x0
    sub     x0, sp, #192
    tbz     x0, #{stack_shift}, stack_overflow
    mrs     x0, tpidr_el0
    sub     sp, sp, #192
    stp     x0, x1, [sp]
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x29, [sp, #144]
    mrs     x9, elr_el1
    mrs     x10, spsr_el1
    stp     x30, x9, [sp, #160]
    str     x10, [sp, #176]
    .endm

synchronous:
    save_registers
    mrs     x0, esr_el1
    mrs     x1, elr_el1
    mrs     x2, far_el1
    bl      {handle_exception}
    b       restore_registers

interrupt:
    save_registers
    bl      {handle_interrupts}

restore_registers:
    ldp     x30, x9, [sp, #160]
    ldr     x10, [sp, #176]
    msr     elr_el1, x9
    msr     spsr_el1, x10
    ldp     x0, x1, [sp]
    ldp     x2, x3, [sp, #16]
    ldp     x4, x5, [sp, #32]
    ldp     x6, x7, [sp, #48]
    ldp     x8, x9, [sp, #64]
    ldp     x10, x11, [sp, #80]
    ldp     x12, x13, [sp, #96]
    ldp     x14, x15, [sp, #112]
    ldp     x16, x17, [sp, #128]
    ldp     x18, x29, [sp, #144]
    add     sp, sp, #192
    eret

stack_overflow:
    ldr     x0, =overflow_stack_end
    mov     sp, x0
    mrs     x0, elr_el1
    bl      {handle_overflow}

unexpected:
    mrs     x0, esr_el1
    mrs     x1, elr_el1
    mrs     x2, far_el1
    bl      {handle_unexpected}
    .ltorg

    // All CPUs share this stack, because an overflow ends the run.
    .section .bss.overflow_stack, "aw", @nobits
    .balign 2 * {stack}
    .skip 2 * {stack}
overflow_stack_end:
    "#,
    stack = const stack_layout::BYTES,
    stack_shift = const stack_layout::SHIFT,
    handle_overflow = sym handle_overflow,
    handle_exception = sym handle_exception,
    handle_interrupts = sym gic::handle_interrupts,
    handle_unexpected = sym handle_unexpected,
);
