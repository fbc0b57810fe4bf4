//! Handles exceptions and interrupts. An exception ends the run, except a fault on a page that is
//! being migrated, for which the handler waits until the page is mapped again, and a machine check
//! that the kernel can survive. An interrupt only sets a flag,
//! or flushes a CPU's TLB. If `hotmem.nmis` is on, NMIs allocate and free memory.

use super::fatal::give_up;
use super::flush::answer_flush;
use super::progress::WATCHDOG;
use super::this_cpu::ThisCpu;
use super::vectors::{FIRST_MSI_VECTOR, FLUSH, MSI_VECTORS, TICK};
use super::{image, lapic, machine_check, moving_pages, nmi, pic, pit, stacks, task_state, wakeup};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use hotmem::Platform;
use hotmem_guest::to_usize;
use spin::Once;
use x86_64::VirtAddr;
use x86_64::instructions::{interrupts, tables};
use x86_64::registers::control::Cr2;
use x86_64::structures::DescriptorTablePointer;

const NMI: u8 = 2;
const DOUBLE_FAULT: usize = 8;
const PAGE_FAULT: u64 = 14;
const MACHINE_CHECK: u8 = 18;
const VECTORS: usize = TICK as usize + 1;

/// A bit for each IRQ that is enabled for a device.
static ENABLED_LINES: AtomicU16 = AtomicU16::new(0);
/// A bit for each IRQ that was raised. The handler sets it and [`answer_lines`] clears it on the
/// same CPU, so no order is needed.
static RAISED_LINES: AtomicU16 = AtomicU16::new(0);
/// A bit for each message-signalled interrupt that has arrived; [`take_messages`] clears it.
static MESSAGES_ARRIVED: AtomicU32 = AtomicU32::new(0);
/// The number of consecutive stray interrupts, which no device of this kernel has raised.
static STRAY_COUNT: AtomicU16 = AtomicU16::new(0);

/// The number of consecutive stray interrupts after which the line stays masked, so that another
/// device on a shared line cannot keep the CPU busy.
const MAX_STRAY: u16 = 16;

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
    task_state::load(ThisCpu.cpu());
    // SAFETY: `gates` is static, and each gate points to one of the stubs below.
    unsafe { tables::lidt(&DescriptorTablePointer { limit, base }) }
}

/// Enables the IRQ of a PCI device. Also enables all level-triggered IRQs, which firmware has set
/// up for PCI, because some firmware reports a wrong IRQ. Returns whether any IRQ was enabled.
pub(crate) fn enable_shared_line(irq: Option<u8>) -> bool {
    enable_lines(irq.map_or(0, irq_bit) | pic::level_triggered())
}

/// Enables an IRQ that only one device uses. Returns whether the IRQ is available.
pub(crate) fn enable_own_line(irq: u8) -> bool {
    enable_lines(irq_bit(irq))
}

fn enable_lines(lines: u16) -> bool {
    let lines = if pic::exists() { lines & pic::FREE_LINES } else { 0 };
    ENABLED_LINES.fetch_or(lines, Relaxed);
    pic::unmask_all(lines);
    lines != 0
}

fn irq_bit(irq: u8) -> u16 {
    1u16.checked_shl(irq.into()).unwrap_or(0)
}

/// Returns a bit for each message-signalled interrupt that has arrived since the last call.
pub(crate) fn take_messages() -> u32 {
    MESSAGES_ARRIVED.swap(0, Relaxed)
}

/// Handles the IRQs that were raised since the last call. `acknowledge_devices` reads each device's
/// interrupt status, and returns whether any device had interrupted. The IRQs are unmasked after
/// that, because a device asserts its line until its status is read.
pub(crate) fn answer_lines(acknowledge_devices: impl FnOnce() -> bool) {
    let raised = RAISED_LINES.swap(0, Relaxed);
    if raised == 0 {
        return;
    }
    let stray = if acknowledge_devices() { 0 } else { STRAY_COUNT.load(Relaxed).saturating_add(1) };
    STRAY_COUNT.store(stray, Relaxed);
    if stray < MAX_STRAY {
        pic::unmask_all(raised);
    }
}

/// Halts until a device interrupts or the timer ticks. Does not halt if an interrupt is pending.
pub(crate) fn wait_for_interrupt() {
    interrupts::disable();
    let memory_was_freed = wakeup::take_memory_freed();
    if memory_was_freed || RAISED_LINES.load(Relaxed) != 0 || MESSAGES_ARRIVED.load(Relaxed) != 0 {
        interrupts::enable();
    } else {
        // No interrupt is lost between `sti` and `hlt`, because `sti` takes effect only after the
        // instruction that follows it.
        interrupts::enable_and_hlt();
    }
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
    if vector == NMI && nmi::handle(ThisCpu.cpu()) {
        return;
    }
    if vector == MACHINE_CHECK {
        return machine_check::handle();
    }
    if vector == FLUSH {
        answer_flush(ThisCpu.cpu());
        return lapic::end_of_interrupt();
    }
    if vector == TICK {
        lapic::end_of_interrupt();
        return tick();
    }
    if let Some(message) = vector.checked_sub(FIRST_MSI_VECTOR) {
        MESSAGES_ARRIVED.fetch_or(1 << (message % MSI_VECTORS), Relaxed);
        return lapic::end_of_interrupt();
    }
    let Some(irq) = vector.checked_sub(pic::FIRST_VECTOR) else { return handle_exception(frame) };
    if irq == pit::IRQ {
        pic::end_of_interrupt(irq);
        tick();
    } else if let line = 1u16 << irq
        && ENABLED_LINES.load(Relaxed) & line != 0
    {
        pic::mask(irq);
        pic::end_of_interrupt(irq);
        RAISED_LINES.fetch_or(line, Relaxed);
    }
    // Any other IRQ is masked, so its interrupt was spurious, and needs no end of interrupt.
}

/// Handles a tick of the timer.
fn tick() {
    if WATCHDOG.tick().is_some() {
        give_up("watchdog: no progress");
    }
}

fn handle_exception(frame: &TrapFrame) {
    // Bit 0 of a page fault's error code is clear if the page is not present (Intel SDM volume 3,
    // 4.7).
    let is_not_present = frame.vector == PAGE_FAULT && frame.error_code & 1 == 0;
    if is_not_present && moving_pages::wait_for_page(Cr2::read_raw()) {
        return;
    }
    let is_guard = |addr| image::is_guard(addr) || stacks::is_guard(addr);
    if to_usize(frame.vector) == DOUBLE_FAULT && is_guard(Cr2::read_raw()) {
        give_up(format_args!("the stack has overflowed at {:#x}", frame.rip));
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
    give_up(format_args!(
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
