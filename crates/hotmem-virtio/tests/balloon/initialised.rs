//! Tests what the memory manager learns of inflated memory that the device says it has initialised.

use crate::memory::TestMemory;
use crate::setup::Setup;
use core::time::Duration;
use hotmem_virtio::balloon::{DeflateRequest, Features, InflateBitmap, Queue};

const BASE: u64 = 0x1000;

/// Returns a driver that has inflated `target` frames, with a device that gives this answer to each
/// inflate request.
fn inflated(features: Features, target: u32, written: u32, byte: u8) -> Setup {
    let mut setup = Setup::new(features, target, TestMemory::new(BASE, 1024));
    setup.written = written;
    setup.bitmap = InflateBitmap::new([byte; InflateBitmap::MAX_BYTES]);
    setup.poll();
    setup.assert_settled(target);
    setup
}

#[test]
fn the_memory_manager_learns_which_inflated_frames_the_device_has_initialised() {
    const ON: Features = Features::DEVICE_INIT_ON_INFLATE;
    const OTHERS: Features = Features::all().difference(ON);
    // The target, the used length, each byte of the bitmap, the number of frames, and that of
    // invalid answers. A request has at most 256 frames, and 32 bytes of bitmap.
    for (features, target, written, byte, initialised, invalid) in [
        (ON, 256, 32, 0xff, 256, 0),
        (ON, 512, 32, 0xff, 512, 0),
        (ON, 512, 32, 0x11, 128, 0),
        (ON, 512, 32, 0, 0, 0),
        (ON, 512, 0, 0xff, 0, 0),
        (ON, 512, 5, 0xff, 80, 0),
        (ON, 512, 33, 0xff, 0, 2),
        (ON, 512, u32::MAX, 0xff, 0, 2),
        (ON, 3, 1, 0xff, 3, 0),
        (ON, 3, 2, 0xff, 0, 1),
        // The request of 44 frames has 6 bytes of bitmap.
        (ON, 300, 6, 0xff, 48 + 44, 0),
        (ON, 300, 7, 0xff, 56, 1),
        (OTHERS, 512, 32, 0xff, 0, 0),
    ] {
        let setup = inflated(features, target, written, byte);
        let case = format!("{target} frames, {written} bytes of {byte:#x}");
        assert_eq!(setup.memory.initialised_frames.len() as u64, initialised, "{case}");
        let counters = setup.driver.counters();
        assert_eq!(counters.initialised_frames, initialised, "{case}");
        assert_eq!(counters.invalid_answers, invalid, "{case}");
    }
}

#[test]
fn each_bit_is_that_of_one_frame_of_its_request() {
    let setup = inflated(Features::DEVICE_INIT_ON_INFLATE, 300, 4, 0b0100_0001);
    // The memory manager inflates its lowest frames first.
    let of_request =
        |first: u64| (0..32).filter(|n| [0, 6].contains(&(n % 8))).map(move |n| first + n);
    let expected = of_request(BASE).chain(of_request(BASE + 256));
    assert!(setup.memory.initialised_frames.iter().copied().eq(expected));
}

#[test]
fn frames_that_leave_the_balloon_in_any_order_keep_what_was_said_of_the_others() {
    let mut setup = inflated(Features::DEVICE_INIT_ON_INFLATE, 1024, 32, 0xff);
    setup.written = 0;
    for target in [700, 699, 10] {
        setup.device.config.num_pages = target;
        setup.poll();
        setup.assert_settled(target);
        assert_eq!(setup.memory.initialised_frames.len(), target as usize);
    }
    // Frames that are inflated later are not initialised.
    setup.device.config.num_pages = 500;
    setup.poll();
    assert_eq!(setup.memory.initialised_frames.len(), 10);
}

#[test]
fn nothing_is_said_of_an_inflation_that_a_reset_ends() {
    let mut setup = inflated(Features::DEVICE_INIT_ON_INFLATE, 100, 13, 0xff);
    setup.device.silent_queues.push(Queue::Inflate);
    setup.device.config.num_pages = 900;
    setup.poll();
    // The first of two requests is answered.
    setup.device.silent_queues.clear();
    setup.answered_queue = setup.device.answer();
    setup.device.silent_queues.push(Queue::Inflate);
    setup.step();
    setup.run(Duration::from_secs(1));
    assert_eq!(setup.memory.initialised_frames.len(), 100);
    assert_eq!(setup.memory.deflate_request, DeflateRequest::default());
    hotmem_virtio::balloon::Memory::device_reset(&mut setup.memory);
    assert!(setup.memory.initialised_frames.is_empty());
}
