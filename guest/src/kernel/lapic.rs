//! The CPU's own interrupt controller: it has to pass the 8259s' interrupts on. Minimal firmware
//! leaves it shut.

use super::memory::{AddressSpace, ReachError};
use super::pic;
use hotmem_guest::direct_map::Caching;
use x86_64::registers::model_specific::Msr;

const APIC_BASE: u32 = 0x1b;
const ENABLED: u64 = 1 << 11;
const X2APIC: u64 = 1 << 10;

/// Spurious-interrupt vector register: bit 8 switches the APIC on.
const SPURIOUS: usize = 0xf0;
/// What the 8259s are wired to.
const LINT0: usize = 0x350;

/// The vector has to end in 0xf; an IRQ 15 that nobody waits for is spurious as well.
const SPURIOUS_ON: u32 = 1 << 8 | (pic::FIRST_VECTOR + 15) as u32;
/// Not masked; the vector is the 8259s' to give.
const EXTERNAL: u32 = 0x700;

/// Sets up "virtual wire mode" (Intel SDM volume 3, 11.5.1; MultiProcessor Specification 3.6.2.2).
pub(crate) fn pass_on_pic_interrupts(space: &mut AddressSpace) -> Result<(), ReachError> {
    // SAFETY: every CPU with a 64-bit mode has this register.
    let base = unsafe { Msr::new(APIC_BASE).read() };
    if base & ENABLED == 0 {
        // Then the 8259s are wired to the CPU itself.
        return Ok(());
    }
    let registers = [(SPURIOUS, SPURIOUS_ON), (LINT0, EXTERNAL)];
    if base & X2APIC != 0 {
        for (offset, value) in registers {
            let msr = 0x800 + u32::try_from(offset >> 4).unwrap_or(0);
            // SAFETY: in this mode the registers are here; all vectors of the 8259s have handlers.
            unsafe { Msr::new(msr).write(value.into()) }
        }
    } else {
        let page = space.reach(base & 0x000f_ffff_ffff_f000, 0x1000, Caching::Uncached)?;
        for (offset, value) in registers {
            // SAFETY: the page holds the APIC's registers, and is mapped; as above.
            unsafe { page.byte_add(offset).cast::<u32>().write_volatile(value) }
        }
    }
    Ok(())
}
