//! The CPU's own interrupt controller: it has to pass the 8259s' interrupts on, where minimal
//! firmware leaves it shut, and starts and interrupts other CPUs.

use super::pic;
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
/// Of a command that is not in MSRs: to whom.
const DESTINATION: usize = 0x310;
/// What the 8259s are wired to.
const LINT0: usize = 0x350;

/// The vector has to end in 0xf; an IRQ 15 that nobody waits for is spurious as well.
const SPURIOUS_ON: u32 = 1 << 8 | (pic::FIRST_VECTOR + 15) as u32;
/// Not masked; the vector is the 8259s' to give.
const EXTERNAL: u32 = 0x700;
/// A command to all CPUs but the one that gives it, by this vector (Intel SDM volume 3, 11.6.1).
const INTERRUPT_OTHERS: u32 = 0xc_4000;
/// A command that is on its way.
const PENDING: u32 = 1 << 12;

/// The calling CPU's, once it has been opened.
static LOCAL: Once<LocalApic> = Once::new();

/// The number by which messages and commands name a CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ApicId(u8);

/// The calling CPU's local APIC: each CPU finds its own in the same place.
pub(crate) enum LocalApic {
    /// Its registers are memory, and mapped.
    Page(NonNull<u8>),
    /// They are MSRs.
    X2Apic,
}

// SAFETY: nobody reads or writes the registers but through this type's methods, each by one access.
unsafe impl Send for LocalApic {}
// SAFETY: the same.
unsafe impl Sync for LocalApic {}

/// What is sent to another CPU.
#[derive(Clone, Copy)]
pub(crate) enum Ipi {
    /// It waits, reset.
    Init,
    /// It starts at this page.
    Startup {
        /// Of the first MiB.
        page: u64,
    },
}

impl LocalApic {
    /// Finds the local APIC, whose registers `map` maps, given their address and size. Returns
    /// `None` if it is disabled: the 8259s are then wired to the CPU itself.
    pub(crate) fn open<E>(
        map: impl FnOnce(u64, u64) -> Result<NonNull<u8>, E>,
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
    pub(crate) fn pass_on_pic_interrupts(&self) {
        self.write(SPURIOUS, SPURIOUS_ON);
        self.write(LINT0, EXTERNAL);
    }

    /// Returns its number, if messages can name it.
    pub(crate) fn message_id(&self) -> Option<ApicId> {
        u8::try_from(self.id()).ok().map(ApicId)
    }

    /// Returns its number.
    pub(crate) fn id(&self) -> u32 {
        match self {
            LocalApic::Page(_) => self.read(ID) >> 24,
            LocalApic::X2Apic => self.read(ID),
        }
    }

    /// Sends it to the CPU with this APIC (Intel SDM volume 3, 11.6.1).
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
                // SAFETY: CPUs that it goes to run nothing of the kernel's yet, or have a handler.
                // What was stored before is there when it comes: writes of these registers wait
                // for nothing by themselves (Intel SDM volume 3, 11.12.3).
                unsafe {
                    asm!("mfence", "lfence", options(nostack, preserves_flags));
                    msr(COMMAND).write(command);
                }
            }
        }
    }

    fn read(&self, offset: usize) -> u32 {
        match self {
            // SAFETY: the page holds the APIC's registers, and is mapped.
            LocalApic::Page(page) => unsafe { page.byte_add(offset).cast::<u32>().read_volatile() },
            LocalApic::X2Apic => {
                // SAFETY: in this mode the registers are here.
                let value = unsafe { msr(offset).read() };
                u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
            }
        }
    }

    fn write(&self, offset: usize, value: u32) {
        match self {
            // SAFETY: as above; all vectors have handlers, and a CPU that is started runs nothing
            // of the kernel's yet.
            LocalApic::Page(page) => unsafe {
                page.byte_add(offset).cast::<u32>().write_volatile(value);
            },
            // SAFETY: as above.
            LocalApic::X2Apic => unsafe { msr(offset).write(value.into()) },
        }
    }
}

/// Has the calling CPU, which has just been started, take interrupts by its own as well.
pub(crate) fn join() {
    let Some(apic) = LOCAL.get() else { return };
    if let LocalApic::X2Apic = apic {
        let mut base = Msr::new(APIC_BASE);
        // SAFETY: every CPU with a 64-bit mode has this register; the mode is that of the CPU that
        // boots.
        unsafe { base.write(base.read() | ENABLED | X2APIC) }
    }
    apic.write(SPURIOUS, SPURIOUS_ON);
}

/// Interrupts all other CPUs by a vector.
pub(crate) fn interrupt_others(vector: u8) {
    if let Some(apic) = LOCAL.get() {
        apic.command(0, INTERRUPT_OTHERS | u32::from(vector));
    }
}

/// Tells the calling CPU's local APIC that the handler of a message, or of another CPU's interrupt,
/// is done.
pub(crate) fn end_of_interrupt() {
    if let Some(apic) = LOCAL.get() {
        apic.write(END_OF_INTERRUPT, 0);
    }
}

impl ApicId {
    /// Returns where messages to this CPU are written (Intel SDM volume 3, 11.11.1).
    pub(crate) fn message_address(self) -> u32 {
        0xfee0_0000 | u32::from(self.0) << 12
    }
}

/// Returns where a register is in x2APIC mode.
fn msr(offset: usize) -> Msr {
    Msr::new(0x800 + u32::try_from(offset >> 4).unwrap_or(0))
}
