//! The driver of a virtio-mem device. The kernel performs its I/O.

use crate::control::parse_online_type;
use crate::error::{
    Error, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EIO, HOTMEM_ENOSPC, HOTMEM_ERANGE, code,
};
use crate::explain::write_text;
use crate::instance::{Instance, hotmem, instance};
use crate::platform::CPlatform;
use crate::slot::Slot;
use ::hotmem::Budget;
use core::ffi::c_char;
use core::time::Duration;
use hotmem_virtio::mem::{
    ConfigFault, Driver, Features, HotplugMemory, RawConfig, Request, Status, Step,
};

/// The size of `struct hotmem_virtio_mem` in bytes.
pub const HOTMEM_VIRTIO_MEM_SIZE: usize = 1280;
/// The device type of virtio-mem.
pub const HOTMEM_VIRTIO_MEM_DEVICE_ID: u16 = 24;
const _: () = assert!(HOTMEM_VIRTIO_MEM_DEVICE_ID == hotmem_virtio::mem::DEVICE_ID);
/// The feature bits that the driver supports.
pub const HOTMEM_VIRTIO_MEM_FEATURES: u64 = 0x3_0000_0007;
const _: () = assert!(HOTMEM_VIRTIO_MEM_FEATURES == Features::all().bits());

/// There is nothing to do until the device interrupts, or, for a balloon, until `wake_reporter` is
/// called.
pub const HOTMEM_STEP_IDLE: i32 = 0;
/// Put the request on the queue, and then call the step function again, without waiting for the
/// answer.
pub const HOTMEM_STEP_SEND: i32 = 1;
/// There is more to do. Call the step function again when convenient.
pub const HOTMEM_STEP_AGAIN: i32 = 2;
/// There is nothing to do until the time `until_ns`, or until the device interrupts.
pub const HOTMEM_STEP_WAIT: i32 = 3;

/// The driver reads from the device which blocks are plugged.
pub const HOTMEM_VIRTIO_MEM_SYNCHRONISING: u32 = 0;
/// The driver plugs or unplugs memory.
pub const HOTMEM_VIRTIO_MEM_RESIZING: u32 = 1;
/// The requested size is plugged and online.
pub const HOTMEM_VIRTIO_MEM_REACHED: u32 = 2;
/// The requested size cannot be reached now. `hotmem_virtio_mem_explain` returns the reason.
pub const HOTMEM_VIRTIO_MEM_PENDING: u32 = 3;
/// The driver has stopped. `hotmem_virtio_mem_explain` returns the reason. Plugged memory stays usable.
pub const HOTMEM_VIRTIO_MEM_FAILED: u32 = 4;

/// The driver of a virtio-mem device. The kernel fills the struct with zeroes at first, never moves
/// or copies it, and never frees it.
#[repr(C, align(16))]
#[allow(missing_debug_implementations, reason = "opaque bytes")]
pub struct hotmem_virtio_mem {
    opaque: [u8; HOTMEM_VIRTIO_MEM_SIZE],
}

/// The device's configuration space (VIRTIO 1.3, 5.15.4) in the CPU's byte order. The driver checks
/// all values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_virtio_mem_config {
    /// The size of a block in bytes.
    pub block_size: u64,
    /// With VIRTIO_MEM_F_ACPI_PXM: the NUMA node.
    pub node_id: u16,
    /// Ignored.
    pub padding: [u8; 6],
    /// The physical address of the region.
    pub addr: u64,
    /// The size of the region in bytes.
    pub region_size: u64,
    /// The size, in bytes, of the part of the region in which blocks can be plugged.
    pub usable_region_size: u64,
    /// The number of bytes that are plugged.
    pub plugged_size: u64,
    /// The number of bytes that the device requests to be plugged.
    pub requested_size: u64,
}

/// The output of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_virtio_mem_request {
    /// After HOTMEM_STEP_WAIT: the time of the next step.
    pub until_ns: u64,
    /// After HOTMEM_STEP_SEND: the bytes of the buffer that the device reads. The device writes its
    /// answer of 10 bytes to a second buffer.
    pub bytes: [u8; 24],
}
const _: () = assert!(Request::SIZE == 24);

/// The state of a virtio-mem device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_virtio_mem_status {
    /// One of HOTMEM_VIRTIO_MEM_SYNCHRONISING to HOTMEM_VIRTIO_MEM_FAILED.
    pub state: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The number of bytes that the device requests to be plugged.
    pub requested: u64,
    /// The number of bytes that are plugged.
    pub plugged: u64,
    /// The number of requests that were sent.
    pub requests: u64,
}

struct Device {
    instance: &'static Instance,
    features: Features,
    driver: Driver,
    memory: HotplugMemory<'static, CPlatform>,
}

const _: () = assert!(size_of::<Slot<Device>>() <= HOTMEM_VIRTIO_MEM_SIZE);
const _: () = assert!(align_of::<Slot<Device>>() <= align_of::<hotmem_virtio_mem>());

/// Returns the slot of the driver at `d`.
///
/// # Safety
/// As for [`Slot::at`].
unsafe fn device(d: *const hotmem_virtio_mem) -> Result<&'static Slot<Device>, Error> {
    // SAFETY: the caller guarantees it.
    unsafe { Slot::at(d.cast()) }
}

impl hotmem_virtio_mem_config {
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

/// Makes the driver of a device that was reset and has negotiated `features`. The driver puts
/// plugged memory online as `online_type`, one of HOTMEM_ONLINE_*, says. When it unplugs memory, a
/// step migrates the frames of about `budget` pageblocks (2 MiB); 0 means 64.
///
/// A device has one driver as long as it is used. To begin again after a reset, call
/// `hotmem_virtio_mem_reset`: a second driver would not know which memory is in transition.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EALREADY. HOTMEM_ERANGE: the region ends beyond the last physical address.
/// HOTMEM_EINVAL: an argument or the configuration is invalid in another way.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_virtio_mem` that was filled with zeroes at first. `h` is NULL or a
/// `struct hotmem`. `config` is NULL or a configuration. No other code uses the device's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_virtio_mem_init(
    d: *mut hotmem_virtio_mem,
    h: *mut hotmem,
    config: *const hotmem_virtio_mem_config,
    features: u64,
    online_type: u32,
    budget: u64,
) -> i32 {
    let init = || {
        // SAFETY: the caller guarantees it. The same holds for all pointers below.
        let (slot, instance) = unsafe { (device(d)?, instance(h)?) };
        instance.frames()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        let online_type = parse_online_type(online_type)?;
        let budget = Budget { pageblocks: if budget == 0 { 64 } else { budget } };
        let features = Features::from_bits_truncate(features);
        let driver = new_driver(&config, features)?;
        let memory = HotplugMemory::new(online_type, budget);
        slot.write(|| Device { instance, features, driver, memory }, |_| Ok(()))
    };
    code(init())
}

fn new_driver(config: &RawConfig, features: Features) -> Result<Driver, Error> {
    Driver::new(config, features).map_err(|error| match error.fault {
        ConfigFault::BeyondAddressSpace => Error(HOTMEM_ERANGE),
        _ => Error(HOTMEM_EINVAL),
    })
}

/// Starts the driver again. The device was reset and has negotiated the same features. Plugged memory
/// stays plugged and online. If a request was outstanding, the driver finds out whether the device
/// has carried it out. The number of requests begins again at 0.
///
/// A kernel resets the device if the driver has stopped; if the device does not answer; and if the
/// device's status has DEVICE_NEEDS_RESET, or lacks DRIVER_OK because the device has reset itself.
/// Call this function only after the status has read 0: until then, the device may still write an
/// answer.
///
/// # Errors
/// After all errors nothing has changed. HOTMEM_ERANGE: the region ends beyond the last physical
/// address. HOTMEM_EFAULT, HOTMEM_EBUSY. HOTMEM_EINVAL: an argument or the configuration is invalid
/// in another way.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_virtio_mem`. `config` is NULL or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_virtio_mem_reset(
    d: *mut hotmem_virtio_mem,
    config: *const hotmem_virtio_mem_config,
) -> i32 {
    let reset = || {
        // SAFETY: the caller guarantees it. The same holds below.
        let mut device = unsafe { device(d) }?.take()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        device.driver = new_driver(&config, device.features)?;
        Ok(())
    };
    code(reset())
}

/// Does one step towards the requested size, by plugging or unplugging memory. A step ends at the
/// latest when it needs an answer of the device; then it stores the next request in `request`.
/// `now_ns` is the time since any fixed moment. If the device has answered the last request,
/// `answer` points to the `len` bytes of the answer; otherwise it is NULL. The caller first takes the
/// answer from the queue, and then reads `config` from the device.
///
/// Call this function when the device interrupts, and at the time `until_ns` of the previous step.
/// Returns one of HOTMEM_STEP_*, and fills `request` accordingly. At most one request is on the
/// queue. The buffers of a request belong to the device until the device has answered the request.
///
/// # Errors
/// HOTMEM_EIO: the driver has stopped. After the following errors nothing has changed: HOTMEM_EFAULT,
/// HOTMEM_EINVAL, and HOTMEM_EBUSY if another call of the control path is in progress.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_virtio_mem`. `config` is NULL or a configuration. `answer` is NULL or
/// `len` bytes can be read there. `request` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_virtio_mem_step(
    d: *mut hotmem_virtio_mem,
    now_ns: u64,
    config: *const hotmem_virtio_mem_config,
    answer: *const u8,
    len: usize,
    request: *mut hotmem_virtio_mem_request,
) -> i32 {
    let step = || {
        // SAFETY: the caller guarantees it. The same holds for all pointers below.
        let mut device = unsafe { device(d) }?.take()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        // SAFETY: see above.
        let request = unsafe { request.as_mut() }.ok_or(Error(HOTMEM_EFAULT))?;
        // An answer has 10 bytes. The limit keeps the slice valid even if `len` exceeds the maximal
        // length of a slice.
        let answer_len = len.min(64);
        let has_answer = !answer.is_null();
        // SAFETY: see above.
        let answer = has_answer.then(|| unsafe { core::slice::from_raw_parts(answer, answer_len) });
        let Device { instance, driver, memory, .. } = &mut *device;
        let mut control = instance.enter()?;
        let running = control.running()?;
        // `bind` fails only for the control path of another instance.
        let bound = memory.bind(&mut running.hotplug, &mut running.hooks);
        let mut bound = bound.map_err(|_| Error(HOTMEM_EINVAL))?;
        match driver.step(Duration::from_nanos(now_ns), &config, answer, &mut bound) {
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

/// Stores the state of a virtio-mem device in `status`.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_virtio_mem`. `status` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_virtio_mem_get_status(
    d: *mut hotmem_virtio_mem,
    status: *mut hotmem_virtio_mem_status,
) -> i32 {
    let get = || {
        // SAFETY: the caller guarantees it. The same holds below.
        let device = unsafe { device(d) }?.take()?;
        let state = match device.driver.status() {
            Status::Synchronising => HOTMEM_VIRTIO_MEM_SYNCHRONISING,
            Status::Resizing => HOTMEM_VIRTIO_MEM_RESIZING,
            Status::Reached => HOTMEM_VIRTIO_MEM_REACHED,
            Status::Pending(_) => HOTMEM_VIRTIO_MEM_PENDING,
            Status::Failed(_) => HOTMEM_VIRTIO_MEM_FAILED,
        };
        // SAFETY: see above.
        *unsafe { status.as_mut() }.ok_or(Error(HOTMEM_EFAULT))? = hotmem_virtio_mem_status {
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

/// Writes the reason why the requested size is not reached, or why the driver has stopped, to the
/// `size` bytes at `text`. The text ends with a NUL. It is empty if there is no such reason, and is
/// cut off if it does not fit.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY. HOTMEM_ENOSPC: `size` is 0.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_virtio_mem`. `text` is NULL or `size` bytes can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_virtio_mem_explain(
    d: *mut hotmem_virtio_mem,
    text: *mut c_char,
    size: usize,
) -> i32 {
    let get = || {
        // SAFETY: the caller guarantees it. The same holds below.
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
                Status::Pending(reason) => write_text(text.cast(), size, reason),
                Status::Failed(reason) => write_text(text.cast(), size, reason),
                _ => write_text(text.cast(), size, ""),
            }
        }
        Ok(())
    };
    code(get())
}
