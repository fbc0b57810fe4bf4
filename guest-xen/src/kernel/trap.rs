//! Stores that may fail by a page fault.

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
    /// Returns the entry for page faults.
    pub(crate) fn page_fault() -> TrapInfo {
        let address = page_fault as *const () as u64;
        TrapInfo { vector: PAGE_FAULT, flags: 0, code: KERNEL_CODE, address }
    }
}

/// Makes Xen pass this CPU's page faults on.
pub(crate) fn load() {
    let table = [TrapInfo::page_fault(), TrapInfo::default()];
    let pointer = table.as_ptr().expose_provenance() as u64;
    // SAFETY: Xen reads the table up to its last entry, whose address is 0. It cannot fail.
    let _ = unsafe { hypercall(SET_TRAP_TABLE, [pointer, 0, 0, 0, 0]) };
}

/// Writes a word. Returns `false` if that causes a page fault.
///
/// # Safety
/// Memory that is mapped there may be overwritten.
pub(crate) unsafe fn store(address: u64, value: u64) -> bool {
    // SAFETY: the caller guarantees it; a page fault makes `try_store` return 0.
    unsafe { try_store(address, value) == 1 }
}

// Xen pushes rcx and r11 above the processor's own frame (error code, rip, cs, rflags, rsp, ss),
// and clears the privilege level in cs. `iretq` needs the privilege level of a PV kernel there. Any
// other page fault is an error of the kernel.
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

extern "C" fn fatal(address: u64) -> ! {
    panic!("page fault at {address:#x}")
}
