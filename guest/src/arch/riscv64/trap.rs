//! Handles exceptions and interrupts. An exception ends the run, except a fault on a page that is being
//! migrated, for which the handler waits until the page is mapped again.

use super::layout::LAYOUT;
use super::{interrupts, plic, stack_layout, timer};
use crate::arch::handlers;
use core::arch::global_asm;

// The causes in `scause` (privileged specification, 12.1.8). The highest bit marks interrupts.
const SOFTWARE: i64 = i64::MIN | 1;
const TIMER: i64 = i64::MIN | 5;
const EXTERNAL: i64 = i64::MIN | 9;
const LOAD_PAGE_FAULT: i64 = 13;
const STORE_PAGE_FAULT: i64 = 15;

/// Handles an interrupt, or an exception that an instruction has caused. `value` is the address of the
/// access, or the instruction.
pub(super) extern "C" fn handle_trap(cause: i64, address_of_cause: u64, value: u64) {
    match cause {
        SOFTWARE => return interrupts::answer_software_interrupt(),
        TIMER => return timer::handle_tick(),
        EXTERNAL => return plic::handle(),
        LOAD_PAGE_FAULT | STORE_PAGE_FAULT if (handlers::get().page_is_absent)(value) => return,
        _ => {}
    }
    let name = match cause {
        0 => "misaligned instruction address",
        1 => "instruction access fault",
        2 => "illegal instruction",
        3 => "breakpoint",
        4 => "misaligned load address",
        5 => "load access fault",
        6 => "misaligned store address",
        7 => "store access fault",
        12 => "instruction page fault",
        LOAD_PAGE_FAULT => "load page fault",
        STORE_PAGE_FAULT => "store page fault",
        18 => "software check",
        19 => "hardware error",
        ..0 => "unexpected interrupt",
        _ => "exception",
    };
    (handlers::get().give_up)(&format_args!(
        "{name} at {address_of_cause:#x}, cause {cause:#x}, value {value:#x}"
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

// The handler saves the registers that a call may change, and the two that describe the interrupted code.
// The kernel uses no floating-point registers. No other code uses `sscratch`.
global_asm!(
    r#"
    .section .text.trap, "ax"
    .balign 4
    .globl trap_entry
trap_entry:
    // A fault on a full stack cannot be handled there.
    csrw    sscratch, t0
    addi    t0, sp, -144
    slli    t0, t0, 63 - {stack_shift}
    bgez    t0, stack_overflow
    csrr    t0, sscratch
    addi    sp, sp, -144
    sd      ra, (sp)
    sd      t0, 8(sp)
    sd      t1, 16(sp)
    sd      t2, 24(sp)
    sd      t3, 32(sp)
    sd      t4, 40(sp)
    sd      t5, 48(sp)
    sd      t6, 56(sp)
    sd      a0, 64(sp)
    sd      a1, 72(sp)
    sd      a2, 80(sp)
    sd      a3, 88(sp)
    sd      a4, 96(sp)
    sd      a5, 104(sp)
    sd      a6, 112(sp)
    sd      a7, 120(sp)
    csrr    t0, sstatus
    sd      t0, 128(sp)
    csrr    a0, scause
    csrr    a1, sepc
    sd      a1, 136(sp)
    csrr    a2, stval
    call    {handle_trap}
    ld      t0, 128(sp)
    csrw    sstatus, t0
    ld      t0, 136(sp)
    csrw    sepc, t0
    ld      ra, (sp)
    ld      t0, 8(sp)
    ld      t1, 16(sp)
    ld      t2, 24(sp)
    ld      t3, 32(sp)
    ld      t4, 40(sp)
    ld      t5, 48(sp)
    ld      t6, 56(sp)
    ld      a0, 64(sp)
    ld      a1, 72(sp)
    ld      a2, 80(sp)
    ld      a3, 88(sp)
    ld      a4, 96(sp)
    ld      a5, 104(sp)
    ld      a6, 112(sp)
    ld      a7, 120(sp)
    addi    sp, sp, 144
    sret

stack_overflow:
    lla     sp, overflow_stack_end
    csrr    a0, sepc
    call    {handle_overflow}

    // All CPUs share this stack, because an overflow ends the run.
    .section .bss.overflow_stack, "aw", @nobits
    .balign 2 * {stack}
    .skip 2 * {stack}
overflow_stack_end:
    "#,
    stack = const stack_layout::BYTES,
    stack_shift = const stack_layout::SHIFT,
    handle_trap = sym handle_trap,
    handle_overflow = sym handle_overflow,
);
