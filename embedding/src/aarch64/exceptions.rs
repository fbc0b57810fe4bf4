//! Prints exceptions and ends the machine, which without handlers faults for ever without a message.

use crate::end_by_exception;
use core::arch::{asm, global_asm};

unsafe extern "C" {
    static exception_vectors: u8;
}

/// Makes exceptions call the handler below.
pub(crate) fn handle() {
    let vectors = &raw const exception_vectors;
    // SAFETY: the vectors call a handler that never returns.
    unsafe { asm!("msr vbar_el1, {}", "isb", in(reg) vectors, options(nostack, preserves_flags)) };
}

/// Ends the machine by the exception with this syndrome. (Arm ARM, D19.2.39)
extern "C" fn print_and_end(syndrome: u64, instruction: u64, address: u64) -> ! {
    let name = match syndrome >> 26 {
        0x00 => "invalid instruction",
        0x07 => "use of SIMD registers",
        0x21 => "instruction abort",
        0x25 => "data abort",
        _ => "exception",
    };
    end_by_exception(name, instruction, address)
}

// All 16 vectors do the same. They have a stack of their own, as the kernel's stack may have overflowed.
global_asm!(
    r#"
    .section .text.vectors, "ax"
    .balign 2048
exception_vectors:
    .rept 16
    .balign 128
    adrp    x0, exception_stack_top
    mov     sp, x0
    mrs     x0, esr_el1
    mrs     x1, elr_el1
    mrs     x2, far_el1
    bl      {print_and_end}
    .endr

    .section .bss.exception_stack, "aw", @nobits
    .balign 4096
    .skip 0x1000
exception_stack_top:
    "#,
    print_and_end = sym print_and_end,
);
