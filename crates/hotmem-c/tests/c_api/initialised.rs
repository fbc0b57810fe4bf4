//! Tests what a kernel knows of memory that the device of its balloon has initialised.

use crate::devices::{answer, pointer_to};
use crate::instance::{Heap, Instance, request};
use crate::zeroed::PAGEBLOCK;
use hotmem_c::*;

const REPORTING: u64 = 1 << 5;
const INIT_REPORTED: u64 = 1 << 6;
const INIT_ON_INFLATE: u64 = 1 << 7;
/// The number of frames that are inflated.
const TARGET: u32 = 8 * 512;
const TRUSTING: hotmem_balloon_options = hotmem_balloon_options {
    min_free_frames: 0,
    answer_timeout_ns: 0,
    flags: HOTMEM_REPORT_EAGERLY | HOTMEM_TRUST_HOST,
    poison: 0,
    max_report_ranges: 0,
    reserved: 0,
};

/// A device that overwrites all memory that it is given, and writes zeroes to a part of it.
struct Host<'i> {
    instance: &'i Instance,
    balloon: Heap,
    message: Heap,
    config: hotmem_balloon_config,
    now: u64,
    /// Returns the used length for a report of this number of bytes. It is also the number of bytes
    /// that are zeroed, from the start of the report.
    len_of_report: fn(u64) -> u64,
    /// Returns the used length for a bitmap of this length.
    len_of_bitmap: fn(u32) -> u32,
    /// Each byte of a bitmap. The frames whose bits are set are zeroed.
    bits: u8,
    /// The number of frames of whole pageblocks of reports that were zeroed.
    zeroed: u64,
    /// The number of inflate requests.
    inflations: u64,
}

impl<'i> Host<'i> {
    /// Makes a device with these features, and the driver of a kernel that trusts its host.
    fn new(instance: &'i Instance, features: u64) -> Host<'i> {
        let (balloon, message) =
            (Heap::zeroes::<hotmem_balloon>(), Heap::zeroes::<hotmem_balloon_message>());
        let config = hotmem_balloon_config::default();
        // SAFETY: the pointers point to an instance, to zeroes, and to objects of their types.
        unsafe {
            assert_eq!(hotmem_balloon_accept(features, &TRUSTING), features);
            let b = balloon.pointer();
            let code = hotmem_balloon_init(b, instance.as_ptr(), &config, features, &TRUSTING);
            assert_eq!(code, 0);
        }
        let (len_of_report, len_of_bitmap) = (|bytes| bytes, |len| len);
        let (now, bits, zeroed, inflations) = (0, u8::MAX, 0, 0);
        Host {
            instance,
            balloon,
            message,
            config,
            now,
            len_of_report,
            len_of_bitmap,
            bits,
            zeroed,
            inflations,
        }
    }

    /// Steps the driver until it has nothing to do.
    fn run(&mut self) {
        let mut used = None;
        loop {
            self.now += 1 << 20;
            let message = self.message.pointer::<hotmem_balloon_message>();
            let answer = pointer_to(&used);
            // SAFETY: the pointers point to a driver and to objects of their types.
            let (step, message) = unsafe {
                let balloon = self.balloon.pointer();
                (hotmem_balloon_step(balloon, self.now, &self.config, answer, message), &*message)
            };
            used = None;
            match step {
                HOTMEM_STEP_SEND => used = Some(self.carry_out(message)),
                HOTMEM_STEP_AGAIN | HOTMEM_STEP_SET_ACTUAL => {}
                HOTMEM_STEP_WAIT | HOTMEM_STEP_IDLE => return,
                other => panic!("{other}"),
            }
        }
    }

    fn carry_out(&mut self, message: &hotmem_balloon_message) -> hotmem_balloon_answer {
        let mut answer = answer(message.queue);
        if message.queue == HOTMEM_QUEUE_INFLATE {
            self.inflations += 1;
            answer.written = (self.len_of_bitmap)(message.bitmap_len);
            answer.bitmap.fill(self.bits);
            let numbers = message.bytes[..message.len as usize].chunks_exact(4);
            for (index, number) in numbers.enumerate() {
                let paddr = u64::from(u32::from_le_bytes(number.try_into().unwrap())) * 4096;
                let is_zeroed = self.bits >> (index % 8) & 1 != 0;
                self.instance.fill(paddr, 1, if is_zeroed { 0 } else { 0xa5 });
            }
        } else if message.queue == HOTMEM_QUEUE_REPORTS {
            let ranges = &message.ranges[..message.count as usize];
            let written = (self.len_of_report)(ranges.iter().map(|range| range.len).sum());
            answer.written = u32::try_from(written).unwrap();
            let mut left = written / 4096;
            for range in ranges {
                let (frames, zeroed) = (range.len / 4096, left.min(range.len / 4096));
                self.instance.fill(range.paddr, zeroed, 0);
                self.instance.fill(range.paddr + zeroed * 4096, frames - zeroed, 0xa5);
                self.zeroed += zeroed / PAGEBLOCK * PAGEBLOCK;
                left -= zeroed;
            }
        }
        answer
    }

    /// Inflates the balloon to `TARGET` frames.
    fn inflate(&mut self) {
        self.config.num_pages = TARGET;
        self.run();
        assert_eq!(self.status().inflated, u64::from(TARGET));
    }

    fn deflate(&mut self) {
        self.config.num_pages = 0;
        self.run();
        assert_eq!(self.status().inflated, 0);
    }

    fn status(&self) -> hotmem_balloon_status {
        let mut status = hotmem_balloon_status::default();
        // SAFETY: the pointers point to a driver and a status.
        let code = unsafe { hotmem_balloon_get_status(self.balloon.pointer(), &mut status) };
        assert_eq!(code, 0);
        status
    }
}

/// Returns an instance that keeps marks.
fn instance() -> Instance {
    let instance = Instance::boot(None);
    instance.plug(HOTMEM_ONLINE_KERNEL);
    // SAFETY: `as_ptr()` points to an instance.
    assert_eq!(unsafe { hotmem_keep_zero_marks(instance.as_ptr()) }, 0);
    instance
}

/// Allocates all whole pageblocks. Returns how many of their frames are known to be zero, and checks
/// that they are.
fn known_to_be_zero(instance: &Instance) -> u64 {
    let mut known = 0;
    while let Ok((paddr, is_zero)) = instance.alloc_asking(&request(PAGEBLOCK)) {
        if is_zero {
            assert!(instance.is_filled_with_zeroes(paddr, PAGEBLOCK), "{paddr:#x}");
            known += PAGEBLOCK;
        }
    }
    known
}

/// Returns how many frames are known to be zero after all free memory was reported to a device with
/// these used lengths, how many were zeroed, and the driver's status.
fn after_reports(len_of_report: fn(u64) -> u64) -> (u64, u64, hotmem_balloon_status) {
    let instance = instance();
    let mut host = Host::new(&instance, REPORTING | INIT_REPORTED);
    host.len_of_report = len_of_report;
    host.run();
    let status = host.status();
    assert!(status.reported >= 20 * PAGEBLOCK, "{status:?}");
    (known_to_be_zero(&instance), host.zeroed, status)
}

#[test]
fn reported_memory_is_zero_up_to_the_used_length() {
    let (known, zeroed, status) = after_reports(|bytes| bytes);
    assert_eq!((known, zeroed), (status.reported, status.reported));
    assert_eq!((status.initialised, status.invalid_answers), (status.reported, 0));
    // The last pageblock of a report is not wholly initialised.
    let (known, zeroed, status) = after_reports(|bytes| bytes - 1);
    assert_eq!(known, zeroed);
    assert!(known > 0 && known < status.reported);
    assert_eq!(status.initialised, status.reported - status.reports);
    let (known, _, status) = after_reports(|_| 0);
    assert_eq!((known, status.initialised, status.invalid_answers), (0, 0, 0));
}

#[test]
fn a_used_length_beyond_the_report_marks_nothing_and_is_counted() {
    let (known, _, status) = after_reports(|bytes| bytes + 1);
    assert_eq!((known, status.initialised), (0, 0));
    assert_eq!(status.invalid_answers, status.reports);
}

/// Returns how many frames are known to be zero after the balloon was inflated and deflated, by a device
/// with these bits and used lengths, and the number of invalid answers for each inflate request.
fn after_inflation(bits: u8, len_of_bitmap: fn(u32) -> u32) -> (u64, u64) {
    let instance = instance();
    let mut host = Host::new(&instance, INIT_ON_INFLATE);
    (host.bits, host.len_of_bitmap) = (bits, len_of_bitmap);
    host.inflate();
    host.deflate();
    (known_to_be_zero(&instance), host.status().invalid_answers / host.inflations)
}

#[test]
fn deflated_memory_is_zero_if_the_bitmap_says_so() {
    assert_eq!(after_inflation(u8::MAX, |len| len), (TARGET.into(), 0));
    assert_eq!(after_inflation(0xfe, |len| len), (0, 0));
    assert_eq!(after_inflation(u8::MAX, |len| len - 1), (0, 0));
    assert_eq!(after_inflation(u8::MAX, |len| len + 1), (0, 1));
    assert_eq!(after_inflation(u8::MAX, |_| u32::MAX), (0, 1));
}

#[test]
fn no_promise_of_a_bitmap_outlasts_a_reset() {
    let instance = instance();
    let mut host = Host::new(&instance, INIT_ON_INFLATE);
    host.inflate();
    host.config.num_pages = 0;
    // SAFETY: the pointer points to a driver whose device accesses no memory any more.
    let code = unsafe { hotmem_balloon_reset(host.balloon.pointer(), &host.config) };
    assert_eq!(code, 0);
    assert_eq!(known_to_be_zero(&instance), 0);
}

#[test]
fn nothing_is_known_if_no_marks_are_kept() {
    let instance = Instance::boot(None);
    instance.plug(HOTMEM_ONLINE_KERNEL);
    let mut host = Host::new(&instance, REPORTING | INIT_REPORTED | INIT_ON_INFLATE);
    host.run();
    host.inflate();
    host.deflate();
    assert_ne!(host.status().initialised, 0);
    assert_eq!(known_to_be_zero(&instance), 0);
}

#[test]
fn a_device_is_asked_only_by_a_kernel_that_trusts_its_host() {
    let instance = instance();
    let options = hotmem_balloon_options { flags: HOTMEM_REPORT_EAGERLY, ..TRUSTING };
    let balloon = Heap::zeroes::<hotmem_balloon>();
    let config = hotmem_balloon_config::default();
    // SAFETY: the pointers point to an instance, to zeroes, and to objects of their types.
    unsafe {
        let asked = INIT_REPORTED | INIT_ON_INFLATE;
        assert_eq!(hotmem_balloon_accept(REPORTING | asked, &options), REPORTING);
        for feature in [INIT_REPORTED, INIT_ON_INFLATE] {
            let (b, h) = (balloon.pointer(), instance.as_ptr());
            let code = hotmem_balloon_init(b, h, &config, REPORTING | feature, &options);
            assert_eq!(code, HOTMEM_EINVAL);
        }
    }
}
