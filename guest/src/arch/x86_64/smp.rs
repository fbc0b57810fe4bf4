//! Starts the other CPUs by INIT and SIPI (Intel SDM volume 3, 9.4.4).

use super::clock::Clock;
use super::cpu_number;
use super::flush::flush_all;
use super::image;
use super::lapic::{self, Ipi, LocalApic};
use super::layout::LAYOUT;
use super::machine_check;
use super::paging;
use super::trap;
use crate::arch::handlers;
use crate::arch::overflow::overflow_if_planned;
use core::arch::global_asm;
use core::fmt;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::signal::{other_cpus, set_other_cpus};
use hotmem_guest::to_usize;
use x86_64::instructions::interrupts;

/// The number of the CPU that has started last. The Release of `ap_main` pairs with the Acquire in
/// `start_one`.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);
/// The initial stack of the CPU that is started next. The CPU that boots writes it before it sends
/// the SIPI, which orders the accesses. The same holds for `NEXT_NUMBER`.
static NEXT_STACK: AtomicUsize = AtomicUsize::new(0);
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);

/// The page in the first MiB at which a CPU starts in real mode. The kernel keeps the page out of
/// use.
pub(crate) const TRAMPOLINE: u64 = 0x8000;
/// The delay between INIT and SIPI.
const INIT_DELAY_US: u64 = 10_000;
/// The time after which a CPU counts as missing. It is long, because on a busy host a virtual CPU
/// may start late.
const START_TIMEOUT_US: u64 = 60_000_000;

/// The reason why a CPU could not be started.
pub(crate) enum StartError<E> {
    /// The CPU that boots has no local APIC, by which it would start the others.
    NoLocalApic,
    /// The CPU gets no stack.
    Stack(E),
    /// The CPU with this APIC ID does not start.
    NotStarted(u8),
    /// There is no other CPU.
    NoOtherCpu,
}

/// Starts the other CPUs with these IDs of their local APICs. They run
/// [`run_other_cpu`](handlers::Handlers::run_other_cpu). `add_stack` makes the stacks of the CPU with a
/// number, and returns the end of the stack on which it starts.
pub(crate) fn start_others<E>(
    apic_ids: &[u64],
    clock: &Clock,
    mut add_stack: impl FnMut(usize) -> Result<usize, E>,
) -> Result<(), StartError<E>> {
    let apic = LocalApic::get().ok_or(StartError::NoLocalApic)?;
    let (start, end) = (&raw const ap_start, &raw const ap_end);
    let len = end.addr() - start.addr();
    // SAFETY: the page at `TRAMPOLINE` is mapped, and nothing uses it after the loader's tables
    // were read. The code is shorter than a page.
    unsafe { LAYOUT.virt(TRAMPOLINE).copy_from_nonoverlapping(start, len) };
    paging::restore_identity_map();
    let own_id = apic.id();
    let ids = apic_ids.iter().filter_map(|&id| u8::try_from(id).ok());
    for id in ids.filter(|&id| u32::from(id) != own_id).take(MAX_CPUS - 1) {
        let number = other_cpus() + 1;
        let stack_end = add_stack(number).map_err(StartError::Stack)?;
        start_one(apic, id, number, stack_end, clock)?;
    }
    paging::drop_identity_map();
    flush_all();
    if other_cpus() == 0 { Err(StartError::NoOtherCpu) } else { Ok(()) }
}

fn start_one<E>(
    apic: &LocalApic,
    id: u8,
    number: usize,
    stack_end: usize,
    clock: &Clock,
) -> Result<(), StartError<E>> {
    NEXT_STACK.store(stack_end, Relaxed);
    NEXT_NUMBER.store(number, Relaxed);
    let wait = |us: u64, is_done: &dyn Fn() -> bool| {
        let until = clock.now_us() + us;
        while !is_done() && clock.now_us() < until {
            core::hint::spin_loop();
        }
        is_done()
    };
    let has_arrived = || ARRIVED.load(Acquire) == number;
    apic.send(id, Ipi::Init);
    wait(INIT_DELAY_US, &|| false);
    for timeout_us in [INIT_DELAY_US, START_TIMEOUT_US] {
        apic.send(id, Ipi::Startup { page: TRAMPOLINE >> 12 });
        if wait(timeout_us, &has_arrived) {
            set_other_cpus(number);
            return Ok(());
        }
    }
    Err(StartError::NotStarted(id))
}

/// Runs another CPU. The trampoline calls this function on the stack of that CPU.
extern "C" fn ap_main(number: u64) -> ! {
    let number = to_usize(number);
    cpu_number::set(number);
    trap::load();
    machine_check::enable();
    lapic::enable_on_this_cpu();
    interrupts::enable();
    overflow_if_planned();
    ARRIVED.store(number, Release);
    (handlers::get().run_other_cpu)(number)
}

unsafe extern "C" {
    /// The trampoline's first byte, and the byte after its last.
    static ap_start: u8;
    static ap_end: u8;
}

// Switches directly from real mode to 64-bit mode: paging and protection are enabled together
// (Intel SDM volume 3, 10.8.5).
global_asm!(
    r#"
    .section .rodata.trampoline, "a"
    .balign 16
    .globl ap_start
    .globl ap_end
    .code16
ap_start:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    lgdtl ap_gdt_pointer - ap_start
    movl $0x20, %eax                    # PAE
    movl %eax, %cr4
    movl $boot_root - {base}, %eax
    movl %eax, %cr3
    movl $0x80000001, %eax
    cpuid
    shrl $9, %edx                       # Execute Disable Bit, bit 20
    andl $0x800, %edx                   # NXE, bit 11
    movl %edx, %edi
    movl $0xc0000080, %ecx              # EFER
    rdmsr
    orl $0x100, %eax                    # LME
    orl %edi, %eax                      # NXE, if the CPU has it
    wrmsr
    movl %cr0, %eax
    andl $0x9fffffff, %eax              # caches on
    orl $0x80010001, %eax               # PG, WP, PE
    movl %eax, %cr0
    ljmpl $8, $ap_long - ap_start + {trampoline}
    .code64
ap_long:
    movabsq $ap_high, %rax
    jmpq *%rax
    .balign 8
ap_gdt:
    .quad 0
    .quad 0x00af9b000000ffff            # 64-bit code
ap_gdt_pointer:
    .word ap_gdt_pointer - ap_gdt - 1
    .long ap_gdt - ap_start + {trampoline}
ap_end:

    .section .text.ap_high, "ax"
ap_high:
    lgdt boot_gdt_high(%rip)
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    movq {stack}(%rip), %rsp
    movq {number}(%rip), %rdi
    xorl %ebp, %ebp
    call {main}
    ud2
    "#,
    base = const image::KERNEL_BASE,
    trampoline = const TRAMPOLINE,
    stack = sym NEXT_STACK,
    number = sym NEXT_NUMBER,
    main = sym ap_main,
    options(att_syntax)
);

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoLocalApic => f.write_str("there is no local APIC to start CPUs by"),
            StartError::Stack(error) => error.fmt(f),
            StartError::NotStarted(id) => write!(f, "the CPU with APIC ID {id} does not start"),
            StartError::NoOtherCpu => f.write_str("there is no other CPU"),
        }
    }
}
