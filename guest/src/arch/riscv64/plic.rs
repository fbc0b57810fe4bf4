//! Drives the platform-level interrupt controller (PLIC), which delivers the interrupts of devices to the
//! hart that boots. (RISC-V Platform-Level Interrupt Controller Specification 1.0.0)
//!
//! A source whose interrupt was claimed does not interrupt again until the claim is completed, so the
//! handler claims, and the main loop completes when it has acknowledged the devices.

use super::mmio;
use crate::arch::flat_image::RAISED_LINES;
use core::arch::asm;
use core::ptr::NonNull;
use hotmem_guest::device_tree::{Plic, Riscv};
use hotmem_guest::to_usize;
use spin::Once;

/// The bit of external interrupts in `sie`.
const EXTERNAL: u64 = 1 << 9;
/// A priority that interrupts, and the threshold below all priorities.
const PRIORITY: u32 = 1;
const NO_THRESHOLD: u32 = 0;

static PLIC: Once<Mapped> = Once::new();

/// A PLIC, and the context of the hart that boots.
struct Mapped {
    plic: Plic,
    context: u64,
    /// The difference between virtual and physical addresses of the registers.
    offset: usize,
}

/// Opens the PLIC, if there is one that interrupts this hart in S-mode.
pub(super) fn open<E>(
    riscv: &Riscv,
    hart: u64,
    mut map: impl FnMut(u64, u64) -> Result<NonNull<u8>, E>,
) -> Result<(), E> {
    let (Some(plic), Some(context)) = (riscv.plic, riscv.context_of(hart)) else { return Ok(()) };
    let Some(threshold) = plic.threshold(context) else { return Ok(()) };
    let registers = map(plic.registers.start, plic.registers.len)?.as_ptr().expose_provenance();
    let offset = registers.wrapping_sub(to_usize(plic.registers.start));
    let mapped = PLIC.call_once(|| Mapped { plic, context, offset });
    // Firmware may have left sources enabled in this context.
    for source in (0..=plic.sources).step_by(32) {
        mapped.write(plic.enables(context, source), 0);
    }
    mapped.write(Some(threshold), NO_THRESHOLD);
    // SAFETY: the interrupt has a handler.
    unsafe { asm!("csrs sie, {}", in(reg) EXTERNAL, options(nostack, preserves_flags)) }
    Ok(())
}

/// Returns whether there is a PLIC that interrupts this hart, with this source.
pub(super) fn has(source: u32) -> bool {
    PLIC.get().is_some_and(|mapped| mapped.plic.priority(source).is_some())
}

/// Enables a source. Returns whether there is such a source.
pub(super) fn enable(source: u32) -> bool {
    let Some(mapped) = PLIC.get() else { return false };
    let (priority, enables) =
        (mapped.plic.priority(source), mapped.plic.enables(mapped.context, source));
    if priority.is_none() || enables.is_none() {
        return false;
    }
    // The priority comes last: if a source is pending already, QEMU 7.2 interrupts at a write of its
    // priority, and not at a write that enables it.
    mapped.write(enables, mapped.read(enables) | 1 << (source % 32));
    mapped.write(priority, PRIORITY);
    true
}

/// Claims the interrupts of all sources that have interrupted.
pub(super) fn handle() {
    let Some(mapped) = PLIC.get() else { return };
    let claim = mapped.plic.claim(mapped.context);
    loop {
        match mapped.read(claim) {
            0 => return,
            source => RAISED_LINES.raise(source),
        }
    }
}

/// Completes the interrupt of a source, which may interrupt again.
pub(super) fn complete(source: u32) {
    if let Some(mapped) = PLIC.get() {
        mapped.write(mapped.plic.claim(mapped.context), source);
    }
}

impl Mapped {
    /// Reads the register at a physical address. Returns 0 if there is none.
    fn read(&self, register: Option<u64>) -> u32 {
        let Some(register) = register else { return 0 };
        // SAFETY: `Plic` names only its registers, which are mapped. A claim is for this hart alone.
        unsafe { mmio::read_u32(to_usize(register).wrapping_add(self.offset)) }
    }

    /// Writes the register at a physical address, if there is one.
    fn write(&self, register: Option<u64>, value: u32) {
        let Some(register) = register else { return };
        // SAFETY: `Plic` names only its registers, which are mapped, and which access no memory.
        unsafe { mmio::write_u32(to_usize(register).wrapping_add(self.offset), value) }
    }
}
