//! Drives the local APIC, which starts and interrupts other CPUs, delivers NMIs and the interrupts
//! of the 8259s, and has a timer for machines without an 8254. Minimal firmware has not enabled their delivery.

use super::pic;
use super::vectors::{self, Message, message_vector};
use core::arch::asm;
use core::ptr::NonNull;
use spin::Once;
use x86_64::registers::model_specific::Msr;

const APIC_BASE: u32 = 0x1b;
const ENABLED: u64 = 1 << 11;
const X2APIC: u64 = 1 << 10;

const ID: usize = 0x20;
const END_OF_INTERRUPT: usize = 0xb0;
/// Spurious-interrupt vector register: bit 8 switches the APIC on.
const SPURIOUS: usize = 0xf0;
const COMMAND: usize = 0x300;
/// The destination of a command. It is not used if the registers are MSRs.
const DESTINATION: usize = 0x310;
/// The input that the 8259s are wired to.
const LINT0: usize = 0x350;
/// The input that NMIs are wired to.
const LINT1: usize = 0x360;
/// The timer's registers (Intel SDM volume 3, 11.5.4): its interrupt, its initial and current count,
/// and the divisor of its clock.
const TIMER: usize = 0x320;
const INITIAL_COUNT: usize = 0x380;
const CURRENT_COUNT: usize = 0x390;
const DIVISOR: usize = 0x3e0;
const DIVIDE_BY_1: u32 = 0xb;
const PERIODIC: u32 = 1 << 17;
const MASKED: u32 = 1 << 16;
/// The frequency of the timer's clock in KVM (Documentation/virt/kvm/api.rst,
/// `KVM_CAP_X86_APIC_BUS_CYCLES_NS`) and in QEMU.
pub(crate) const TIMER_HZ: u32 = 1_000_000_000;

/// The value that switches the APIC on and sets the spurious-interrupt vector. The vector must end
/// in 0xf, so it is that of IRQ 15, which this kernel does not use.
const SPURIOUS_ON: u32 = 1 << 8 | (pic::FIRST_VECTOR + 15) as u32;
/// A value of an input: it is unmasked, and the 8259s provide the vector.
const EXTERNAL: u32 = 0x700;
/// A value of an input: it is unmasked, and delivers NMIs.
const NMI: u32 = 0x400;
/// A command that interrupts all CPUs except the sender (Intel SDM volume 3, 11.6.1).
const INTERRUPT_OTHERS: u32 = 0xc_4000;
/// A bit of the command register that is set until the command is delivered.
const PENDING: u32 = 1 << 12;

/// The access to the calling CPU's local APIC. [`LocalApic::open`] sets it.
static LOCAL: Once<LocalApic> = Once::new();

/// The destination of messages to a CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ApicId(u8);

/// Access to the local APIC of the calling CPU. Each CPU reaches its own APIC at the same address.
pub(crate) enum LocalApic {
    /// The registers are mapped memory.
    Page(NonNull<u8>),
    /// The registers are MSRs.
    X2Apic,
}

// SAFETY: the address is valid on every CPU, and only the methods of `LocalApic` access the
// registers.
unsafe impl Send for LocalApic {}
// SAFETY: each CPU accesses its own registers, so CPUs that share a `LocalApic` share no register.
unsafe impl Sync for LocalApic {}

/// An interprocessor interrupt.
#[derive(Clone, Copy)]
pub(crate) enum Ipi {
    /// Resets the CPU, which then waits.
    Init,
    /// Starts the CPU at a page.
    Startup {
        /// The number of the page, in the first MiB.
        page: u64,
    },
}

impl LocalApic {
    /// Returns the local APIC, if [`open`](Self::open) has found one.
    pub(super) fn get() -> Option<&'static Self> {
        LOCAL.get()
    }

    /// Finds the local APIC. `map` maps the registers, given their physical address and size.
    /// Returns `None` if the local APIC is disabled; the 8259s then interrupt the CPU directly.
    pub(crate) fn open<E>(
        mut map: impl FnMut(u64, u64) -> Result<NonNull<u8>, E>,
    ) -> Result<Option<&'static Self>, E> {
        // SAFETY: every CPU with a 64-bit mode has this register.
        let base = unsafe { Msr::new(APIC_BASE).read() };
        if base & ENABLED == 0 {
            return Ok(None);
        }
        if base & X2APIC != 0 {
            return Ok(Some(LOCAL.call_once(|| LocalApic::X2Apic)));
        }
        let page = map(base & 0x000f_ffff_ffff_f000, 0x1000)?;
        Ok(Some(LOCAL.call_once(|| LocalApic::Page(page))))
    }

    /// Sets up "virtual wire mode" (Intel SDM volume 3, 11.5.1; MultiProcessor Specification
    /// 3.6.2.2).
    pub(crate) fn pass_on_pic_interrupts_and_nmis(&self) {
        self.write(SPURIOUS, SPURIOUS_ON);
        self.write(LINT0, EXTERNAL);
        self.write(LINT1, NMI);
    }

    /// Makes the timer count down once from the largest count, without an interrupt.
    pub(crate) fn start_countdown(&self) {
        self.write(DIVISOR, DIVIDE_BY_1);
        self.write(TIMER, MASKED | u32::from(vectors::TICK));
        self.write(INITIAL_COUNT, u32::MAX);
    }

    /// Returns the number of counts since [`start_countdown`](Self::start_countdown).
    pub(crate) fn counts_elapsed(&self) -> u32 {
        u32::MAX - self.read(CURRENT_COUNT)
    }

    /// Returns the APIC's ID.
    pub(crate) fn id(&self) -> u32 {
        match self {
            LocalApic::Page(_) => self.read(ID) >> 24,
            LocalApic::X2Apic => self.read(ID),
        }
    }

    /// Sends an interrupt to the CPU with this APIC ID (Intel SDM volume 3, 11.6.1).
    pub(crate) fn send(&self, apic_id: u8, ipi: Ipi) {
        let command = match ipi {
            Ipi::Init => 0x4500,
            Ipi::Startup { page } => 0x4600 | u32::try_from(page & 0xff).unwrap_or(0),
        };
        self.command(apic_id, command);
    }

    fn command(&self, apic_id: u8, command: u32) {
        match self {
            LocalApic::Page(_) => {
                self.write(DESTINATION, u32::from(apic_id) << 24);
                self.write(COMMAND, command);
                while self.read(COMMAND) & PENDING != 0 {
                    core::hint::spin_loop();
                }
            }
            LocalApic::X2Apic => {
                let command = u64::from(apic_id) << 32 | u64::from(command);
                // SAFETY: each destination CPU either does not run kernel code yet or has a
                // handler. The fences make earlier stores visible before the interrupt, because
                // writes of x2APIC registers do not wait for earlier stores (Intel SDM volume 3,
                // 11.12.3).
                unsafe {
                    asm!("mfence", "lfence", options(nostack, preserves_flags));
                    msr(COMMAND).write(command);
                }
            }
        }
    }

    fn read(&self, offset: usize) -> u32 {
        match self {
            // SAFETY: `page` holds the APIC's registers, and is mapped.
            LocalApic::Page(page) => unsafe { page.byte_add(offset).cast::<u32>().read_volatile() },
            LocalApic::X2Apic => {
                // SAFETY: in x2APIC mode these MSRs exist.
                let value = unsafe { msr(offset).read() };
                u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
            }
        }
    }

    fn write(&self, offset: usize, value: u32) {
        match self {
            // SAFETY: `page` holds the APIC's registers, and is mapped. All vectors have handlers,
            // and a CPU that is being started does not run kernel code yet.
            LocalApic::Page(page) => unsafe {
                page.byte_add(offset).cast::<u32>().write_volatile(value);
            },
            // SAFETY: in x2APIC mode these MSRs exist. All vectors have handlers, and a CPU that is
            // being started does not run kernel code yet.
            LocalApic::X2Apic => unsafe { msr(offset).write(value.into()) },
        }
    }
}

/// Enables the local APIC of the calling CPU, which was just started.
pub(crate) fn enable_on_this_cpu() {
    let Some(apic) = LOCAL.get() else { return };
    if let LocalApic::X2Apic = apic {
        let mut base = Msr::new(APIC_BASE);
        // SAFETY: every CPU with a 64-bit mode has this register. The CPU that boots uses x2APIC
        // mode, so this CPU supports that mode too.
        unsafe { base.write(base.read() | ENABLED | X2APIC) }
    }
    apic.write(SPURIOUS, SPURIOUS_ON);
    apic.write(LINT1, NMI);
}

/// Makes the timer of the calling CPU interrupt by [`vectors::TICK`], about `per_second` times a
/// second. Returns whether there is a local APIC.
pub(crate) fn tick_at(per_second: u32) -> bool {
    let Some(apic) = LOCAL.get() else { return false };
    apic.write(DIVISOR, DIVIDE_BY_1);
    apic.write(TIMER, PERIODIC | u32::from(vectors::TICK));
    apic.write(INITIAL_COUNT, TIMER_HZ / per_second);
    true
}

/// Interrupts all other CPUs by a vector.
pub(crate) fn interrupt_others(vector: u8) {
    if let Some(apic) = LOCAL.get() {
        apic.command(0, INTERRUPT_OTHERS | u32::from(vector));
    }
}

/// Signals the end of an interrupt to the local APIC, for interrupts by a device's message or by
/// another CPU.
pub(crate) fn end_of_interrupt() {
    if let Some(apic) = LOCAL.get() {
        apic.write(END_OF_INTERRUPT, 0);
    }
}

impl ApicId {
    /// Returns the calling CPU as a destination of messages, or `None` if it has no local APIC or the
    /// APIC's ID has more than 8 bits.
    pub(crate) fn this_cpu() -> Option<Self> {
        u8::try_from(LocalApic::get()?.id()).ok().map(ApicId)
    }

    /// Returns the address to which the device writes, and the data that it writes, to interrupt this
    /// CPU by the message (Intel SDM volume 3, 11.11). It makes no difference which device does so.
    #[expect(clippy::unnecessary_wraps, reason = "another architecture may need memory for this")]
    pub(crate) fn address_and_data(self, _: u16, message: Message) -> Option<(u64, u32)> {
        Some((0xfee0_0000 | u64::from(self.0) << 12, message_vector(message).into()))
    }
}

/// Returns the MSR of a register in x2APIC mode.
fn msr(offset: usize) -> Msr {
    Msr::new(0x800 + u32::try_from(offset >> 4).unwrap_or(0))
}
