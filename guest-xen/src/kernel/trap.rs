//! Stores that may fail, and the page faults by which they do.

use super::hypercall::hypercall;
use core::arch::global_asm;

const SET_TRAP_TABLE: u64 = 0;
const PAGE_FAULT: u8 = 14;
/// `FLAT_KERNEL_CS`
pub(crate) const KERNEL_CODE: u16 = 0xe033;
/// `FLAT_KERNEL_SS`
pub(crate) const KERNEL_STACK: u16 = 0xe02b;

/// `struct trap_info`
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct TrapInfo {
    vector: u8,
    flags: u8,
    code: u16,
    address: u64,
}

unsafe extern "C" {
    fn page_fault();
    fn try_store(address: u64, value: u64) -> u64;
}

impl TrapInfo {
    /// Returns the page fault's.
    pub(crate) fn page_fault() -> TrapInfo {
        let address = page_fault as *const () as u64;
        TrapInfo { vector: PAGE_FAULT, flags: 0, code: KERNEL_CODE, address }
    }
}

/// Has Xen pass this CPU's page faults on.
pub(crate) fn load() {
    let table = [TrapInfo::page_fault(), TrapInfo::default()];
    let pointer = table.as_ptr().expose_provenance() as u64;
    // SAFETY: Xen reads the table up to its last entry, whose address is 0. It cannot refuse it.
    let _ = unsafe { hypercall(SET_TRAP_TABLE, [pointer, 0, 0, 0, 0]) };
}

/// Writes a word; `false` if it cannot be written.
///
/// # Safety
/// What is mapped there may be written.
pub(crate) unsafe fn store(address: u64, value: u64) -> bool {
    // SAFETY: as the caller says; a page fault goes to `try_store`'s other way out.
    unsafe { try_store(address, value) == 1 }
}

// Xen pushes rcx and r11 above the processor's own frame (error code, rip, cs, rflags, rsp, ss),
// with the privilege level taken out of cs; `iretq` wants the one that a PV kernel has. Any other
// page fault is a fault of the kernel's.
global_asm!(
    r#"
    .section .text.trap, "ax"
    .globl try_store
try_store:
1:  movq %rsi, (%rdi)
    movl $1, %eax
    retq
2:  xorl %eax, %eax
    retq

    .globl page_fault
page_fault:
    popq %rcx
    popq %r11
    addq $8, %rsp
    pushq %rax
    leaq 1b(%rip), %rax
    cmpq %rax, 8(%rsp)
    jne 3f
    leaq 2b(%rip), %rax
    movq %rax, 8(%rsp)
    popq %rax
    orq $3, 8(%rsp)
    orq $3, 32(%rsp)
    iretq
3:  movq 8(%rsp), %rdi
    call {fatal}
    ud2
    "#,
    fatal = sym fatal,
    options(att_syntax)
);

extern "C" fn fatal(at: u64) -> ! {
    panic!("page fault at {at:#x}")
}
