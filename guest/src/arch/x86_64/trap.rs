//! Handles exceptions and interrupts. An exception ends the run, except a fault on a page that is
//! being migrated, for which the handler waits until the page is mapped again, and a machine check
//! that the kernel can survive. An interrupt only sets a flag,
//! or flushes a CPU's TLB. NMIs are for the kernel, if the run
//! expects them.

use super::cpu_number::cpu_number;
use super::flush::answer_flush;
use super::vectors::{FIRST_MESSAGE_VECTOR, FLUSH, TICK};
use super::{image, interrupts, lapic, machine_check, pic, pit, stack_layout, task_state};
use crate::arch::handlers;
use core::arch::global_asm;
use core::convert::Infallible;
use hotmem_guest::to_usize;
use spin::Once;
use x86_64::VirtAddr;
use x86_64::instructions::tables;
use x86_64::registers::control::Cr2;
use x86_64::structures::DescriptorTablePointer;

const NMI: u8 = 2;
const DOUBLE_FAULT: usize = 8;
const PAGE_FAULT: u64 = 14;
const MACHINE_CHECK: u8 = 18;
const VECTORS: usize = TICK as usize + 1;

/// The kernel's handler of NMIs, if the run expects them.
static NMI_HANDLER: Once<fn(usize)> = Once::new();

/// An interrupt gate of a 64-bit IDT (Intel SDM volume 3, 6.14.1).
#[derive(Clone, Copy)]
#[repr(C)]
struct Gate {
    offset_low: u16,
    selector: u16,
    options: u16,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

/// The top of the stack when the stubs call [`handle_trap`].
#[repr(C)]
struct TrapFrame {
    saved_registers: [u64; 9],
    vector: u64,
    error_code: u64,
    rip: u64,
}

/// Loads the IDT and the stacks of double faults and NMIs. From now on exceptions and interrupts are
/// handled here.
pub(crate) fn load() {
    static GATES: Once<[Gate; VECTORS]> = Once::new();
    let stub = |vector: usize| (&raw const trap_stubs).expose_provenance() + STUB_BYTES * vector;
    let gates = GATES.call_once(|| {
        let mut gates = core::array::from_fn(|vector| Gate::new(stub(vector) as u64));
        gates[DOUBLE_FAULT].options |= task_state::DOUBLE_FAULT_STACK;
        gates[usize::from(NMI)].options |= task_state::NMI_STACK;
        gates
    });
    let limit = u16::try_from(size_of_val(gates) - 1).unwrap_or(u16::MAX);
    let base = VirtAddr::from_ptr(gates);
    task_state::load(cpu_number());
    // SAFETY: `gates` is static, and each gate points to one of the stubs below.
    unsafe { tables::lidt(&DescriptorTablePointer { limit, base }) }
}

/// Makes each NMI call `handle` with the number of the CPU. An NMI before this ends the run.
#[expect(clippy::unnecessary_wraps, reason = "another architecture may have no NMIs")]
pub(crate) fn handle_nmis(handle: fn(usize)) -> Result<(), Infallible> {
    NMI_HANDLER.call_once(|| handle);
    Ok(())
}

impl Gate {
    /// Makes a gate to `handler`, which runs in ring 0 with interrupts disabled.
    fn new(handler: u64) -> Self {
        let part = |shift: u32| u16::try_from(handler >> shift & 0xffff).unwrap_or_default();
        Gate {
            offset_low: part(0),
            selector: 8,
            options: 0x8e00,
            offset_middle: part(16),
            offset_high: u32::from(part(32)) | u32::from(part(48)) << 16,
            reserved: 0,
        }
    }
}

extern "C" fn handle_trap(frame: &TrapFrame) {
    let vector = u8::try_from(frame.vector).unwrap_or(0);
    if vector == NMI
        && let Some(handle) = NMI_HANDLER.get()
    {
        return handle(cpu_number());
    }
    if vector == MACHINE_CHECK {
        return machine_check::handle();
    }
    if vector == FLUSH {
        answer_flush(cpu_number());
        return lapic::end_of_interrupt();
    }
    if vector == TICK {
        lapic::end_of_interrupt();
        return (handlers::get().tick)();
    }
    if let Some(message) = vector.checked_sub(FIRST_MESSAGE_VECTOR) {
        interrupts::message_arrived(message);
        return lapic::end_of_interrupt();
    }
    let Some(irq) = vector.checked_sub(pic::FIRST_VECTOR) else { return handle_exception(frame) };
    if irq == pit::IRQ {
        pic::end_of_interrupt(irq);
        (handlers::get().tick)();
    } else {
        interrupts::line_raised(irq);
    }
}

fn handle_exception(frame: &TrapFrame) {
    // Bit 0 of a page fault's error code is clear if the page is not present (Intel SDM volume 3,
    // 4.7).
    let is_not_present = frame.vector == PAGE_FAULT && frame.error_code & 1 == 0;
    if is_not_present && (handlers::get().page_is_absent)(Cr2::read_raw()) {
        return;
    }
    let give_up = handlers::get().give_up;
    let is_guard = |addr| image::is_guard(addr) || stack_layout::is_guard(addr);
    if to_usize(frame.vector) == DOUBLE_FAULT && is_guard(Cr2::read_raw()) {
        give_up(&format_args!("the stack has overflowed at {:#x}", frame.rip));
    }
    const NAMES: [&str; 22] = [
        "divide error",
        "debug",
        "non-maskable interrupt",
        "breakpoint",
        "overflow",
        "bound range exceeded",
        "invalid opcode",
        "device not available",
        "double fault",
        "coprocessor segment overrun",
        "invalid TSS",
        "segment not present",
        "stack-segment fault",
        "general protection fault",
        "page fault",
        "reserved",
        "x87 floating-point error",
        "alignment check",
        "machine check",
        "SIMD floating-point error",
        "virtualization exception",
        "control protection exception",
    ];
    let name = NAMES.get(to_usize(frame.vector)).unwrap_or(&"reserved");
    give_up(&format_args!(
        "{name} at {:#x}, error code {:#x}, address {:#x}",
        frame.rip,
        frame.error_code,
        Cr2::read_raw()
    ))
}

const STUB_BYTES: usize = 16;

unsafe extern "C" {
    /// One stub of [`STUB_BYTES`] for each vector.
    static trap_stubs: u8;
}

// Exceptions 8, 10 to 14, 17, 21, 29 and 30 push an error code. For all other vectors the stub
// pushes 0 instead.
global_asm!(
    r#"
    .section .text.trap, "ax"
    .globl trap_stubs
    .balign {stub}
trap_stubs:
    .set vector, 0
    .rept {vectors}
    .balign {stub}
    .if (0x60227d00 >> vector) & 1 == 0 || vector >= 32
    pushq $0
    .endif
    pushq $vector
    jmp trap_common
    .set vector, vector + 1
    .endr

trap_common:
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    cld
    movq %rsp, %rdi
    call {handle_trap}
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %rax
    addq $16, %rsp
    iretq
    "#,
    stub = const STUB_BYTES,
    vectors = const VECTORS,
    handle_trap = sym handle_trap,
    options(att_syntax)
);
