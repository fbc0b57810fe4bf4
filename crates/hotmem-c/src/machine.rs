//! Defines a machine in the caller's memory, and boots it.

use crate::error::{
    Error, HOTMEM_EALREADY, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ENOSPC, HOTMEM_ERANGE, code,
};
use crate::hooks::hotmem_hooks;
use crate::platform::{CMapping, CPlatform};
use crate::slot::{ExclusiveRef, Slot};
use ::hotmem::{BootMap, Frames, Hotplug, Pfn, PfnRange};
use core::ffi::c_void;
use hotmem_port::BootRanges;

/// The size of `struct hotmem` in bytes.
pub const HOTMEM_SIZE: usize = 21 * 1024;
/// The alignment of `struct hotmem` in bytes.
pub const HOTMEM_ALIGN: usize = 128;
/// The largest number of ranges of RAM, and likewise of reserved memory, after ranges that touch
/// are merged.
pub const HOTMEM_BOOT_RANGES: usize = 32;

/// RAM that may be used.
pub const HOTMEM_RAM: u32 = 1;
/// Memory that is in use, such as the kernel's image, or that must not be used. Where it overlaps
/// with RAM, the memory is reserved. `hotmem_free` frees it later.
pub const HOTMEM_RESERVED: u32 = 2;

/// A machine. It begins as zeroes, is neither moved nor copied, and lives as long as the kernel.
#[repr(C, align(128))]
#[allow(missing_debug_implementations, reason = "opaque bytes")]
pub struct hotmem {
    opaque: [u8; HOTMEM_SIZE],
}

/// What the kernel may choose before boot. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hotmem_config {
    /// The kernel's functions, which are copied, or NULL for the defaults of all.
    pub hooks: *const hotmem_hooks,
    /// The end of the memory that can ever be mapped, a physical address. 0: there is no limit.
    pub reach: u64,
    /// The end of the memory that every device can address, 4 GiB on a PC: allocations without a
    /// bound use it last. 0: there is no such memory.
    pub low_end: u64,
    /// The number of CPUs; `cpu` returns smaller numbers. 0 stands for 8.
    pub cpus: u32,
}

/// The contents of a `struct hotmem`.
#[repr(C)]
pub(crate) struct Machine {
    /// The frames, which all callers use without a lock.
    frames: Slot<Frames<CPlatform>>,
    /// The state that the caller's lock protects.
    control: Slot<Control>,
}

const _: () = assert!(size_of::<Machine>() <= HOTMEM_SIZE);
const _: () = assert!(align_of::<Machine>() <= HOTMEM_ALIGN);
const _: () = assert!(align_of::<hotmem>() == HOTMEM_ALIGN);

/// Frames of a machine without memory. It is a constant, so that boot copies it directly into the
/// caller's memory, and not through the kernel's small stack.
#[allow(clippy::declare_interior_mutable_const, reason = "each machine gets a copy")]
const WITHOUT_MEMORY: Frames<CPlatform> = Frames::new(CPlatform::new());

#[allow(clippy::large_enum_variant, reason = "there is one in a machine")]
enum Control {
    Booting(Booting),
    Running(Running),
}

/// The configuration and the memory that the caller has given before boot.
struct Booting {
    ram: BootRanges<HOTMEM_BOOT_RANGES>,
    reserved: BootRanges<HOTMEM_BOOT_RANGES>,
    hooks: hotmem_hooks,
    reach: PfnRange,
    low_end: Pfn,
    /// 0 stands for the engine's default.
    cpus: u32,
}

/// The control path of a machine that has booted.
pub(crate) struct Running {
    pub(crate) hotplug: Hotplug<'static, CPlatform, CMapping>,
    pub(crate) hooks: hotmem_hooks,
}

/// Exclusive access to the control path, until this value is dropped.
pub(crate) struct ControlAccess(ExclusiveRef<'static, Control>);

/// Returns the machine.
///
/// # Safety
/// As for [`Slot::at`]: `h` is null, not aligned, or a `struct hotmem`.
#[inline]
pub(crate) unsafe fn machine(h: *const hotmem) -> Result<&'static Machine, Error> {
    if h.is_null() {
        return Err(Error(HOTMEM_EFAULT));
    }
    if !h.is_aligned() {
        return Err(Error(HOTMEM_EINVAL));
    }
    // SAFETY: the caller has promised that `h` points to a `struct hotmem`, which has the size and
    // the alignment of `Machine`. Its zeroes are empty slots.
    Ok(unsafe { &*h.cast::<Machine>() })
}

impl Machine {
    /// Returns the frames, if the machine has booted.
    #[inline]
    pub(crate) fn frames(&'static self) -> Result<&'static Frames<CPlatform>, Error> {
        // SAFETY: `frames` is private to this file, which never calls `take` on it.
        unsafe { self.frames.get() }
    }

    /// Enters the control path of a machine that has booted.
    pub(crate) fn enter(&'static self) -> Result<ControlAccess, Error> {
        self.frames()?;
        self.control.take().map(ControlAccess)
    }

    /// Takes access to the configuration, and makes it at the first call.
    fn booting(&'static self) -> Result<ExclusiveRef<'static, Control>, Error> {
        let new_control = || Ok(Control::Booting(Booting::default()));
        match self.control.write(new_control) {
            Ok(()) | Err(Error(HOTMEM_EALREADY)) => self.control.take(),
            Err(error) => Err(error),
        }
    }
}

impl ControlAccess {
    /// Returns the control path and the hooks.
    pub(crate) fn parts(&mut self) -> Result<&mut Running, Error> {
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
            reach: PfnRange::ALL,
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

/// Sets the hooks and the limits of a machine, before boot.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_EALREADY: it has booted.
///
/// # Safety
/// `h` is NULL or a `struct hotmem` that was zeroes at first. `config` is NULL or a configuration.
/// The hooks can be called with their `ctx` as long as the machine lives, and keep their promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_configure(h: *mut hotmem, config: *const hotmem_config) -> i32 {
    let configure = || {
        // SAFETY: by the caller's promise. The same holds for all pointers below.
        let machine = unsafe { machine(h) }?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?;
        let mut control = machine.booting()?;
        let booting = control.booting()?;
        let end = |paddr, default| match paddr {
            0 => Ok(default),
            _ => Pfn::containing(paddr).ok_or(Error(HOTMEM_ERANGE)),
        };
        let (reach, low_end) = (end(config.reach, Pfn::LIMIT)?, end(config.low_end, Pfn::ZERO)?);
        booting.reach = PfnRange::ALL.split_at(reach).0;
        booting.low_end = low_end;
        booting.cpus = config.cpus;
        // SAFETY: see above.
        booting.hooks = unsafe { config.hooks.as_ref() }.copied().unwrap_or(hotmem_hooks::NONE);
        Ok(())
    };
    code(configure())
}

/// Names a range of boot memory: `kind` is HOTMEM_RAM or HOTMEM_RESERVED. Ranges need not be
/// aligned or sorted and may overlap; an empty one is ignored.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_ERANGE: the range wraps; HOTMEM_ENOSPC: there are
/// HOTMEM_BOOT_RANGES already; HOTMEM_EALREADY: the machine has booted.
///
/// # Safety
/// `h` is NULL or a `struct hotmem` that was zeroes at first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_boot_add(h: *mut hotmem, paddr: u64, len: u64, kind: u32) -> i32 {
    let add = || {
        // SAFETY: by the caller's promise.
        let machine = unsafe { machine(h) }?;
        let mut control = machine.booting()?;
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

/// Starts the machine with the memory that was named. `direct_map` is where physical address 0 is
/// mapped, or would be: virtual address = `direct_map` + physical address. Memory below
/// `mapped_below` is mapped there already; 0 stands for all memory. The caller maps the rest before
/// anything is allocated.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_ENOMEM: no RAM, or none for the engine's metadata;
/// HOTMEM_ERANGE: RAM lies beyond the limits; HOTMEM_EALREADY: the machine has booted. After an
/// error more memory can be named, and boot tried again.
///
/// # Safety
/// `h` is NULL or a `struct hotmem` that was zeroes at first. The ranges that were named are
/// correct: all RAM is mapped as described, and nobody uses RAM that is not reserved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_boot(
    h: *mut hotmem,
    direct_map: *mut c_void,
    mapped_below: u64,
) -> i32 {
    let boot = || {
        // SAFETY: by the caller's promise.
        let machine = unsafe { machine(h) }?;
        let mut control = machine.booting()?;
        let Booting { ram, reserved, hooks, reach, low_end, cpus } = control.booting()?;
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
            ..BootMap::of_ram(ram.as_slice())
        };
        let map = if *cpus == 0 { map } else { BootMap { cpus: *cpus, ..map } };
        let mapping = CMapping { base, reach: *reach, hooks };
        // SAFETY: the caller has promised what `bootstrap` requires: the ranges are correct and
        // mapped. If `bootstrap` fails, nothing refers to the frames any more, as `start` requires.
        let hotplug = unsafe {
            machine.frames.start(WITHOUT_MEMORY, |frames| {
                frames.platform().set(hooks);
                Ok(Hotplug::bootstrap(frames, mapping, &map)?)
            })
        }?;
        *control = Control::Running(Running { hotplug, hooks });
        Ok(())
    };
    code(boot())
}
