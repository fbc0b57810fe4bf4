//! The driver of a virtio-balloon device with free page reporting. The kernel performs its I/O.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the functions that a kernel calls, and the object that they keep in the caller's memory |
//! | `types.rs` | the constants and structs of the interface |
//! | `message.rs` | a request of the driver, written for the kernel to send |

mod message;
mod types;

pub use types::{
    HOTMEM_BALLOON_BITMAP_BYTES, HOTMEM_BALLOON_BYTES, HOTMEM_BALLOON_DEVICE_ID,
    HOTMEM_BALLOON_FAILED, HOTMEM_BALLOON_FEATURES, HOTMEM_BALLOON_PENDING, HOTMEM_BALLOON_RANGES,
    HOTMEM_BALLOON_RESIZING, HOTMEM_BALLOON_SETTLED, HOTMEM_BALLOON_SIZE, HOTMEM_POISON,
    HOTMEM_QUEUE_DEFLATE, HOTMEM_QUEUE_HINTS, HOTMEM_QUEUE_INFLATE, HOTMEM_QUEUE_REPORTS,
    HOTMEM_QUEUE_STATISTICS, HOTMEM_REPORT_EAGERLY, HOTMEM_STEP_RESET, HOTMEM_STEP_SET_ACTUAL,
    HOTMEM_TRUST_HOST, hotmem_balloon, hotmem_balloon_answer, hotmem_balloon_config,
    hotmem_balloon_message, hotmem_balloon_options, hotmem_balloon_status, hotmem_range,
};

use crate::control::range;
use crate::error::{Error, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EIO, HOTMEM_ENOENT, code};
use crate::hooks::{
    HOTMEM_MIGRATE_FREED, HOTMEM_MIGRATE_MOVED, HOTMEM_MIGRATE_RETRY, HOTMEM_MIGRATE_UNMOVABLE,
};
use crate::instance::{hotmem, instance};
use crate::platform::CPlatform;
use crate::slot::Slot;
use crate::virtio_mem::{
    HOTMEM_STEP_AGAIN, HOTMEM_STEP_IDLE, HOTMEM_STEP_SEND, HOTMEM_STEP_WAIT, nanoseconds,
};
use ::hotmem::report::ReporterSettings;
use ::hotmem::{Bytes, Frames, Migration};
use core::mem::MaybeUninit;
use core::time::Duration;
use hotmem_virtio::balloon::{
    Action, Driver, EngineMemory, Features, Memory, RawConfig, Status, Step,
};
use message::{queue_number, write_message};

struct Device {
    features: Features,
    options: hotmem_balloon_options,
    driver: Driver,
    memory: EngineMemory<'static, CPlatform>,
}

const _: () = assert!(size_of::<Slot<Device>>() <= HOTMEM_BALLOON_SIZE);
const _: () = assert!(align_of::<Slot<Device>>() <= align_of::<hotmem_balloon>());

impl Device {
    /// Makes a device in its place, field by field, because all of it together would need more than 4 KiB
    /// of stack.
    fn new_in<'p>(
        place: &'p mut MaybeUninit<Device>,
        frames: &'static Frames<CPlatform>,
        features: Features,
        options: hotmem_balloon_options,
        config: &RawConfig,
    ) -> &'p mut Device {
        let device = place.as_mut_ptr();
        // SAFETY: the pointers lead to the fields of `place`.
        unsafe {
            (&raw mut (*device).features).write(features);
            (&raw mut (*device).options).write(options);
            (&raw mut (*device).driver).write(options.driver(features, config));
            (&raw mut (*device).memory).write(EngineMemory::new(frames, options.min_free_frames));
        }
        // SAFETY: all fields were written.
        unsafe { place.assume_init_mut() }
    }
}

/// Returns the slot of the driver at `b`.
///
/// # Safety
/// As for [`Slot::at`].
unsafe fn device(b: *const hotmem_balloon) -> Result<&'static Slot<Device>, Error> {
    // SAFETY: the caller guarantees it.
    unsafe { Slot::at(b.cast()) }
}

/// Returns the features to negotiate, a subset of `offered`, the features that the device offers.
/// They depend on HOTMEM_POISON and HOTMEM_TRUST_HOST in `options`. `options` may be NULL.
///
/// # Safety
/// `options` is NULL or points to a `struct hotmem_balloon_options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_accept(
    offered: u64,
    options: *const hotmem_balloon_options,
) -> u64 {
    // SAFETY: the caller guarantees it.
    let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
    let offered = Features::from_bits_truncate(offered & HOTMEM_BALLOON_FEATURES);
    Features::accepted(offered, options.usable(), options.poison()).bits()
}

/// Makes the driver of a device that was reset and has negotiated `features`, a subset of
/// HOTMEM_BALLOON_FEATURES (`hotmem_balloon_accept`). `options` may be NULL.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EBUSY. HOTMEM_EINVAL: an argument is invalid, `features` has a feature that needs
/// HOTMEM_TRUST_HOST, or free memory must keep a pattern (HOTMEM_POISON) that a host with these features
/// could overwrite. HOTMEM_EALREADY: `b` has a driver
/// already, or the instance has another reporter.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon` that was filled with zeroes at first. `h` is NULL or a
/// `struct hotmem`. `config` is NULL or a configuration. `options` is NULL or options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_init(
    b: *mut hotmem_balloon,
    h: *mut hotmem,
    config: *const hotmem_balloon_config,
    features: u64,
    options: *const hotmem_balloon_options,
) -> i32 {
    let init = || {
        // SAFETY: the caller guarantees it. The same holds for all pointers below.
        let (slot, frames) = unsafe { (device(b)?, instance(h)?.frames()?) };
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        // SAFETY: see above.
        let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
        let features = Features::from_bits(features).ok_or(Error(HOTMEM_EINVAL))?;
        if !options.usable().contains(features) {
            return Err(Error(HOTMEM_EINVAL));
        }
        let settings = if options.flags & HOTMEM_REPORT_EAGERLY != 0 {
            ReporterSettings { keep_free: Bytes::ZERO, ..ReporterSettings::EAGER }
        } else {
            ReporterSettings::default()
        };
        slot.write(
            |place| Device::new_in(place, frames, features, options, &config),
            |device| Ok(device.memory.report(features, options.poison(), settings)?),
        )
    };
    code(init())
}

/// Inflates or deflates the balloon towards the requested size, reports free memory, and sends
/// statistics and hints. `answer` says on which queue the device has used its buffers, and is NULL if it
/// has used none. Returns one of HOTMEM_STEP_*, and fills `message` accordingly.
///
/// Call this function when the device interrupts, after `hotmem_hooks.wake_reporter` was called, and
/// at the time `until_ns` of the previous step. The function allocates and frees frames, but adds
/// and removes no memory, so it needs no lock against the functions that do.
///
/// # Errors
/// HOTMEM_EIO: the driver has stopped. HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY: nothing has
/// changed.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon`. `config` is NULL or a configuration. `answer` is NULL or an
/// answer. `message` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_step(
    b: *mut hotmem_balloon,
    now_ns: u64,
    config: *const hotmem_balloon_config,
    answer: *const hotmem_balloon_answer,
    message: *mut hotmem_balloon_message,
) -> i32 {
    let step = || {
        // SAFETY: the caller guarantees it. The same holds for all pointers below.
        let mut device = unsafe { device(b) }?.take()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        // SAFETY: see above.
        let out = unsafe { message.as_mut() }.ok_or(Error(HOTMEM_EFAULT))?;
        // SAFETY: see above.
        let used = match unsafe { answer.as_ref() } {
            None => None,
            Some(answer) => Some(answer.answer().ok_or(Error(HOTMEM_EINVAL))?),
        };
        let Device { driver, memory, .. } = &mut *device;
        match driver.step(Duration::from_nanos(now_ns), &config, used, memory) {
            Step::Ready(Ok(Action::Send(message))) => {
                let asks = driver.features().contains(Features::DEVICE_INIT_ON_INFLATE);
                write_message(out, &message, asks);
                Ok(HOTMEM_STEP_SEND)
            }
            Step::Ready(Ok(Action::SetActual(frames))) => {
                out.value = frames;
                Ok(HOTMEM_STEP_SET_ACTUAL)
            }
            Step::Working => Ok(HOTMEM_STEP_AGAIN),
            Step::Pending(until) => {
                out.until_ns = nanoseconds(until);
                Ok(HOTMEM_STEP_WAIT)
            }
            Step::Idle => Ok(HOTMEM_STEP_IDLE),
            Step::Ready(Ok(Action::Reset(queue))) => {
                out.queue = queue_number(queue);
                Ok(HOTMEM_STEP_RESET)
            }
            Step::Ready(Err(_)) => Err(Error(HOTMEM_EIO)),
        }
    };
    step().unwrap_or_else(|Error(code)| code)
}

/// Takes back all memory from the device, and starts the driver again. Before the call, reset the
/// device and negotiate the same features.
///
/// A kernel resets the device in three cases:
/// - after HOTMEM_STEP_RESET;
/// - if the device's status has DEVICE_NEEDS_RESET, or lacks DRIVER_OK because the device has reset
///   itself;
/// - before it stops using the device.
///
/// Call this function only after the status has read 0: until then, the device may
/// still write to its memory.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon` whose device was reset, so that the device accesses no
/// memory of the balloon any more. `config` is NULL or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_reset(
    b: *mut hotmem_balloon,
    config: *const hotmem_balloon_config,
) -> i32 {
    let reset = || {
        // SAFETY: the caller guarantees it. The same holds for all pointers below.
        let mut device = unsafe { device(b) }?.take()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        device.memory.device_reset();
        device.driver =
            device.options.driver(device.features, &config).with_counters_of(&device.driver);
        Ok(())
    };
    code(reset())
}

/// Exchanges memory in the balloon for other memory. `hotmem_hooks.migrate` calls this function and
/// returns its result, one of HOTMEM_MIGRATE_*.
///
/// # Errors
/// HOTMEM_ENOENT: the range is not in the balloon. HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE,
/// HOTMEM_EBUSY.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_migrate(
    b: *mut hotmem_balloon,
    paddr: u64,
    len: u64,
) -> i32 {
    let migrate = || {
        // SAFETY: the caller guarantees it.
        let mut device = unsafe { device(b) }?.take()?;
        match device.memory.migrate(range(paddr, len)?) {
            None => Err(Error(HOTMEM_ENOENT)),
            Some(Migration::Moved) => Ok(HOTMEM_MIGRATE_MOVED),
            Some(Migration::Freed) => Ok(HOTMEM_MIGRATE_FREED),
            Some(Migration::Retry) => Ok(HOTMEM_MIGRATE_RETRY),
            Some(Migration::Unmovable(_)) => Ok(HOTMEM_MIGRATE_UNMOVABLE),
        }
    };
    migrate().unwrap_or_else(|Error(code)| code)
}

/// Requests `frames` frames back from the balloon, because the kernel runs out of memory. 0 ends
/// the request. Call this when an allocation fails, and before you refuse to plug memory because no
/// memory is free. After this call, call `hotmem_balloon_step` until the balloon has become smaller,
/// and then try the allocation again. The lowest frames come back first. The balloon is deflated only if
/// VIRTIO_BALLOON_F_DEFLATE_ON_OOM is negotiated. Hinted memory comes back in any case.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_need(b: *mut hotmem_balloon, frames: u64) -> i32 {
    let need = || {
        // SAFETY: the caller guarantees it.
        unsafe { device(b) }?.take()?.memory.need(frames);
        Ok(())
    };
    code(need())
}

/// Stores the state of a balloon in `status`.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon`. `status` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_get_status(
    b: *mut hotmem_balloon,
    status: *mut hotmem_balloon_status,
) -> i32 {
    let get = || {
        // SAFETY: the caller guarantees it. The same holds below.
        let device = unsafe { device(b) }?.take()?;
        let state = match device.driver.status() {
            Status::Settled => HOTMEM_BALLOON_SETTLED,
            Status::Resizing => HOTMEM_BALLOON_RESIZING,
            Status::Pending(_) => HOTMEM_BALLOON_PENDING,
            Status::Failed(_) => HOTMEM_BALLOON_FAILED,
        };
        let counters = device.driver.counters();
        // SAFETY: see above.
        *unsafe { status.as_mut() }.ok_or(Error(HOTMEM_EFAULT))? = hotmem_balloon_status {
            state,
            reserved: 0,
            inflated: device.driver.inflated_frames(),
            target: device.driver.target(),
            reports: counters.reports,
            reported: counters.reported_frames,
            initialised: counters.initialised_frames,
            invalid_answers: counters.invalid_answers,
        };
        Ok(())
    };
    code(get())
}
