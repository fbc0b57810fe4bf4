//! Defines an instance of the engine (`struct hotmem`), which lies in the caller's memory, and boots
//! it.

use crate::error::{
    Error, HOTMEM_EALREADY, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ENOSPC, HOTMEM_ERANGE, code,
};
use crate::hooks::hotmem_hooks;
use crate::platform::{CMapping, CPlatform};
use crate::slot::{ExclusiveRef, FIRST_MARK, SECOND_MARK, Slot};
use ::hotmem::{BootMap, Frames, Hotplug, Pfn, PfnRange};
use core::ffi::c_void;
use hotmem_port::BootRanges;

/// The size of `struct hotmem` in bytes.
pub const HOTMEM_SIZE: usize = 21 * 1024;
/// The alignment of `struct hotmem` in bytes.
pub const HOTMEM_ALIGN: usize = 128;
/// The maximal number of ranges of RAM, and also of reserved ranges, after adjacent ranges are
/// merged.
pub const HOTMEM_BOOT_RANGES: usize = 32;

/// A range of RAM.
pub const HOTMEM_RAM: u32 = 1;
/// A reserved range: memory that is in use, such as the kernel's image, or that must not be used.
/// RAM in this range is not given to the allocator until `hotmem_free` frees it.
pub const HOTMEM_RESERVED: u32 = 2;

/// An instance of the engine. The kernel fills the struct with zeroes at first, never moves or
/// copies it, and never frees it.
#[repr(C, align(128))]
#[allow(missing_debug_implementations, reason = "opaque bytes")]
pub struct hotmem {
    opaque: [u8; HOTMEM_SIZE],
}

/// The configuration of an instance before boot. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hotmem_config {
    /// The kernel's functions, which the call copies. NULL means the default of each function.
    pub hooks: *const hotmem_hooks,
    /// The physical address of the end of the memory that the kernel can map. 0 means no limit.
    pub mappable_end: u64,
    /// The physical address of the end of low memory, which all devices can address: 4 GiB on a PC.
    /// Allocations without a bound use low memory last. 0 means that there is no low memory.
    pub low_end: u64,
    /// The number of CPUs. `hotmem_hooks.cpu` must return numbers below it. 0 means 8.
    pub cpus: u32,
}

/// The contents of a `struct hotmem`.
#[repr(C)]
pub(crate) struct Instance {
    /// The allocator, which all callers use without a lock.
    frames: Slot<Frames<CPlatform>>,
    /// The state that the caller's lock protects.
    control: Slot<Control>,
}

const _: () = assert!(size_of::<Instance>() <= HOTMEM_SIZE);
const _: () = assert!(align_of::<Instance>() <= HOTMEM_ALIGN);
const _: () = assert!(align_of::<hotmem>() == HOTMEM_ALIGN);

/// The allocator of an instance without memory, the original of all instances. Boot copies it
/// directly into the caller's memory, and not to the kernel's stack first, which may be small.
static WITHOUT_MEMORY: Frames<CPlatform> = Frames::new(CPlatform::new());

/// The mark of the allocator's slot, written if the kernel has no function for CPU numbers.
const WITHOUT_CPU_NUMBERS: u64 = FIRST_MARK;
/// The mark of the allocator's slot, written if the kernel has a function for CPU numbers.
const WITH_CPU_NUMBERS: u64 = SECOND_MARK;

#[allow(clippy::large_enum_variant, reason = "there is one in an instance")]
enum Control {
    Booting(Booting),
    Running(Running),
}

/// The configuration and the ranges that the caller has set before boot.
struct Booting {
    ram: BootRanges<HOTMEM_BOOT_RANGES>,
    reserved: BootRanges<HOTMEM_BOOT_RANGES>,
    hooks: hotmem_hooks,
    mappable_range: PfnRange,
    low_end: Pfn,
    /// 0 means the engine's default.
    cpus: u32,
}

/// The control path of an instance that has booted.
pub(crate) struct Running {
    pub(crate) hotplug: Hotplug<'static, CPlatform, CMapping>,
    pub(crate) hooks: hotmem_hooks,
}

/// An instance that has booted.
#[derive(Clone, Copy)]
pub(crate) struct Booted(&'static Instance);

/// The mark that was read instead of [`WITHOUT_CPU_NUMBERS`]: the instance has not booted, or its
/// kernel has a function for CPU numbers.
#[derive(Clone, Copy)]
pub(crate) struct OtherMark(u64);

/// Exclusive access to the control path, until this value is dropped.
pub(crate) struct ControlAccess(ExclusiveRef<'static, Control>);

/// Returns the instance.
///
/// # Safety
/// As for [`Slot::at`]: `h` is null, not aligned, or a `struct hotmem`.
#[inline]
pub(crate) unsafe fn instance(h: *const hotmem) -> Result<&'static Instance, Error> {
    if h.is_null() {
        return Err(Error(HOTMEM_EFAULT));
    }
    if !h.is_aligned() {
        return Err(Error(HOTMEM_EINVAL));
    }
    // SAFETY: the caller has promised that `h` points to a `struct hotmem`, and it is aligned.
    Ok(unsafe { aligned_instance(h) })
}

/// Returns the instance, without a check.
///
/// # Safety
/// `h` is a `struct hotmem`: it is aligned and not null.
#[inline(always)]
pub(crate) unsafe fn aligned_instance(h: *const hotmem) -> &'static Instance {
    // SAFETY: the caller has promised that `h` points to a `struct hotmem`, which has the size and
    // the alignment of `Instance`. If all its bytes are zero, its slots are empty.
    unsafe { &*h.cast::<Instance>() }
}

impl Instance {
    /// Returns the frames, if the instance has booted.
    #[inline]
    pub(crate) fn frames(&'static self) -> Result<&'static Frames<CPlatform>, Error> {
        self.booted().map(Booted::frames)
    }

    /// Returns the instance, if it has booted.
    #[inline]
    pub(crate) fn booted(&'static self) -> Result<Booted, Error> {
        if self.frames.is_written() { Ok(Booted(self)) } else { Err(Error(HOTMEM_EINVAL)) }
    }

    /// Returns the instance, if it has booted and the kernel has no function for CPU numbers, so that
    /// every CPU number is 0. The fast paths make only this check.
    #[inline(always)]
    pub(crate) fn on_cpu_zero(&'static self) -> Result<Booted, OtherMark> {
        match self.frames.mark() {
            WITHOUT_CPU_NUMBERS => Ok(Booted(self)),
            mark => Err(OtherMark(mark)),
        }
    }

    /// Returns the instance, if it has booted and the kernel has a function for CPU numbers.
    #[inline(always)]
    pub(crate) fn with_cpu_numbers(&'static self, mark: OtherMark) -> Result<Booted, Error> {
        if mark.0 == WITH_CPU_NUMBERS { Ok(Booted(self)) } else { Err(Error(HOTMEM_EINVAL)) }
    }

    /// Enters the control path of an instance that has booted.
    pub(crate) fn enter(&'static self) -> Result<ControlAccess, Error> {
        self.frames()?;
        self.control.take().map(ControlAccess)
    }

    /// Takes access to the configuration, and creates the configuration at the first call.
    fn booting(&'static self) -> Result<ExclusiveRef<'static, Control>, Error> {
        let new_control = || Control::Booting(Booting::default());
        match self.control.write(|place| place.write(new_control()), |_| Ok(())) {
            Ok(()) | Err(Error(HOTMEM_EALREADY)) => self.control.take(),
            Err(error) => Err(error),
        }
    }
}

impl Booted {
    /// Returns the instance's frames.
    #[inline]
    pub(crate) fn frames(self) -> &'static Frames<CPlatform> {
        // SAFETY: this file makes a `Booted` only after it has checked that `frames` is written. The
        // field `frames` is private to this file, which never calls `take` on it.
        unsafe { self.0.frames.get_written() }
    }
}

impl ControlAccess {
    /// Returns the control path and the hooks.
    pub(crate) fn running(&mut self) -> Result<&mut Running, Error> {
        match &mut *self.0 {
            Control::Running(running) => Ok(running),
            Control::Booting(_) => Err(Error(HOTMEM_EINVAL)),
        }
    }
}

impl Default for Booting {
    fn default() -> Booting {
        Booting {
            ram: BootRanges::new(),
            reserved: BootRanges::new(),
            hooks: hotmem_hooks::NONE,
            mappable_range: PfnRange::ALL,
            low_end: Pfn::ZERO,
            cpus: 0,
        }
    }
}

impl Control {
    fn booting(&mut self) -> Result<&mut Booting, Error> {
        match self {
            Control::Booting(booting) => Ok(booting),
            Control::Running(_) => Err(Error(HOTMEM_EALREADY)),
        }
    }
}

/// Sets the configuration of an instance before boot.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EBUSY. HOTMEM_EALREADY: the instance has
/// booted.
///
/// # Safety
/// `h` is NULL or a `struct hotmem` that was filled with zeroes at first. `config` is NULL or a
/// configuration. The hooks can be called with their `ctx` at any later time, and do what their
/// comments describe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_configure(h: *mut hotmem, config: *const hotmem_config) -> i32 {
    let configure = || {
        // SAFETY: the caller guarantees it. The same holds for all pointers below.
        let instance = unsafe { instance(h) }?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?;
        let mut control = instance.booting()?;
        let booting = control.booting()?;
        let end = |paddr, default| match paddr {
            0 => Ok(default),
            _ => Pfn::containing(paddr).ok_or(Error(HOTMEM_ERANGE)),
        };
        let (mappable_end, low_end) =
            (end(config.mappable_end, Pfn::LIMIT)?, end(config.low_end, Pfn::ZERO)?);
        booting.mappable_range = PfnRange::ALL.split_at(mappable_end).0;
        booting.low_end = low_end;
        booting.cpus = config.cpus;
        // SAFETY: see above.
        booting.hooks = unsafe { config.hooks.as_ref() }.copied().unwrap_or(hotmem_hooks::NONE);
        Ok(())
    };
    code(configure())
}

/// Adds a range of boot memory before boot. `kind` is HOTMEM_RAM or HOTMEM_RESERVED. Ranges need
/// not be aligned or sorted, and may overlap. An empty range is ignored.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY. HOTMEM_ERANGE: the range wraps. HOTMEM_ENOSPC: there are
/// HOTMEM_BOOT_RANGES ranges of this kind already. HOTMEM_EALREADY: the instance has booted.
///
/// # Safety
/// `h` is NULL or a `struct hotmem` that was filled with zeroes at first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_boot_add(h: *mut hotmem, paddr: u64, len: u64, kind: u32) -> i32 {
    let add = || {
        // SAFETY: the caller guarantees it.
        let instance = unsafe { instance(h) }?;
        let mut control = instance.booting()?;
        let booting = control.booting()?;
        let end = paddr.checked_add(len).ok_or(Error(HOTMEM_ERANGE))?;
        let ranges = match kind {
            HOTMEM_RAM => &mut booting.ram,
            HOTMEM_RESERVED => &mut booting.reserved,
            _ => return Err(Error(HOTMEM_EINVAL)),
        };
        ranges.add(paddr..end).map_err(|_| Error(HOTMEM_ENOSPC))
    };
    code(add())
}

/// Boots the instance with the ranges that `hotmem_boot_add` has added. `direct_map` is the virtual
/// address of physical address 0 in the direct map: a virtual address is `direct_map` plus the
/// physical address. The direct map already maps all RAM below the physical address `mapped_below`;
/// 0 means all RAM. The caller maps the other RAM before the first allocation.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EBUSY. HOTMEM_EINVAL: `h` or `direct_map` is not aligned. HOTMEM_ENOMEM: there
/// is no RAM, or not enough RAM for the engine's metadata. HOTMEM_ERANGE: RAM lies beyond the limits.
/// HOTMEM_EALREADY: the instance has booted.
/// After an error the caller can add more ranges and call this function again.
///
/// # Safety
/// `h` is NULL or a `struct hotmem` that was filled with zeroes at first. The ranges are correct: all
/// RAM is mapped as described, and no code uses RAM that is not reserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_boot(
    h: *mut hotmem,
    direct_map: *mut c_void,
    mapped_below: u64,
) -> i32 {
    let boot = || {
        // SAFETY: the caller guarantees it.
        let instance = unsafe { instance(h) }?;
        let mut control = instance.booting()?;
        let Booting { ram, reserved, hooks, mappable_range, low_end, cpus } = control.booting()?;
        let (hooks, base) = (*hooks, direct_map.cast::<u8>());
        if base.addr() % 4096 != 0 {
            return Err(Error(HOTMEM_EINVAL));
        }
        let mapped_below = match mapped_below {
            0 => Pfn::LIMIT,
            end => Pfn::containing(end).ok_or(Error(HOTMEM_ERANGE))?,
        };
        let map = BootMap {
            reserved: reserved.as_slice(),
            mapped_below,
            low_end: *low_end,
            ..BootMap::from(ram.as_slice())
        };
        let map = if *cpus == 0 { map } else { BootMap { cpus: *cpus, ..map } };
        let mapping = CMapping { base, mappable_range: *mappable_range, hooks };
        let mark = if hooks.cpu.is_none() { WITHOUT_CPU_NUMBERS } else { WITH_CPU_NUMBERS };
        // SAFETY: the caller has promised what `bootstrap` requires: the ranges are correct and
        // mapped. If `bootstrap` fails, nothing refers to the frames any more, as `start` requires.
        // Only this line uses `WITHOUT_MEMORY`.
        let hotplug = unsafe {
            instance.frames.start(&WITHOUT_MEMORY, mark, |frames| {
                frames.platform().set(hooks);
                Ok(Hotplug::bootstrap(frames, mapping, map)?)
            })
        }?;
        *control = Control::Running(Running { hotplug, hooks });
        Ok(())
    };
    code(boot())
}
