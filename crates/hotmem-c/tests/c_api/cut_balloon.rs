//! Cuts the exchange of a balloon after every step, as the tests of the Rust driver do, with a kernel
//! that calls it by the C interface.

use crate::devices::{answer, pointer_to};
use crate::instance::{Heap, Instance, request};
use hotmem_c::*;
use hotmem_testkit::{Cut, Ending, Exchange, Work};
use std::collections::BTreeSet;

/// The size of the balloon in frames.
const TARGET: u32 = 700;
const SECOND: u64 = 1_000_000_000;
const DONE: u32 = 1;
/// The features but poison and those that need a trusted host.
const FEATURES: u64 = HOTMEM_BALLOON_FEATURES & !0b1101_0000;

/// The host's side.
#[derive(Default)]
struct Device {
    /// The frames in the balloon.
    balloon: BTreeSet<u32>,
    /// The requests that the device has not looked at: their queues and frame numbers.
    sent: Vec<(i32, Vec<u32>)>,
    /// The queues on which it uses buffers next.
    used: Vec<i32>,
}

impl Device {
    /// Carries out all requests. Keeps the buffer of statistics.
    fn carry_out(&mut self) {
        for (queue, numbers) in
            self.sent.extract_if(.., |(queue, _)| *queue != HOTMEM_QUEUE_STATISTICS)
        {
            for number in numbers {
                match queue {
                    HOTMEM_QUEUE_INFLATE => assert!(self.balloon.insert(number), "{number} twice"),
                    HOTMEM_QUEUE_DEFLATE => {
                        assert!(self.balloon.remove(&number), "{number} is not in")
                    }
                    _ => {}
                }
            }
            self.used.push(queue);
        }
    }
}

struct Inflation {
    instance: Instance,
    balloon: Heap,
    message: Heap,
    config: hotmem_balloon_config,
    device: Device,
    /// Answers that are sent late.
    late: Vec<i32>,
    now: u64,
    free_at_start: u64,
    has_failed: bool,
}

impl Inflation {
    fn begin(deflates: bool) -> Inflation {
        let instance = Instance::boot(None);
        instance.plug(HOTMEM_ONLINE_KERNEL);
        let config = hotmem_balloon_config {
            num_pages: TARGET,
            free_page_hint_cmd_id: 5,
            ..Default::default()
        };
        let mut inflation = Inflation {
            free_at_start: instance.counts().free,
            instance,
            balloon: Heap::zeroes::<hotmem_balloon>(),
            message: Heap::zeroes::<hotmem_balloon_message>(),
            config,
            device: Device::default(),
            late: Vec::new(),
            now: 0,
            has_failed: false,
        };
        assert_eq!(inflation.init(), 0);
        if deflates {
            inflation.run();
            inflation.config.num_pages = 0;
            inflation.config.free_page_hint_cmd_id = DONE;
            inflation.config.generation += 1;
        }
        inflation
    }

    fn init(&self) -> i32 {
        let options = hotmem_balloon_options { flags: HOTMEM_REPORT_EAGERLY, ..Default::default() };
        let (balloon, instance) = (self.balloon.pointer(), self.instance.as_ptr());
        // SAFETY: `balloon` points to zeroes or a driver, and `instance` to an instance.
        unsafe { hotmem_balloon_init(balloon, instance, &self.config, FEATURES, &options) }
    }

    /// Makes one step. Returns its code.
    fn one_step(&mut self) -> i32 {
        let used = self.device.used.pop().map(answer);
        let message = self.message.pointer::<hotmem_balloon_message>();
        // SAFETY: both pointers point to objects of their types.
        let (code, message) = unsafe {
            let balloon = self.balloon.pointer();
            let used = pointer_to(&used);
            (hotmem_balloon_step(balloon, self.now, &self.config, used, message), &*message)
        };
        match code {
            HOTMEM_STEP_SEND => {
                let is_outstanding =
                    self.device.sent.iter().any(|(queue, _)| *queue == message.queue);
                assert!(!is_outstanding, "two requests are on queue {}", message.queue);
                let numbers = message.bytes[..message.len as usize].chunks_exact(4);
                let numbers = numbers.map(|word| u32::from_le_bytes(word.try_into().unwrap()));
                self.device.sent.push((message.queue, numbers.collect()));
            }
            HOTMEM_STEP_WAIT => self.now = self.now.max(message.until_ns.min(self.now + SECOND)),
            HOTMEM_STEP_RESET => self.reset(),
            HOTMEM_EIO => self.has_failed = true,
            _ => {}
        }
        code
    }

    /// Steps until the driver has nothing to do, waits long, or has stopped. The device answers.
    fn run(&mut self) {
        let mut waits = 0;
        while waits < 100 && !self.has_failed {
            match self.one_step() {
                HOTMEM_STEP_IDLE if self.device.used.is_empty() => return,
                HOTMEM_STEP_WAIT => waits += 1,
                _ => {}
            }
            self.device.carry_out();
        }
    }

    /// Resets the device, and starts the driver again.
    fn reset(&mut self) {
        (self.device, self.late) = (Device::default(), Vec::new());
        // SAFETY: the pointer points to a driver whose device was reset.
        let code = unsafe { hotmem_balloon_reset(self.balloon.pointer(), &self.config) };
        assert_eq!(code, 0);
        self.has_failed = false;
        self.check_all_is_back();
    }

    fn status(&self) -> hotmem_balloon_status {
        let mut status = hotmem_balloon_status::default();
        // SAFETY: the pointers point to objects of their types.
        let code = unsafe { hotmem_balloon_get_status(self.balloon.pointer(), &mut status) };
        assert_eq!(code, 0);
        status
    }

    fn check_all_is_back(&self) {
        let counts = self.instance.counts();
        // The engine may have taken frames for bitmaps and for the record of the balloon.
        assert!(self.free_at_start - counts.free <= 4, "frames are lost: {counts:?}");
    }

    /// Checks that exactly the frames of the device's balloon are out of use.
    fn check_balloon(&self) {
        let inflated = self.device.balloon.len() as u64;
        assert_eq!(self.status().inflated, inflated);
        assert!(self.free_at_start - self.instance.counts().free - inflated <= 4);
        for &number in self.device.balloon.iter().step_by(57) {
            let at = u64::from(number) * 4096;
            let second =
                self.instance.alloc(&hotmem_request { flags: HOTMEM_AT, at, ..request(1) });
            assert!(second.is_err(), "frame {number:#x} of the balloon is free");
        }
    }
}

impl Exchange for Inflation {
    fn answer(&mut self) {
        self.device.carry_out();
    }

    fn step(&mut self) -> bool {
        let code = self.one_step();
        let Device { sent, used, .. } = &self.device;
        let is_answered = sent.iter().all(|(queue, _)| *queue == HOTMEM_QUEUE_STATISTICS);
        !(is_answered && used.is_empty() && matches!(code, HOTMEM_STEP_IDLE | HOTMEM_STEP_WAIT))
    }

    fn work(&mut self, work: Work) {
        if work == Work::None {
            return;
        }
        let before = self.device.used.len();
        self.device.carry_out();
        if work == Work::Done {
            self.late = self.device.used.split_off(before);
        }
    }

    fn end(&mut self, Cut { ending, .. }: Cut) {
        match ending {
            Ending::Late => {}
            Ending::Silence => {
                for _ in 0..40 {
                    self.now += SECOND;
                    self.one_step();
                }
            }
            Ending::Drop => {
                assert_eq!(self.init(), HOTMEM_EALREADY);
                self.reset();
            }
            _ => self.reset(),
        }
        self.device.used.append(&mut self.late);
    }

    fn finish(&mut self, _: Cut) {
        self.config.free_page_hint_cmd_id = DONE;
        self.config.generation += 1;
        self.run();
        assert!(!self.has_failed);
        for target in [self.config.num_pages, TARGET, 0] {
            self.config.num_pages = target;
            self.run();
            let status = self.status();
            assert_eq!((status.state, status.inflated), (HOTMEM_BALLOON_SETTLED, target.into()));
            assert_eq!(self.device.balloon.len(), target as usize);
            self.check_balloon();
        }
        self.reset();
    }
}

#[test]
fn nothing_is_lost_by_a_reset_of_a_balloon_after_any_step() {
    // The kernel's queue refuses a second answer to a buffer.
    let works = [Work::None, Work::Done, Work::Answered];
    let endings = [Ending::Late, Ending::Silence, Ending::Restart, Ending::Drop];
    for deflates in [false, true] {
        Cut::each(deflates, (&works, &endings), 3, |cut| cut.make(&mut Inflation::begin(deflates)));
    }
}
