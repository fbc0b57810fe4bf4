//! A virtio-mem device, without I/O.

use crate::control::online_type;
use crate::error::{
    Error, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EIO, HOTMEM_ENOSPC, HOTMEM_ERANGE, code,
};
use crate::explain::explain;
use crate::machine::{Machine, hotmem, machine};
use crate::platform::CPlatform;
use crate::slot::Slot;
use ::hotmem::Budget;
use core::ffi::c_char;
use core::time::Duration;
use hotmem_virtio::mem::{
    ConfigFault, Driver, Features, HotplugMemory, RawConfig, Request, Status, Step,
};

/// The size of `struct hotmem_vmem` in bytes.
pub const HOTMEM_VMEM_SIZE: usize = 1024;
/// The device type of virtio-mem.
pub const HOTMEM_VMEM_DEVICE_ID: u16 = 24;
const _: () = assert!(HOTMEM_VMEM_DEVICE_ID == hotmem_virtio::mem::DEVICE_ID);
/// The feature bits that the driver supports.
pub const HOTMEM_VMEM_FEATURES: u64 = 0x3_0000_0007;
const _: () = assert!(HOTMEM_VMEM_FEATURES == Features::all().bits());

/// Nothing to do until the device interrupts (for a balloon also: or memory is freed).
pub const HOTMEM_STEP_IDLE: i32 = 0;
/// Put the request on the queue, then step again.
pub const HOTMEM_STEP_SEND: i32 = 1;
/// There is more to do: step again when convenient.
pub const HOTMEM_STEP_AGAIN: i32 = 2;
/// Nothing to do until `until_ns`, or until the device interrupts.
pub const HOTMEM_STEP_WAIT: i32 = 3;

/// The driver asks the device which blocks are plugged.
pub const HOTMEM_VMEM_SYNCHRONISING: u32 = 0;
/// The driver plugs or unplugs.
pub const HOTMEM_VMEM_RESIZING: u32 = 1;
/// The requested size is plugged and online.
pub const HOTMEM_VMEM_REACHED: u32 = 2;
/// The requested size cannot be reached now: `hotmem_vmem_explain` says why.
pub const HOTMEM_VMEM_PENDING: u32 = 3;
/// The driver has stopped: `hotmem_vmem_explain` says why. Plugged memory stays usable.
pub const HOTMEM_VMEM_FAILED: u32 = 4;

/// The driver of a virtio-mem device. It begins as zeroes, is neither moved nor copied, and lives
/// as long as the machine.
#[repr(C, align(16))]
#[allow(missing_debug_implementations, reason = "opaque bytes")]
pub struct hotmem_vmem {
    opaque: [u8; HOTMEM_VMEM_SIZE],
}

/// The device's configuration space, VIRTIO 1.3, 5.15.4, in the CPU's byte order. It is not
/// trusted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_vmem_config {
    /// Bytes of a block.
    pub block_size: u64,
    /// The NUMA node, with VIRTIO_MEM_F_ACPI_PXM.
    pub node_id: u16,
    /// Ignored.
    pub padding: [u8; 6],
    /// The region's physical address.
    pub addr: u64,
    /// The region's bytes.
    pub region_size: u64,
    /// Bytes in which blocks can be plugged.
    pub usable_region_size: u64,
    /// Bytes that are plugged.
    pub plugged_size: u64,
    /// Bytes that the host wants plugged.
    pub requested_size: u64,
}

/// What the kernel must do after a step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_vmem_request {
    /// After HOTMEM_STEP_WAIT: the time.
    pub until_ns: u64,
    /// After HOTMEM_STEP_SEND: the bytes for the device to read. Its answer, 10 bytes, goes into a
    /// second buffer.
    pub bytes: [u8; 24],
}
const _: () = assert!(Request::SIZE == 24);

/// The state of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_vmem_status {
    /// One of HOTMEM_VMEM_SYNCHRONISING and so on.
    pub state: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Bytes that the host wants plugged.
    pub requested: u64,
    /// Bytes that are plugged.
    pub plugged: u64,
    /// Requests that were sent.
    pub requests: u64,
}

struct Device {
    machine: &'static Machine,
    driver: Driver,
    memory: HotplugMemory<'static, CPlatform>,
}

const _: () = assert!(size_of::<Slot<Device>>() <= HOTMEM_VMEM_SIZE);
const _: () = assert!(align_of::<Slot<Device>>() <= align_of::<hotmem_vmem>());

/// Returns the slot of the driver at `d`.
///
/// # Safety
/// As for [`Slot::at`].
unsafe fn device(d: *const hotmem_vmem) -> Result<&'static Slot<Device>, Error> {
    // SAFETY: by the caller's promise.
    unsafe { Slot::at(d.cast()) }
}

impl hotmem_vmem_config {
    fn raw(&self) -> RawConfig {
        RawConfig {
            block_size: self.block_size,
            node_id: self.node_id,
            addr: self.addr,
            region_size: self.region_size,
            usable_region_size: self.usable_region_size,
            plugged_size: self.plugged_size,
            requested_size: self.requested_size,
        }
    }
}

/// Makes the driver of a device that was reset and has negotiated `features`. Its memory is put
/// online for `kind`, one of HOTMEM_ONLINE_*. When it shrinks, a step isolates at most `budget`
/// pageblocks (2 MiB); 0 stands for 64.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE (of the configuration, too), HOTMEM_EALREADY.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_vmem` that was zeroes at first, `h` is NULL or a `struct hotmem`,
/// `config` is NULL or a configuration. The device's memory is used by nobody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_vmem_init(
    d: *mut hotmem_vmem,
    h: *mut hotmem,
    config: *const hotmem_vmem_config,
    features: u64,
    kind: u32,
    budget: u64,
) -> i32 {
    let init = || {
        // SAFETY: by the caller's promise. The same holds for all pointers below.
        let (slot, machine) = unsafe { (device(d)?, machine(h)?) };
        machine.frames()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        let kind = online_type(kind)?;
        let budget = Budget { pageblocks: if budget == 0 { 64 } else { budget } };
        slot.write(|| {
            let features = Features::from_bits_truncate(features);
            let driver = Driver::new(&config, features).map_err(|error| match error.fault {
                ConfigFault::BeyondAddressSpace => Error(HOTMEM_ERANGE),
                _ => Error(HOTMEM_EINVAL),
            })?;
            Ok(Device { machine, driver, memory: HotplugMemory::new(kind, budget) })
        })
    };
    code(init())
}

/// Continues with what the host requests, up to the next request to the device. `now_ns` is the
/// time since any fixed moment. `config` was read after the answer was taken off the queue.
/// `answer` holds the `len` bytes of the answer to the last request if there is a new one, and is
/// NULL otherwise.
///
/// Call it when the device interrupts, and at the time `until_ns` that it has returned. Returns one
/// of HOTMEM_STEP_*, and fills `request` accordingly. At most one request is on the queue; its
/// buffers belong to the device until it has answered.
///
/// # Errors
/// HOTMEM_EIO: the driver has stopped. HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_EBUSY: the control path
/// was entered twice. After these three nothing has changed.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_vmem`; the other pointers are NULL or fit their types and `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_vmem_step(
    d: *mut hotmem_vmem,
    now_ns: u64,
    config: *const hotmem_vmem_config,
    answer: *const u8,
    len: usize,
    request: *mut hotmem_vmem_request,
) -> i32 {
    let step = || {
        // SAFETY: by the caller's promise. The same holds for all pointers below.
        let mut device = unsafe { device(d) }?.take()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        // SAFETY: see above.
        let request = unsafe { request.as_mut() }.ok_or(Error(HOTMEM_EFAULT))?;
        // An answer has 10 bytes. The limit keeps the slice valid if `len` is absurd.
        let answer_len = len.min(64);
        let has_answer = !answer.is_null();
        // SAFETY: see above.
        let answer = has_answer.then(|| unsafe { core::slice::from_raw_parts(answer, answer_len) });
        let Device { machine, driver, memory } = &mut *device;
        let mut control = machine.enter()?;
        let running = control.parts()?;
        // `with` fails only for the control path of another machine.
        let lent = memory.with(&mut running.hotplug, &mut running.hooks);
        let mut lent = lent.map_err(|_| Error(HOTMEM_EINVAL))?;
        match driver.step(Duration::from_nanos(now_ns), &config, answer, &mut lent) {
            Step::Ready(Ok(message)) => {
                request.bytes = message.to_bytes();
                Ok(HOTMEM_STEP_SEND)
            }
            Step::Working => Ok(HOTMEM_STEP_AGAIN),
            Step::Pending(until) => {
                request.until_ns = nanoseconds(until);
                Ok(HOTMEM_STEP_WAIT)
            }
            Step::Idle => Ok(HOTMEM_STEP_IDLE),
            Step::Ready(Err(_)) => Err(Error(HOTMEM_EIO)),
        }
    };
    step().unwrap_or_else(|Error(code)| code)
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes the state of a device to `status`.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_vmem`; `status` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_vmem_get_status(
    d: *mut hotmem_vmem,
    status: *mut hotmem_vmem_status,
) -> i32 {
    let get = || {
        // SAFETY: by the caller's promise. The same holds below.
        let device = unsafe { device(d) }?.take()?;
        let state = match device.driver.status() {
            Status::Synchronising => HOTMEM_VMEM_SYNCHRONISING,
            Status::Resizing => HOTMEM_VMEM_RESIZING,
            Status::Reached => HOTMEM_VMEM_REACHED,
            Status::Pending(_) => HOTMEM_VMEM_PENDING,
            Status::Failed(_) => HOTMEM_VMEM_FAILED,
        };
        // SAFETY: see above.
        *unsafe { status.as_mut() }.ok_or(Error(HOTMEM_EFAULT))? = hotmem_vmem_status {
            state,
            reserved: 0,
            requested: device.driver.config().requested().0,
            plugged: device.driver.plugged().0,
            requests: device.driver.statistics().requests,
        };
        Ok(())
    };
    code(get())
}

/// Writes why the requested size is not reached, or why the driver has stopped, to the `size` bytes
/// at `text`, with a terminating NUL; an empty text if there is no reason.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY; HOTMEM_ENOSPC: `size` is 0.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_vmem`; `text` is NULL or `size` bytes can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_vmem_explain(
    d: *mut hotmem_vmem,
    text: *mut c_char,
    size: usize,
) -> i32 {
    let get = || {
        // SAFETY: by the caller's promise. The same holds below.
        let device = unsafe { device(d) }?.take()?;
        if text.is_null() {
            return Err(Error(HOTMEM_EFAULT));
        }
        if size == 0 {
            return Err(Error(HOTMEM_ENOSPC));
        }
        // SAFETY: see above.
        unsafe {
            match device.driver.status() {
                Status::Pending(why) => explain(text.cast(), size, why),
                Status::Failed(why) => explain(text.cast(), size, why),
                _ => explain(text.cast(), size, ""),
            }
        }
        Ok(())
    };
    code(get())
}
