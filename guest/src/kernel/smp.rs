//! The other CPUs: started by INIT and SIPI (Intel SDM volume 3, 9.4.4), told apart, interrupted
//! when they have to forget what was mapped, and asked for what else all of them have to do.

use super::acpi::MAX_CPUS;
use super::churn;
use super::clock::Clock;
use super::entry;
use super::faults;
use super::lapic::{self, Ipi, LocalApic};
use super::memory::{AddressSpace, alloc_frames, virt};
use super::trap;
use core::arch::{asm, global_asm};
use core::fmt;
use core::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use hotmem::{AllocError, AllocRequest, Platform};
use hotmem_guest::to_usize;
use x86_64::VirtAddr;
use x86_64::instructions::{interrupts, tlb};
use x86_64::registers::model_specific::GsBase;

/// The engine's CPU numbers: 0 is the one that boots.
pub(crate) struct ThisCpu;

/// What every CPU has to do before the one that asks goes on.
pub(crate) struct Signal {
    asked: AtomicU32,
    answered: [AtomicU32; MAX_CPUS],
}

/// The other CPUs forget where memory was mapped.
static FLUSH: Signal = Signal::new();

/// How many other CPUs run. Written by the CPU that boots alone.
static OTHERS: AtomicUsize = AtomicUsize::new(0);
/// The number of the CPU that came last. Its store is the release, `start` has the acquire.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);
/// What the next CPU is to find in its registers. The CPU that boots writes it before it sends the
/// SIPI, which orders the two.
static NEXT_STACK: AtomicUsize = AtomicUsize::new(0);
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);

/// What GS points into: each CPU to its own number.
static NUMBERS: [usize; MAX_CPUS] = {
    let mut numbers = [0; MAX_CPUS];
    let mut n = 0;
    while n < MAX_CPUS {
        numbers[n] = n;
        n += 1;
    }
    numbers
};

/// Where a CPU starts in real mode: a page of the first MiB, which the kernel keeps out of use.
pub(crate) const TRAMPOLINE: u64 = 0x8000;
const STACK_FRAMES: u64 = 16;
/// Between INIT and SIPI, and until a CPU that does not come is given up: on a busy host a virtual
/// one may have to wait for its turn.
const INIT_US: u64 = 10_000;
const COME_US: u64 = 60_000_000;

/// The reason why a CPU could not be started.
pub(crate) enum StartError {
    /// There is no memory for its stack.
    Stack(AllocError),
    /// It does not come. Its APIC's number.
    Silent(u8),
    /// There is none.
    Alone,
}

impl Platform for ThisCpu {
    fn cpu(&self) -> usize {
        let number;
        // SAFETY: GS points to the CPU's entry in `NUMBERS`, since `set_number`.
        unsafe {
            asm!(
                "mov {}, qword ptr gs:[0]",
                out(reg) number,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        number
    }

    fn wake_reporter(&self) {
        trap::wake_reporter();
    }
}

/// Gives the calling CPU its number; before that it must not use [`FRAMES`](super::memory::FRAMES).
pub(crate) fn set_number(cpu: usize) {
    GsBase::write(VirtAddr::from_ptr(&raw const NUMBERS[cpu]));
}

/// Returns how many other CPUs run.
pub(crate) fn others() -> usize {
    OTHERS.load(Relaxed)
}

/// Has all CPUs forget where memory was mapped, whatever they are at.
pub(crate) fn flush_all() {
    tlb::flush_all();
    if others() > 0 {
        let round = FLUSH.begin();
        lapic::interrupt_others(trap::FLUSH);
        FLUSH.wait(round);
    }
}

/// Forgets where memory was mapped, if that was asked of this CPU.
pub(crate) fn answer_flush(cpu: usize) {
    FLUSH.answer(cpu, tlb::flush_all);
}

impl Signal {
    pub(crate) const fn new() -> Self {
        Signal { asked: AtomicU32::new(0), answered: [const { AtomicU32::new(0) }; MAX_CPUS] }
    }

    /// Asks all other CPUs, and waits until all have done it. Only the CPU that boots asks.
    pub(crate) fn ask(&self) {
        self.wait(self.begin());
    }

    fn begin(&self) -> u32 {
        let round = self.asked.load(Relaxed).wrapping_add(1);
        // Release, to the acquire in `answer`: they see what was written before.
        self.asked.store(round, Release);
        round
    }

    fn wait(&self, round: u32) {
        for answered in &self.answered[1..=others()] {
            // Acquire, from the release in `answer`: what they did has happened.
            while answered.load(Acquire) != round {
                core::hint::spin_loop();
            }
        }
    }

    /// Does what is asked, if anything is.
    pub(crate) fn answer(&self, cpu: usize, act: impl FnOnce()) {
        let round = self.asked.load(Acquire);
        let answered = &self.answered[cpu];
        if answered.load(Relaxed) != round {
            act();
            answered.store(round, Release);
        }
    }
}

/// Starts all CPUs but the calling one, which is the one that boots. They [`faults::run`] if that
/// is wanted, or [`churn::run`].
pub(crate) fn start_others(
    apic: &LocalApic,
    apic_ids: &[u8],
    clock: &Clock,
    space: &mut AddressSpace,
) -> Result<(), StartError> {
    let (start, end) = (&raw const ap_start, &raw const ap_end);
    let len = end.addr() - start.addr();
    // SAFETY: the first MiB is mapped and in nobody's hands, now that the loader's tables have been
    // read; the code is less than a page.
    unsafe { virt(TRAMPOLINE).copy_from_nonoverlapping(start, len) };
    space.restore_identity_map();
    let own = apic.id();
    for &id in apic_ids.iter().filter(|&&id| u32::from(id) != own).take(MAX_CPUS - 1) {
        start_one(apic, id, others() + 1, clock)?;
    }
    space.drop_identity_map();
    flush_all();
    if others() == 0 { Err(StartError::Alone) } else { Ok(()) }
}

fn start_one(apic: &LocalApic, id: u8, number: usize, clock: &Clock) -> Result<(), StartError> {
    let stack = alloc_frames(AllocRequest::frames(STACK_FRAMES)).map_err(StartError::Stack)?;
    let top = virt(stack.end().phys_addr()).addr();
    NEXT_STACK.store(top, Relaxed);
    NEXT_NUMBER.store(number, Relaxed);
    let wait = |us: u64, done: &dyn Fn() -> bool| {
        let until = clock.now_us() + us;
        while !done() && clock.now_us() < until {
            core::hint::spin_loop();
        }
        done()
    };
    let arrived = || ARRIVED.load(Acquire) == number;
    apic.send(id, Ipi::Init);
    wait(INIT_US, &|| false);
    for patience in [INIT_US, COME_US] {
        apic.send(id, Ipi::Startup { page: TRAMPOLINE >> 12 });
        if wait(patience, &arrived) {
            OTHERS.store(number, Relaxed);
            return Ok(());
        }
    }
    Err(StartError::Silent(id))
}

/// Where the trampoline jumps to, on a stack of its own.
extern "C" fn ap_main(number: u64) -> ! {
    let number = to_usize(number);
    set_number(number);
    trap::load();
    lapic::join();
    interrupts::enable();
    ARRIVED.store(number, Release);
    if faults::are_wanted() {
        faults::run(number)
    }
    churn::run(number)
}

unsafe extern "C" {
    /// The trampoline's first byte, and the one past its last.
    static ap_start: u8;
    static ap_end: u8;
}

// From real mode to 64-bit mode at once: paging and protection are switched on together
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
    movl $0xc0000080, %ecx              # EFER
    rdmsr
    orl $0x100, %eax                    # LME
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
    base = const entry::KERNEL_BASE,
    trampoline = const TRAMPOLINE,
    stack = sym NEXT_STACK,
    number = sym NEXT_NUMBER,
    main = sym ap_main,
    options(att_syntax)
);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Stack(error) => error.fmt(f),
            StartError::Silent(id) => write!(f, "the one with APIC {id} does not start"),
            StartError::Alone => f.write_str("there is no other"),
        }
    }
}
