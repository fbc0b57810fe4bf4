//! A virtio-balloon device with free page reporting, without I/O.

use crate::control::range;
use crate::error::{Error, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EIO, HOTMEM_ENOENT, code};
use crate::hooks::{
    HOTMEM_MIGRATE_GONE, HOTMEM_MIGRATE_MOVED, HOTMEM_MIGRATE_PINNED, HOTMEM_MIGRATE_RETRY,
};
use crate::machine::{hotmem, machine};
use crate::platform::CPlatform;
use crate::slot::Slot;
use crate::vmem::{
    HOTMEM_STEP_AGAIN, HOTMEM_STEP_IDLE, HOTMEM_STEP_SEND, HOTMEM_STEP_WAIT, nanoseconds,
};
use ::hotmem::report::Settings;
use ::hotmem::{Bytes, Migration, PfnRange};
use core::time::Duration;
use hotmem_virtio::balloon::{
    Driver, EngineMemory, Features, Memory, Message, Poison, Queue, Ranges, RawConfig, Status, Step,
};

/// The size of `struct hotmem_balloon` in bytes.
pub const HOTMEM_BALLOON_SIZE: usize = 8192;
/// The device type of virtio-balloon.
pub const HOTMEM_BALLOON_DEVICE_ID: u16 = 5;
const _: () = assert!(HOTMEM_BALLOON_DEVICE_ID == hotmem_virtio::balloon::DEVICE_ID);
/// The feature bits that the driver supports.
pub const HOTMEM_BALLOON_FEATURES: u64 = 0x1_0000_003f;
const _: () = assert!(HOTMEM_BALLOON_FEATURES == Features::all().bits());

/// Write `value` to the configuration's `actual`, then step again.
pub const HOTMEM_STEP_SET_ACTUAL: i32 = 4;
/// The device has been silent for too long: reset it, negotiate the same features, call
/// `hotmem_balloon_reset`, and go on.
pub const HOTMEM_STEP_RESET: i32 = 5;

/// No queue.
pub const HOTMEM_QUEUE_NONE: i32 = -1;
/// Inflate requests.
pub const HOTMEM_QUEUE_INFLATE: i32 = 0;
/// Deflate requests.
pub const HOTMEM_QUEUE_DEFLATE: i32 = 1;
/// Statistics, with VIRTIO_BALLOON_F_STATS_VQ.
pub const HOTMEM_QUEUE_STATISTICS: i32 = 2;
/// Free page hints, with VIRTIO_BALLOON_F_FREE_PAGE_HINT.
pub const HOTMEM_QUEUE_HINTS: i32 = 3;
/// Free page reports, with VIRTIO_BALLOON_F_PAGE_REPORTING.
pub const HOTMEM_QUEUE_REPORTS: i32 = 4;

/// The balloon has the size that the host requests.
pub const HOTMEM_BALLOON_SETTLED: u32 = 0;
/// The balloon is being inflated or deflated.
pub const HOTMEM_BALLOON_RESIZING: u32 = 1;
/// The size cannot be reached now.
pub const HOTMEM_BALLOON_PENDING: u32 = 2;
/// The driver has stopped.
pub const HOTMEM_BALLOON_FAILED: u32 = 3;

/// Report as much as possible at once, and keep nothing back.
pub const HOTMEM_REPORT_EAGERLY: u32 = 1;
/// The kernel fills freed memory with `poison`, and relies on it.
pub const HOTMEM_POISON: u32 = 2;

/// How many bytes a device reads at most: 256 frame numbers.
pub const HOTMEM_BALLOON_BYTES: usize = 1024;
/// How many ranges a report has at most.
pub const HOTMEM_BALLOON_RANGES: usize = 32;
const _: () = assert!(HOTMEM_BALLOON_BYTES == Message::MOST_BYTES);
const _: () = assert!(HOTMEM_BALLOON_RANGES == Ranges::MOST);

/// The driver of a virtio-balloon device. It begins as zeroes, is neither moved nor copied, and
/// lives as long as the machine.
#[repr(C, align(16))]
#[allow(missing_debug_implementations, reason = "bytes that are not to be looked at")]
pub struct hotmem_balloon {
    opaque: [u8; HOTMEM_BALLOON_SIZE],
}

/// What the kernel chooses. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_options {
    /// Frames that stay with the kernel, however much the host requests.
    pub floor: u64,
    /// How long the device may take to answer. 0: 10 seconds.
    pub patience_ns: u64,
    /// HOTMEM_REPORT_EAGERLY, HOTMEM_POISON.
    pub flags: u32,
    /// With HOTMEM_POISON: the value of each four bytes.
    pub poison: u32,
    /// How many ranges of a report the queue has descriptors for. 0: HOTMEM_BALLOON_RANGES.
    pub report_ranges: u32,
    /// 0.
    pub reserved: u32,
}

/// The device's configuration space, as far as the driver reads it, in the CPU's byte order. It is
/// not trusted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_config {
    /// Offset 0: the size of the balloon in frames that the host requests.
    pub num_pages: u32,
    /// Offset 8, with VIRTIO_BALLOON_F_FREE_PAGE_HINT; 0 otherwise.
    pub free_page_hint_cmd_id: u32,
    /// The configuration generation, read before the others.
    pub generation: u32,
}

/// A range in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_range {
    /// The physical address.
    pub paddr: u64,
    /// How many bytes.
    pub len: u64,
}

/// What a step asks for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hotmem_balloon_message {
    /// After HOTMEM_STEP_WAIT: the time.
    pub until_ns: u64,
    /// After HOTMEM_STEP_SEND: the queue; after HOTMEM_STEP_RESET: the one that is silent.
    pub queue: i32,
    /// After HOTMEM_STEP_SET_ACTUAL: the value.
    pub value: u32,
    /// After HOTMEM_STEP_SEND: the length of the one buffer for the device to read, which gets
    /// `bytes`. It must stay as it is until the device has used it. 0: `ranges` are the buffers.
    pub len: u32,
    /// After HOTMEM_STEP_SEND: the number of ranges, each a buffer for the device to write.
    pub count: u32,
    /// The bytes of the buffer to read.
    pub bytes: [u8; HOTMEM_BALLOON_BYTES],
    /// The buffers to write.
    pub ranges: [hotmem_range; HOTMEM_BALLOON_RANGES],
}

/// The state of a balloon. Counters wrap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_status {
    /// One of HOTMEM_BALLOON_SETTLED and so on.
    pub state: u32,
    /// 0.
    pub reserved: u32,
    /// Frames in the balloon.
    pub held: u64,
    /// Frames that the host wants in it.
    pub target: u64,
    /// Reports that the device took.
    pub reports: u64,
    /// Frames in them.
    pub reported: u64,
}

/// The most pieces that the balloon consists of.
const PIECES: usize = 64;

struct Device {
    features: Features,
    options: hotmem_balloon_options,
    driver: Driver,
    memory: EngineMemory<'static, CPlatform, PIECES>,
}

const _: () = assert!(size_of::<Slot<Device>>() <= HOTMEM_BALLOON_SIZE);
const _: () = assert!(align_of::<Slot<Device>>() <= align_of::<hotmem_balloon>());

/// Returns the device.
///
/// # Safety
/// As for [`Slot::at`].
unsafe fn device(b: *const hotmem_balloon) -> Result<&'static Slot<Device>, Error> {
    // SAFETY: by the caller's promise.
    unsafe { Slot::at(b.cast()) }
}

impl hotmem_balloon_config {
    fn raw(&self) -> RawConfig {
        let hotmem_balloon_config { num_pages, free_page_hint_cmd_id, generation } = *self;
        RawConfig { num_pages, free_page_hint_cmd_id, generation }
    }
}

impl hotmem_balloon_options {
    fn poison(&self) -> Poison {
        if self.flags & HOTMEM_POISON != 0 { Poison::Filled(self.poison) } else { Poison::None }
    }

    fn driver(&self, features: Features, config: &RawConfig) -> Driver {
        let patience = match self.patience_ns {
            0 => Driver::PATIENCE,
            nanoseconds => Duration::from_nanos(nanoseconds),
        };
        let ranges = match self.report_ranges {
            0 => Ranges::MOST,
            ranges => ranges as usize,
        };
        Driver::new(features, config).with_patience(patience).with_report_ranges(ranges)
    }
}

/// Returns the features to accept of those that the device offers, given what the kernel does with
/// freed memory. `options` may be NULL.
///
/// # Safety
/// `options` is NULL or options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_accept(
    offered: u64,
    options: *const hotmem_balloon_options,
) -> u64 {
    // SAFETY: by the caller's promise.
    let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
    let offered = Features::from_bits_truncate(offered);
    Features::accepted(offered, Features::all(), options.poison()).bits()
}

/// Makes the driver of a device that was reset and has negotiated `features`, a subset of
/// HOTMEM_BALLOON_FEATURES (`hotmem_balloon_accept`). `options` may be NULL.
///
/// # Errors
/// HOTMEM_EFAULT; HOTMEM_EINVAL, also if the host could destroy what the kernel relies on in free
/// memory; HOTMEM_EALREADY: there is such a driver, or another reporter.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon` that was zeroes at first, `h` is NULL or a `struct
/// hotmem`, `config` is NULL or a configuration, `options` is NULL or options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_init(
    b: *mut hotmem_balloon,
    h: *mut hotmem,
    config: *const hotmem_balloon_config,
    features: u64,
    options: *const hotmem_balloon_options,
) -> i32 {
    let init = || {
        // SAFETY: by the caller's promise. The same holds for all pointers below.
        let (slot, frames) = unsafe { (device(b)?, machine(h)?.frames()?) };
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        // SAFETY: see above.
        let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
        let features = Features::from_bits(features).ok_or(Error(HOTMEM_EINVAL))?;
        slot.write(|| {
            let settings = if options.flags & HOTMEM_REPORT_EAGERLY != 0 {
                Settings { keep_free: Bytes::ZERO, ..Settings::eager() }
            } else {
                Settings::default()
            };
            let mut memory = EngineMemory::new(frames, options.floor);
            memory.report(features, options.poison(), settings)?;
            Ok(Device { features, options, driver: options.driver(features, &config), memory })
        })
    };
    code(init())
}

/// Continues to do what the host asks for. `used` is a queue on which the device has used its
/// buffer, or HOTMEM_QUEUE_NONE. Returns one of HOTMEM_STEP_*, and fills `message` accordingly.
///
/// Call it when the device interrupts, when `wake_reporter` was called, and at the time that it has
/// returned. It allocates and frees, and does not enter the control path: the caller's lock need
/// not be the same.
///
/// # Errors
/// HOTMEM_EIO: the driver has stopped. HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY: nothing has
/// changed.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon`; the other pointers are NULL or fit their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_step(
    b: *mut hotmem_balloon,
    now_ns: u64,
    config: *const hotmem_balloon_config,
    used: i32,
    message: *mut hotmem_balloon_message,
) -> i32 {
    let step = || {
        // SAFETY: by the caller's promise. The same holds for all pointers below.
        let mut device = unsafe { device(b) }?.take()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        // SAFETY: see above.
        let out = unsafe { message.as_mut() }.ok_or(Error(HOTMEM_EFAULT))?;
        let used = match used {
            HOTMEM_QUEUE_NONE => None,
            number => {
                let queue = usize::try_from(number).ok().and_then(|at| Queue::ALL.get(at));
                Some(*queue.ok_or(Error(HOTMEM_EINVAL))?)
            }
        };
        let Device { driver, memory, .. } = &mut *device;
        match driver.step(Duration::from_nanos(now_ns), &config, used, memory) {
            Step::Send(message) => {
                write(out, &message);
                Ok(HOTMEM_STEP_SEND)
            }
            Step::SetActual(frames) => {
                out.value = frames;
                Ok(HOTMEM_STEP_SET_ACTUAL)
            }
            Step::Again => Ok(HOTMEM_STEP_AGAIN),
            Step::WaitUntil(until) => {
                out.until_ns = nanoseconds(until);
                Ok(HOTMEM_STEP_WAIT)
            }
            Step::Idle => Ok(HOTMEM_STEP_IDLE),
            Step::Silent(queue) => {
                out.queue = queue_number(queue);
                Ok(HOTMEM_STEP_RESET)
            }
            Step::Failed(_) => Err(Error(HOTMEM_EIO)),
        }
    };
    step().unwrap_or_else(|Error(code)| code)
}

fn queue_number(queue: Queue) -> i32 {
    match queue {
        Queue::Inflate => HOTMEM_QUEUE_INFLATE,
        Queue::Deflate => HOTMEM_QUEUE_DEFLATE,
        Queue::Statistics => HOTMEM_QUEUE_STATISTICS,
        Queue::Hints => HOTMEM_QUEUE_HINTS,
        Queue::Reports => HOTMEM_QUEUE_REPORTS,
    }
}

/// Writes the buffers of a request.
fn write(out: &mut hotmem_balloon_message, message: &Message) {
    out.queue = queue_number(message.queue());
    (out.len, out.count) = (0, 0);
    let one =
        |range: &PfnRange| hotmem_range { paddr: range.start().phys_addr(), len: range.bytes().0 };
    let mut read = |bytes: &[u8]| {
        for (place, &byte) in out.bytes.iter_mut().zip(bytes) {
            *place = byte;
            out.len += 1;
        }
    };
    match message {
        Message::Inflate(range) | Message::Deflate(range) => {
            for (place, number) in out.bytes.chunks_exact_mut(4).zip(Message::frame_numbers(*range))
            {
                place.copy_from_slice(&number.to_le_bytes());
                out.len += 4;
            }
        }
        Message::Statistics(statistics) => {
            let (bytes, len) = statistics.to_bytes();
            read(&bytes[..len]);
        }
        Message::HintCommand(command) => read(&command.to_le_bytes()),
        Message::Hint(range) => {
            out.ranges[0] = one(range);
            out.count = 1;
        }
        Message::Report(ranges) => {
            for (place, range) in out.ranges.iter_mut().zip(ranges.as_slice()) {
                *place = one(range);
                out.count += 1;
            }
        }
    }
}

/// Takes back all that the device had, and starts the driver again: the device was reset and has
/// negotiated the same features.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon` whose device was reset, so that it does not access
/// memory any more; `config` is NULL or a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_reset(
    b: *mut hotmem_balloon,
    config: *const hotmem_balloon_config,
) -> i32 {
    let reset = || {
        // SAFETY: by the caller's promise. The same holds for all pointers below.
        let mut device = unsafe { device(b) }?.take()?;
        // SAFETY: see above.
        let config = unsafe { config.as_ref() }.ok_or(Error(HOTMEM_EFAULT))?.raw();
        device.memory.device_reset();
        device.driver = device.options.driver(device.features, &config).after(&device.driver);
        Ok(())
    };
    code(reset())
}

/// For `hotmem_hooks.migrate`: exchanges memory in the balloon for other memory. Returns what
/// `migrate` is to return, one of HOTMEM_MIGRATE_*.
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
        // SAFETY: by the caller's promise.
        let mut device = unsafe { device(b) }?.take()?;
        match device.memory.migrate(range(paddr, len)?) {
            None => Err(Error(HOTMEM_ENOENT)),
            Some(Migration::Moved) => Ok(HOTMEM_MIGRATE_MOVED),
            Some(Migration::Gone) => Ok(HOTMEM_MIGRATE_GONE),
            Some(Migration::Retry) => Ok(HOTMEM_MIGRATE_RETRY),
            Some(Migration::Pinned(_)) => Ok(HOTMEM_MIGRATE_PINNED),
        }
    };
    migrate().unwrap_or_else(|Error(code)| code)
}

/// Wants `frames` frames back from the balloon, because the kernel runs out of memory; 0 ends that.
/// Step, then try the allocation again. The host must allow this (VIRTIO_BALLOON_F_DEFLATE_ON_OOM).
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_need(b: *mut hotmem_balloon, frames: u64) -> i32 {
    let need = || {
        // SAFETY: by the caller's promise.
        unsafe { device(b) }?.take()?.memory.need(frames);
        Ok(())
    };
    code(need())
}

/// Tells the state of a balloon.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
///
/// # Safety
/// `b` is NULL or a `struct hotmem_balloon`; `status` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_balloon_get_status(
    b: *mut hotmem_balloon,
    status: *mut hotmem_balloon_status,
) -> i32 {
    let get = || {
        // SAFETY: by the caller's promise. The same holds below.
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
            held: device.driver.held(),
            target: device.driver.target(),
            reports: counters.reports,
            reported: counters.reported,
        };
        Ok(())
    };
    code(get())
}
