//! The driver of a virtio-mem device. The kernel performs its I/O.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the functions that a kernel calls, and the driver in the caller's memory |
//! | `types.rs` | the constants and structs of the interface |

mod types;

pub use types::{
    HOTMEM_STEP_AGAIN, HOTMEM_STEP_IDLE, HOTMEM_STEP_SEND, HOTMEM_STEP_WAIT,
    HOTMEM_VIRTIO_MEM_DEVICE_ID, HOTMEM_VIRTIO_MEM_FAILED, HOTMEM_VIRTIO_MEM_FEATURES,
    HOTMEM_VIRTIO_MEM_PENDING, HOTMEM_VIRTIO_MEM_REACHED, HOTMEM_VIRTIO_MEM_RESIZING,
    HOTMEM_VIRTIO_MEM_SIZE, HOTMEM_VIRTIO_MEM_SYNCHRONISING, HOTMEM_VIRTIO_MEM_WITHDRAWN,
    hotmem_virtio_mem, hotmem_virtio_mem_config, hotmem_virtio_mem_request,
    hotmem_virtio_mem_status,
};

use crate::control::parse_online_type;
use crate::error::{
    Error, HOTMEM_EAGAIN, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EIO, HOTMEM_ENOSPC, HOTMEM_ERANGE,
    code,
};
use crate::explain::write_text;
use crate::instance::{Instance, hotmem, instance};
use crate::platform::CPlatform;
use crate::slot::Slot;
use ::hotmem::{Budget, Progress};
use core::ffi::c_char;
use core::time::Duration;
use hotmem_virtio::mem::{
    ConfigFault, Driver, Features, HotplugMemory, RawConfig, Remaining, Status, Step,
};

struct Device {
    instance: &'static Instance,
    features: Features,
    driver: Driver,
    memory: HotplugMemory<'static, CPlatform>,
    withdrawal: Withdrawal,
}

/// How far the withdrawal of a device that is gone has come.
#[derive(Clone, Copy)]
enum Withdrawal {
    NotBegun,
    /// What remained of the memory when it was last seen that memory cannot be removed.
    Begun(Option<Remaining>),
}

impl Withdrawal {
    fn has_begun(self) -> bool {
        matches!(self, Withdrawal::Begun(_))
    }
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

/// Makes the driver of a device that was reset and has negotiated `features`. The driver puts
/// plugged memory online as `online_type`, one of HOTMEM_ONLINE_*, says. When it unplugs memory, a
/// step migrates the frames of about `budget` pageblocks (2 MiB); 0 means 64.
///
/// A device has one driver as long as it is used. To begin again after a reset, call
/// `hotmem_virtio_mem_reset`: a second driver would not know which memory is in transition.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EBUSY, HOTMEM_EALREADY. HOTMEM_ERANGE: the region ends beyond the last physical
/// address. HOTMEM_EINVAL: an argument or the configuration is invalid in another way.
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
        let withdrawal = Withdrawal::NotBegun;
        let device = Device { instance, features, driver, memory, withdrawal };
        slot.write(|place| place.write(device), |_| Ok(()))
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
/// stays plugged and online. A kernel that stops the device for a while resets the device, makes no
/// step, and calls this function when it goes on. After `hotmem_virtio_mem_withdraw`, the device may
/// be another one. If a request was outstanding, the driver finds out whether the device
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
        device.withdrawal = Withdrawal::NotBegun;
        Ok(())
    };
    code(reset())
}

/// Removes the memory of a device that is removed for good, and withdraws its region. The kernel has
/// reset the device for the last time, its status has read 0, and the RAM still exists: the device is
/// not asked. After this call the driver makes no step before `hotmem_virtio_mem_reset`.
///
/// Returns HOTMEM_STEP_IDLE (0) once all memory is removed, and HOTMEM_STEP_AGAIN if there is more to
/// do: call this function again. Memory in use is migrated, within the budget for each call.
///
/// # Errors
/// HOTMEM_EAGAIN: some of the memory cannot be removed. It stays online, so its RAM must stay too. The
/// other memory is removed. `hotmem_virtio_mem_get_status` stores the size of the rest in `plugged`, and
/// `hotmem_virtio_mem_explain` returns the reason. A later call may succeed. HOTMEM_EFAULT,
/// HOTMEM_EINVAL, HOTMEM_EBUSY: nothing has changed.
///
/// # Safety
/// `d` is NULL or a `struct hotmem_virtio_mem` whose device was reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_virtio_mem_withdraw(d: *mut hotmem_virtio_mem) -> i32 {
    let withdraw = || {
        // SAFETY: the caller guarantees it.
        let mut device = unsafe { device(d) }?.take()?;
        let Device { instance, memory, withdrawal, .. } = &mut *device;
        let mut control = instance.enter()?;
        let running = control.running()?;
        // This fails only for the control path of another instance.
        let progress = memory.withdraw(&mut running.hotplug, &mut running.hooks);
        let progress = progress.map_err(|_| Error(HOTMEM_EINVAL))?;
        match progress {
            Progress::Ready(()) | Progress::Idle => {
                *withdrawal = Withdrawal::Begun(None);
                Ok(HOTMEM_STEP_IDLE)
            }
            Progress::Working => {
                if !withdrawal.has_begun() {
                    *withdrawal = Withdrawal::Begun(None);
                }
                Ok(HOTMEM_STEP_AGAIN)
            }
            Progress::Pending(remaining) => {
                *withdrawal = Withdrawal::Begun(Some(remaining));
                Err(Error(HOTMEM_EAGAIN))
            }
        }
    };
    withdraw().unwrap_or_else(|Error(code)| code)
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
/// HOTMEM_EINVAL, also if the device is gone, and HOTMEM_EBUSY if another call of the control path is in
/// progress.
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
        let Device { instance, driver, memory, withdrawal, .. } = &mut *device;
        if withdrawal.has_begun() {
            return Err(Error(HOTMEM_EINVAL));
        }
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
        let mut device = unsafe { device(d) }?.take()?;
        // SAFETY: see above.
        let status = unsafe { status.as_mut() }.ok_or(Error(HOTMEM_EFAULT))?;
        let plugged = match device.withdrawal {
            Withdrawal::Begun(remaining) => remaining.map_or(0, |left| left.size.0),
            Withdrawal::NotBegun => device.driver.plugged().0,
        };
        let state = match device.driver.status() {
            _ if device.withdrawal.has_begun() => HOTMEM_VIRTIO_MEM_WITHDRAWN,
            Status::Synchronising => HOTMEM_VIRTIO_MEM_SYNCHRONISING,
            Status::Resizing => HOTMEM_VIRTIO_MEM_RESIZING,
            Status::Reached => HOTMEM_VIRTIO_MEM_REACHED,
            Status::Pending(_) => HOTMEM_VIRTIO_MEM_PENDING,
            Status::Failed(_) => HOTMEM_VIRTIO_MEM_FAILED,
        };
        *status = hotmem_virtio_mem_status {
            state,
            reserved: 0,
            requested: device.driver.config().requested().0,
            plugged,
            requests: device.driver.statistics().requests,
            missing_frames: device.memory.take_missing_frames(),
        };
        Ok(())
    };
    code(get())
}

/// Writes the reason why the requested size is not reached, why the driver has stopped, or why memory
/// of a device that is gone remains, to the `size` bytes at `text`. The text ends with a NUL. It is empty
/// if there is no such reason, and is cut off if it does not fit.
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
            match (device.withdrawal, device.driver.status()) {
                (Withdrawal::Begun(Some(left)), _) => write_text(text.cast(), size, left.reason),
                (Withdrawal::Begun(None), _) => write_text(text.cast(), size, ""),
                (_, Status::Pending(reason)) => write_text(text.cast(), size, reason),
                (_, Status::Failed(reason)) => write_text(text.cast(), size, reason),
                _ => write_text(text.cast(), size, ""),
            }
        }
        Ok(())
    };
    code(get())
}
