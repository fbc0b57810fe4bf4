use crate::instance::{BOOT_END, Heap, Instance, MEMORY_END, MIB, request};
use hotmem_c::*;
use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

/// A virtio-mem device that carries out all requests.
pub(crate) struct Device {
    pub(crate) config: hotmem_virtio_mem_config,
    pub(crate) answer: Option<[u8; 10]>,
    /// Whether each block is plugged.
    pub(crate) blocks: Vec<bool>,
}

fn config(requested_size: u64) -> hotmem_virtio_mem_config {
    hotmem_virtio_mem_config {
        block_size: 2 * MIB,
        addr: BOOT_END,
        region_size: MEMORY_END - BOOT_END,
        usable_region_size: MEMORY_END - BOOT_END,
        requested_size,
        ..hotmem_virtio_mem_config::default()
    }
}

impl Device {
    pub(crate) fn new(requested_size: u64) -> Device {
        let config = config(requested_size);
        let blocks = vec![false; (config.region_size / (2 * MIB)) as usize];
        Device { config, answer: None, blocks }
    }

    /// Steps the driver until it has nothing to do, or waits. Returns the last step.
    pub(crate) fn run(&mut self, driver: *mut hotmem_virtio_mem) -> i32 {
        let mut request = hotmem_virtio_mem_request::default();
        loop {
            let answer = self.answer.take();
            let pointer = answer.as_ref().map_or(null(), |bytes| bytes.as_ptr());
            // SAFETY: `driver` points to a driver that was set up, `pointer` is null or points to
            // 10 bytes, and the other pointers are references.
            match unsafe {
                hotmem_virtio_mem_step(driver, 0, &self.config, pointer, 10, &mut request)
            } {
                HOTMEM_STEP_SEND => self.carry_out(&request.bytes),
                HOTMEM_STEP_AGAIN => {}
                last_step => return last_step,
            }
        }
    }

    pub(crate) fn carry_out(&mut self, request: &[u8; 24]) {
        let count = usize::from(u16::from_le_bytes([request[16], request[17]]));
        let addr = u64::from_le_bytes(request[8..16].try_into().unwrap());
        let first = ((addr - BOOT_END) / (2 * MIB)) as usize;
        let blocks = &mut self.blocks[first..first + count];
        let mut answer = [0; 10];
        match request[0] {
            kind @ (0 | 1) => {
                assert!(blocks.iter().all(|&is_plugged| is_plugged == (kind == 1)));
                blocks.fill(kind == 0);
            }
            3 if blocks.iter().all(|&is_plugged| is_plugged) => {}
            3 => answer[8] = if blocks.contains(&true) { 2 } else { 1 },
            request_type => {
                panic!("the driver sent a request of the unexpected type {request_type}")
            }
        }
        let plugged = self.blocks.iter().filter(|&&is_plugged| is_plugged).count();
        self.config.plugged_size = plugged as u64 * 2 * MIB;
        self.answer = Some(answer);
    }
}

pub(crate) fn status(driver: *mut hotmem_virtio_mem) -> hotmem_virtio_mem_status {
    let mut status = hotmem_virtio_mem_status::default();
    // SAFETY: `driver` points to a driver that was set up.
    assert_eq!(unsafe { hotmem_virtio_mem_get_status(driver, &mut status) }, 0);
    status
}

pub(crate) fn explain(driver: *mut hotmem_virtio_mem, size: usize) -> String {
    let mut text = [1 as c_char; 128];
    // SAFETY: `driver` points to a driver that was set up, and `text` has at least `size` bytes.
    unsafe {
        assert_eq!(hotmem_virtio_mem_explain(driver, text.as_mut_ptr(), size), 0);
        CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned()
    }
}

#[test]
fn a_virtio_mem_device_grows_and_shrinks() {
    let instance = Instance::boot(None);
    let virtio_mem = Heap::zeroes::<hotmem_virtio_mem>();
    let driver = virtio_mem.pointer::<hotmem_virtio_mem>();
    let mut device = Device::new(32 * MIB);
    let (features, online_type) = (HOTMEM_VIRTIO_MEM_FEATURES & !1, HOTMEM_ONLINE_MOVABLE);
    // SAFETY: `driver` points to zeroes, `instance.as_ptr()` to an instance, and the memory of the
    // device is the instance's own memory.
    unsafe {
        assert_eq!(
            hotmem_virtio_mem_init(
                driver,
                instance.as_ptr(),
                &device.config,
                features,
                online_type,
                0
            ),
            0
        );
        let again = hotmem_virtio_mem_init(
            driver,
            instance.as_ptr(),
            &device.config,
            features,
            online_type,
            0,
        );
        assert_eq!(again, HOTMEM_EALREADY);
    }
    assert_eq!(device.run(driver), HOTMEM_STEP_IDLE);
    assert_eq!(
        (status(driver).state, status(driver).plugged),
        (HOTMEM_VIRTIO_MEM_REACHED, 32 * MIB)
    );
    assert_eq!(instance.counts().movable, 32 * MIB / 4096);
    assert_eq!(explain(driver, 128), "");

    let page = instance.alloc(&hotmem_request {
        flags: HOTMEM_MOVABLE,
        frames: 1,
        ..hotmem_request::default()
    });
    device.config.requested_size = 0;
    assert_eq!(device.run(driver), HOTMEM_STEP_WAIT);
    assert_eq!(status(driver).plugged, 2 * MIB);
    assert_eq!(instance.free(page.unwrap(), 1), 0);
    device.config.requested_size = 2 * MIB;
    assert_eq!(device.run(driver), HOTMEM_STEP_IDLE);
    device.config.requested_size = 0;
    assert_eq!(device.run(driver), HOTMEM_STEP_IDLE);
    assert_eq!((status(driver).state, status(driver).plugged), (HOTMEM_VIRTIO_MEM_REACHED, 0));
    assert_eq!(instance.counts().present, BOOT_END / 4096);
}

#[test]
fn a_driver_that_is_reset_during_a_request_reaches_the_requested_size() {
    let cases = [false, true].map(|unplugs| [false, true].map(|done| (unplugs, done)));
    for (unplugs, is_carried_out) in cases.into_iter().flatten() {
        for malformed in [false, true] {
            let instance = Instance::boot(None);
            let virtio_mem = Heap::zeroes::<hotmem_virtio_mem>();
            let driver = virtio_mem.pointer::<hotmem_virtio_mem>();
            let mut device = Device::new(32 * MIB);
            let mut request = hotmem_virtio_mem_request::default();
            // SAFETY: as above. The answer has 10 bytes.
            unsafe {
                let (h, online_type) = (instance.as_ptr(), HOTMEM_ONLINE_MOVABLE);
                let config = &raw const device.config;
                assert_eq!(hotmem_virtio_mem_reset(driver, config), HOTMEM_EINVAL);
                assert_eq!(hotmem_virtio_mem_init(driver, h, config, 0, online_type, 0), 0);
                device.run(driver);
                let target = if unplugs { 16 * MIB } else { 48 * MIB };
                device.config.requested_size = target;
                while hotmem_virtio_mem_step(driver, 0, &device.config, null(), 0, &mut request)
                    != HOTMEM_STEP_SEND
                {}
                if is_carried_out {
                    device.carry_out(&request.bytes);
                }
                device.answer = malformed.then_some([0xff; 10]);
                let expected = if malformed { HOTMEM_EIO } else { HOTMEM_STEP_WAIT };
                assert_eq!(device.run(driver), expected);

                let odd = hotmem_virtio_mem_config { block_size: 3, ..device.config };
                assert_eq!(hotmem_virtio_mem_reset(driver, &odd), HOTMEM_EINVAL);
                assert_eq!(hotmem_virtio_mem_reset(driver, null()), HOTMEM_EFAULT);
                assert_eq!(hotmem_virtio_mem_reset(driver, &device.config), 0);
                assert_eq!(device.run(driver), HOTMEM_STEP_IDLE);
                let status = status(driver);
                assert_eq!((status.state, status.plugged), (HOTMEM_VIRTIO_MEM_REACHED, target));
                assert_eq!(device.config.plugged_size, target);
                assert_eq!(instance.counts().movable, target / 4096);
            }
        }
    }
}

#[test]
fn a_driver_stops_at_a_malformed_response_and_explains_it() {
    let instance = Instance::boot(None);
    let virtio_mem = Heap::zeroes::<hotmem_virtio_mem>();
    let driver = virtio_mem.pointer::<hotmem_virtio_mem>();
    let (mut request, malformed_answer) = (hotmem_virtio_mem_request::default(), [9_u8; 10]);
    // SAFETY: `driver` points to zeroes, `instance.as_ptr()` to an instance, and the memory of the
    // device is the instance's own memory. All answers are null or have `len` bytes.
    unsafe {
        let odd = hotmem_virtio_mem_config { block_size: 3, ..config(0) };
        assert_eq!(hotmem_virtio_mem_init(driver, instance.as_ptr(), &odd, 0, 0, 0), HOTMEM_EINVAL);
        let far = hotmem_virtio_mem_config { addr: !0 << 21, ..config(0) };
        assert_eq!(hotmem_virtio_mem_init(driver, instance.as_ptr(), &far, 0, 0, 0), HOTMEM_ERANGE);
        assert_eq!(
            hotmem_virtio_mem_init(driver, instance.as_ptr(), &config(0), 0, 7, 0),
            HOTMEM_EINVAL
        );
        let config = config(4 * MIB);
        assert_eq!(hotmem_virtio_mem_init(driver, instance.as_ptr(), &config, 0, 0, 0), 0);
        let mut step = |answer: *const u8, len| {
            hotmem_virtio_mem_step(driver, 0, &config, answer, len, &mut request)
        };
        while step(null(), 0) != HOTMEM_STEP_SEND {}
        assert_eq!(step(malformed_answer.as_ptr(), 10), HOTMEM_EIO);
        assert_eq!(step(null(), 0), HOTMEM_EIO);
        assert_eq!(
            hotmem_virtio_mem_step(driver, 0, null(), null(), 0, &mut request),
            HOTMEM_EFAULT
        );
        assert_eq!(
            hotmem_virtio_mem_step(driver, 0, &config, null(), 0, null_mut()),
            HOTMEM_EFAULT
        );
        assert_eq!(hotmem_virtio_mem_explain(driver, null_mut(), 9), HOTMEM_EFAULT);
        assert_eq!(hotmem_virtio_mem_explain(driver, (&raw mut request).cast(), 0), HOTMEM_ENOSPC);
    }
    assert_eq!(status(driver).state, HOTMEM_VIRTIO_MEM_FAILED);
    assert_eq!(explain(driver, 128), "response: the response type 2313 is unknown");
    assert_eq!(explain(driver, 9), "response");
    assert_eq!(explain(driver, 1), "");
    assert_eq!(instance.counts().present, BOOT_END / 4096, "memory was added");
}

/// Returns an answer on this queue by which the device says nothing of what memory contains.
pub(crate) fn answer(queue: i32) -> hotmem_balloon_answer {
    hotmem_balloon_answer { queue, ..Default::default() }
}

/// Returns a pointer to the answer, or null if there is none.
pub(crate) fn pointer_to(answer: &Option<hotmem_balloon_answer>) -> *const hotmem_balloon_answer {
    answer.as_ref().map_or(null(), |answer| answer)
}

#[test]
fn a_balloon_takes_frames_and_reports_free_memory() {
    let instance = Instance::boot(None);
    instance.plug(HOTMEM_ONLINE_KERNEL);
    let balloon = Heap::zeroes::<hotmem_balloon>();
    let balloon_ptr = balloon.pointer::<hotmem_balloon>();
    let message = Heap::zeroes::<hotmem_balloon_message>();
    let message_ptr = message.pointer::<hotmem_balloon_message>();
    let mut config = hotmem_balloon_config { num_pages: 300, ..Default::default() };
    let options = hotmem_balloon_options { flags: HOTMEM_REPORT_EAGERLY, ..Default::default() };
    let (mut frames, mut reported) = (Vec::new(), 0);
    // SAFETY: `balloon_ptr` and `message_ptr` point to zeroed objects of their types,
    // `instance.as_ptr()` to an instance, and the other pointers are null or references.
    unsafe {
        let features = hotmem_balloon_accept(HOTMEM_BALLOON_FEATURES & !0b1000, &options);
        assert_eq!(features, 0x1_0000_0027, "hints or poison are accepted");
        assert_eq!(
            hotmem_balloon_init(balloon_ptr, instance.as_ptr(), &config, u64::MAX, null()),
            HOTMEM_EINVAL
        );
        assert_eq!(
            hotmem_balloon_init(balloon_ptr, instance.as_ptr(), &config, features, &options),
            0
        );
        assert_eq!(
            hotmem_balloon_step(balloon_ptr, 0, &config, &answer(5), message_ptr),
            HOTMEM_EINVAL,
            "queue 5 does not exist"
        );
        let mut run = |config: &hotmem_balloon_config| {
            let (mut used, mut actual) = (None, None);
            for now in 0.. {
                let step = hotmem_balloon_step(
                    balloon_ptr,
                    now << 20,
                    config,
                    pointer_to(&used),
                    message_ptr,
                );
                used = None;
                match (step, (*message_ptr).queue) {
                    // The device keeps the buffer of statistics, so it uses no buffer now.
                    (HOTMEM_STEP_SEND, HOTMEM_QUEUE_STATISTICS) => {
                        assert_eq!((*message_ptr).len, 30)
                    }
                    (HOTMEM_STEP_SEND, queue) => {
                        used = Some(answer(queue));
                        for number in
                            (&(*message_ptr).bytes)[..(*message_ptr).len as usize].chunks_exact(4)
                        {
                            frames.push(u32::from_le_bytes(number.try_into().unwrap()));
                        }
                        let ranges = &(&(*message_ptr).ranges)[..(*message_ptr).count as usize];
                        reported += ranges.iter().map(|range| range.len).sum::<u64>();
                    }
                    (HOTMEM_STEP_SET_ACTUAL, _) => actual = Some((*message_ptr).value),
                    (HOTMEM_STEP_AGAIN, _) => {}
                    (HOTMEM_STEP_WAIT | HOTMEM_STEP_IDLE, _) => break,
                    other => panic!("{other:?}"),
                }
            }
            actual
        };
        assert_eq!(run(&config), Some(300));
        config.num_pages = 0;
        assert_eq!(run(&config), Some(0));
        let mut status = hotmem_balloon_status::default();
        assert_eq!(hotmem_balloon_get_status(balloon_ptr, &mut status), 0);
        assert_eq!((status.state, status.inflated), (HOTMEM_BALLOON_SETTLED, 0));
        assert_eq!(status.reported * 4096, reported);
    }
    assert_eq!(frames.len(), 600);
    let (inflated, deflated) = frames.split_at(300);
    let sorted = |frames: &[u32]| {
        let mut frames = frames.to_vec();
        frames.sort_unstable();
        frames.dedup();
        frames
    };
    assert_eq!((sorted(inflated).len(), sorted(inflated)), (300, sorted(deflated)));
    assert!(reported > 0 && instance.counts().reported > 0);
}

#[test]
fn a_balloon_takes_single_frames_that_are_spread_over_the_memory() {
    let instance = Instance::boot(None);
    let mut all: Vec<u64> = std::iter::from_fn(|| instance.alloc(&request(1)).ok()).collect();
    all.sort_unstable();
    all.iter().step_by(2).for_each(|&paddr| assert_eq!(instance.free(paddr, 1), 0));
    let target = u32::try_from(all.len() / 4).unwrap();
    let balloon = Heap::zeroes::<hotmem_balloon>();
    let balloon_ptr = balloon.pointer::<hotmem_balloon>();
    let message = Heap::zeroes::<hotmem_balloon_message>();
    let message_ptr = message.pointer::<hotmem_balloon_message>();
    let config = hotmem_balloon_config { num_pages: target, ..Default::default() };
    let mut status = hotmem_balloon_status::default();
    let mut used = None;
    // SAFETY: `balloon_ptr` and `message_ptr` point to zeroed objects of their types,
    // `instance.as_ptr()` to an instance, and the other pointers are null or references.
    unsafe {
        assert_eq!(hotmem_balloon_init(balloon_ptr, instance.as_ptr(), &config, 0, null()), 0);
        loop {
            match hotmem_balloon_step(balloon_ptr, 0, &config, pointer_to(&used), message_ptr) {
                HOTMEM_STEP_SEND => used = Some(answer((*message_ptr).queue)),
                HOTMEM_STEP_AGAIN | HOTMEM_STEP_SET_ACTUAL => used = None,
                _ => break,
            }
        }
        assert_eq!(hotmem_balloon_get_status(balloon_ptr, &mut status), 0);
    }
    assert!(target > 500, "{target} frames are not many");
    assert_eq!((status.state, status.inflated), (HOTMEM_BALLOON_SETTLED, target.into()));
}

#[test]
fn memory_in_a_balloon_is_taken_back_after_a_reset_of_the_device() {
    let instance = Instance::boot(None);
    let balloon = Heap::zeroes::<hotmem_balloon>();
    let balloon_ptr = balloon.pointer::<hotmem_balloon>();
    let message = Heap::zeroes::<hotmem_balloon_message>();
    let message_ptr = message.pointer::<hotmem_balloon_message>();
    let config = hotmem_balloon_config { num_pages: 100, ..Default::default() };
    let options = hotmem_balloon_options { answer_timeout_ns: 1000, ..Default::default() };
    let used = instance.counts().used;
    // SAFETY: `balloon_ptr` and `message_ptr` point to zeroed objects of their types,
    // `instance.as_ptr()` to an instance, and the other pointers are null or references.
    unsafe {
        assert_eq!(hotmem_balloon_init(balloon_ptr, instance.as_ptr(), &config, 0, &options), 0);
        while hotmem_balloon_step(balloon_ptr, 0, &config, null(), message_ptr) != HOTMEM_STEP_SEND
        {
        }
        let first = u32::from_le_bytes((&(*message_ptr).bytes)[..4].try_into().unwrap());
        let paddr = u64::from(first) * 4096;
        // The record of the balloon takes a frame or two.
        let taken = instance.counts().used - used;
        assert!((101..=102).contains(&taken), "{taken}");
        assert_eq!(hotmem_balloon_migrate(balloon_ptr, paddr, 4096), HOTMEM_MIGRATE_RETRY);
        assert_eq!(hotmem_balloon_migrate(balloon_ptr, 0, 4096), HOTMEM_ENOENT);
        assert_eq!(hotmem_balloon_migrate(balloon_ptr, 1, 4096), HOTMEM_EINVAL);
        let late = hotmem_balloon_step(balloon_ptr, 10_000, &config, null(), message_ptr);
        assert_eq!((late, (*message_ptr).queue), (HOTMEM_STEP_RESET, HOTMEM_QUEUE_INFLATE));
        assert_eq!(hotmem_balloon_reset(balloon_ptr, &config), 0);
        assert_eq!(instance.counts().used, used);
        // The device answers although no request is on the queue.
        assert_eq!(
            hotmem_balloon_step(
                balloon_ptr,
                0,
                &config,
                &answer(HOTMEM_QUEUE_DEFLATE),
                message_ptr
            ),
            HOTMEM_EIO
        );
        let mut status = hotmem_balloon_status::default();
        assert_eq!(hotmem_balloon_get_status(balloon_ptr, &mut status), 0);
        assert_eq!(status.state, HOTMEM_BALLOON_FAILED);
        assert_eq!(hotmem_balloon_need(balloon_ptr, 5), 0);
    }
}

/// The driver has removed a block and has requested to unplug it. The device has not answered yet.
#[test]
fn offline_memory_that_a_device_is_unplugging_is_busy_and_the_rest_is_removed() {
    let instance = Instance::boot(None);
    let virtio_mem = Heap::zeroes::<hotmem_virtio_mem>();
    let driver = virtio_mem.pointer::<hotmem_virtio_mem>();
    let mut device = Device::new(32 * MIB);
    let features = HOTMEM_VIRTIO_MEM_FEATURES & !1;
    let mut request = hotmem_virtio_mem_request::default();
    // SAFETY: `driver` points to zeroes, `instance.as_ptr()` to an instance, and the memory of the
    // device is the instance's own memory.
    unsafe {
        assert_eq!(
            hotmem_virtio_mem_init(
                driver,
                instance.as_ptr(),
                &device.config,
                features,
                HOTMEM_ONLINE_NOT,
                0
            ),
            0
        );
        device.run(driver);
        assert_eq!(instance.state(BOOT_END, 32 * MIB), (HOTMEM_STATE_OFFLINE, 32 * MIB));
        device.config.requested_size = 28 * MIB;
        while hotmem_virtio_mem_step(driver, 0, &device.config, null(), 0, &mut request)
            != HOTMEM_STEP_SEND
        {}
    }
    let unplugged = u64::from_le_bytes(request.bytes[8..16].try_into().unwrap());
    let (code, removal) = instance.remove(BOOT_END, 32 * MIB);
    assert_eq!((code, removal.why), (HOTMEM_EBUSY, HOTMEM_WHY_BUSY));
    assert_eq!(removal.paddr, unplugged);
    assert!(removal.len <= 4 * MIB, "{removal:?}");
    assert_eq!(removal.removed, 28 * MIB);
}
