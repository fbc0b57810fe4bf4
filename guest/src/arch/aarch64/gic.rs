//! Drives the interrupt controller, a GICv3, and the timer, whose interrupt it delivers to the first
//! CPU.

use super::its::{self, FIRST_LPI, Its};
use super::{clock, mask, messages, mmio};
use crate::arch::flat_image::RAISED_LINES;
use crate::arch::handlers;
use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicV3};
use arm_gic::{IntId, InterruptGroup, UniqueMmioPointer};
use core::arch::asm;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use hotmem::PfnRange;
use hotmem_guest::device_tree::{DeviceTree, Gic};
use hotmem_guest::{redistributor, to_usize};

/// The private interrupt of the virtual timer.
const TIMER: u32 = 11;
const PRIORITY: u8 = 0x80;
/// The priority that masks nothing.
const LOWEST_PRIORITY: u8 = 0xff;

/// Offsets of the distributor's registers (Arm IHI 0069, 12.8): bits that enable and that disable, and for
/// each line the affinity of the CPU that it interrupts.
const ENABLE: usize = 0x100;
const DISABLE: usize = 0x180;
const ROUTES: usize = 0x6000;
/// Two bits for each line, of which the upper one says that an edge interrupts.
const CONFIGURATION: usize = 0xc00;
/// The bits of the affinity in `MPIDR_EL1` and in a route.
const ROUTE: u64 = 0xff_00ff_ffff;
/// The interrupts that devices share.
const LINES: Range<u32> = 32..1020;

/// The address of the distributor; 0 until the controller is open. Relaxed: only the first CPU uses it.
static DISTRIBUTOR: AtomicUsize = AtomicUsize::new(0);
/// The number of counts between two ticks; 0 until the timer can interrupt. Relaxed: only the first
/// CPU uses it.
static COUNTS_PER_TICK: AtomicU64 = AtomicU64::new(0);

/// The reason why the interrupt controller cannot be used.
pub(crate) enum GicError<E> {
    /// The machine has no GICv3.
    Missing,
    /// The first range of redistributors has none for the first CPU.
    NoRedistributor,
    /// Its registers cannot be mapped.
    Map(E),
    /// The driver refuses it.
    Driver(arm_gic::gicv3::GicError),
    /// There is no memory for the tables of the translation of messages, or it refuses them.
    NoMemory,
}

/// Opens the interrupt controller, and its translation of messages if it has one. `map` maps registers,
/// given their physical address and size. `alloc` allocates 2^n frames.
pub(crate) fn open_interrupts<E>(
    tree: Option<&DeviceTree<'_>>,
    mut map: impl FnMut(u64, u64) -> Result<NonNull<u8>, E>,
    alloc: fn(u32) -> Option<PfnRange>,
) -> Result<(), GicError<E>> {
    let Gic { distributor, redistributors, its } =
        tree.and_then(|tree| tree.gic).ok_or(GicError::Missing)?;
    let mut map = |phys_addr, len| map(phys_addr, len).map_err(GicError::Map);
    let distributor: NonNull<Gicd> = map(distributor.start, distributor.len)?.cast();
    let distributor_address = distributor.as_ptr().expose_provenance();
    let first = map(redistributors.start, redistributors.len)?;
    let redistributor = of_this_cpu(first, redistributors.len).ok_or(GicError::NoRedistributor)?;
    // SAFETY: the registers are mapped, and nothing else uses them, apart from those that concern
    // messages, which the driver does not touch.
    let gic = unsafe {
        let distributor = UniqueMmioPointer::new(distributor);
        GicV3::new(distributor, redistributor.cast::<GicrSgi>(), 1)
    };
    let mut gic = gic.map_err(GicError::Driver)?;
    gic.setup(0);
    GicCpuInterface::set_priority_mask(LOWEST_PRIORITY);
    let timer = IntId::ppi(TIMER);
    gic.set_interrupt_priority(timer, Some(0), PRIORITY).map_err(GicError::Driver)?;
    gic.enable_interrupt(timer, Some(0), true).map_err(GicError::Driver)?;
    if let Some(range) = its {
        let registers = map(range.start, its::REGISTER_BYTES)?;
        let its = Its::open(range.start, registers, redistributor, alloc);
        its::put(its.ok_or(GicError::NoMemory)?);
    }
    DISTRIBUTOR.store(distributor_address, Relaxed);
    COUNTS_PER_TICK.store(clock::frequency(), Relaxed);
    mask::enable();
    Ok(())
}

/// Returns the affinity of the calling CPU, and other bits.
fn mpidr() -> u64 {
    let mpidr;
    // SAFETY: reading the register has no effect.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) mpidr, options(nomem, nostack, preserves_flags)) }
    mpidr
}

/// Returns the redistributor of the calling CPU among those in the `len` bytes of registers from `first`
/// on.
fn of_this_cpu(first: NonNull<u8>, len: u64) -> Option<NonNull<u8>> {
    let start = first.as_ptr().expose_provenance();
    // SAFETY: the register lies in the `len` bytes, which are mapped, and reading it has no effect.
    let read_type =
        |offset| unsafe { mmio::read_u64(start + to_usize(offset + redistributor::TYPE)) };
    let offset = redistributor::offset_of(redistributor::affinity(mpidr()), len, read_type)?;
    // SAFETY: as above.
    Some(unsafe { first.byte_add(to_usize(offset)) })
}

/// Makes the timer interrupt the first CPU `per_second` times a second, after [`open_interrupts`].
/// Returns whether the timer can interrupt.
pub(crate) fn tick_at(per_second: u32) -> bool {
    if COUNTS_PER_TICK.load(Relaxed) == 0 {
        return false;
    }
    COUNTS_PER_TICK.store(clock::frequency() / u64::from(per_second), Relaxed);
    start_countdown();
    true
}

/// Returns whether the controller is open and has this line for devices that share it.
pub(super) fn has_line(line: u32) -> bool {
    DISTRIBUTOR.load(Relaxed) != 0 && LINES.contains(&line)
}

/// Makes a line interrupt the first CPU: an interrupt that devices share. The driver has made it
/// level-triggered. Returns whether the line is one.
pub(super) fn enable_line(line: u32) -> bool {
    if !has_line(line) {
        return false;
    }
    let register = DISTRIBUTOR.load(Relaxed) + ROUTES + 8 * line as usize;
    // SAFETY: the distributor is mapped, and has the register of each line.
    unsafe { mmio::write_u64(register, mpidr() & ROUTE) }
    unmask_line(line);
    true
}

/// Makes a line interrupt the first CPU that is raised for a moment, so that its edge interrupts. Returns
/// whether the line is one that devices share.
pub(super) fn enable_pulsed_line(line: u32) -> bool {
    if !has_line(line) {
        return false;
    }
    let register = DISTRIBUTOR.load(Relaxed) + CONFIGURATION + 4 * (line as usize / 16);
    // SAFETY: the distributor is mapped, and has the bits of each line. Nothing else changes them, and the
    // line is disabled.
    unsafe { mmio::write_u32(register, mmio::read_u32(register) | 2 << (2 * (line % 16))) }
    enable_line(line)
}

/// Lets a line interrupt again.
pub(super) fn unmask_line(line: u32) {
    write_bit(ENABLE, line);
}

/// Writes the bit of a line in an array of registers in which zeros change nothing.
fn write_bit(registers: usize, line: u32) {
    let register = DISTRIBUTOR.load(Relaxed) + registers + 4 * (line as usize / 32);
    // SAFETY: the distributor is mapped, and has the bit of each line, which has a handler.
    unsafe { mmio::write_u32(register, 1 << (line % 32)) }
}

/// Makes the timer interrupt at the next tick.
fn start_countdown() {
    let counts = COUNTS_PER_TICK.load(Relaxed);
    // SAFETY: the timer's interrupt has a handler.
    unsafe {
        asm!(
            "msr cntv_tval_el0, {}",
            "msr cntv_ctl_el0, {}",
            "isb",
            in(reg) counts,
            in(reg) 1u64,
            options(nostack, preserves_flags)
        );
    }
}

/// Handles all pending interrupts.
pub(super) extern "C" fn handle_interrupts() {
    const GROUP: InterruptGroup = InterruptGroup::Group1;
    while let Some(id) = GicCpuInterface::get_and_acknowledge_interrupt(GROUP) {
        let is_tick = id == IntId::ppi(TIMER);
        if is_tick {
            start_countdown();
        } else if let Some(message) = u32::from(id).checked_sub(FIRST_LPI) {
            messages::arrived(message);
        } else {
            // The device asserts its line until it is acknowledged.
            write_bit(DISABLE, u32::from(id));
            RAISED_LINES.raise(u32::from(id));
        }
        GicCpuInterface::end_interrupt(id, GROUP);
        if is_tick {
            (handlers::get().tick)();
        }
    }
}

impl<E: fmt::Display> fmt::Display for GicError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GicError::Missing => f.write_str("the device tree lists no GICv3"),
            GicError::NoRedistributor => {
                f.write_str("the GICv3 lists no redistributor of this CPU")
            }
            GicError::Map(error) => error.fmt(f),
            GicError::Driver(error) => error.fmt(f),
            GicError::NoMemory => f.write_str(
                "there is no memory for the tables of messages, or the ITS refuses them",
            ),
        }
    }
}
