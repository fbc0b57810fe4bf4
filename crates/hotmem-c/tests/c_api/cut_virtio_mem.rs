//! Cuts the exchange of a virtio-mem driver after every step, as the tests of the Rust driver do, with
//! a kernel that calls it by the C interface.

use crate::devices::{Device, status};
use crate::instance::{BOOT_END, Heap, Instance, MEMORY_END, MIB, request};
use hotmem_c::*;
use hotmem_testkit::{Cut, Ending, Exchange, Work};
use std::ptr::null;

const REGION: u64 = MEMORY_END - BOOT_END;
/// The requested sizes before and after the change that is cut. Each begins with memory that an
/// earlier kernel has plugged.
const RESIZES: [(u64, u64); 4] =
    [(0, 48 * MIB), (48 * MIB, 16 * MIB), (48 * MIB, 0), (16 * MIB, 18 * MIB)];
const ERROR: [u8; 10] = [3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const SECOND: u64 = 1_000_000_000;

struct Resize {
    instance: Instance,
    driver: Heap,
    device: Device,
    /// The request that the device has not looked at.
    sent: Option<[u8; 24]>,
    to: u64,
    now: u64,
}

impl Resize {
    fn begin((from, to): (u64, u64)) -> Resize {
        let instance = Instance::boot(None);
        let driver = Heap::zeroes::<hotmem_virtio_mem>();
        let mut device = Device::new(from);
        let plugged = (from / (4 * MIB)) as usize;
        (0..plugged).for_each(|block| device.blocks[2 * block] = true);
        device.config.plugged_size = plugged as u64 * 2 * MIB;
        let mut resize = Resize { instance, driver, device, sent: None, to, now: 0 };
        assert_eq!(resize.init(), 0);
        let is_first_start = from == 16 * MIB;
        if !is_first_start {
            resize.run();
        }
        resize.device.config.requested_size = to;
        resize
    }

    fn init(&self) -> i32 {
        let (driver, instance) = (self.driver.pointer(), self.instance.as_ptr());
        let online_type = HOTMEM_ONLINE_MOVABLE;
        // SAFETY: `driver` points to zeroes or a driver, `instance` to an instance, and the memory of
        // the device is the instance's own memory.
        unsafe { hotmem_virtio_mem_init(driver, instance, &self.device.config, 0, online_type, 0) }
    }

    /// Makes one step. Returns its code.
    fn one_step(&mut self) -> i32 {
        let answer = self.device.answer.take();
        let pointer = answer.as_ref().map_or(null(), |bytes| bytes.as_ptr());
        let mut request = hotmem_virtio_mem_request::default();
        let driver = self.driver.pointer();
        // SAFETY: `driver` points to a driver, and `pointer` is null or points to 10 bytes.
        let code = unsafe {
            let config = &raw const self.device.config;
            hotmem_virtio_mem_step(driver, self.now, config, pointer, 10, &mut request)
        };
        match code {
            HOTMEM_STEP_SEND => {
                assert!(self.sent.replace(request.bytes).is_none(), "two requests are sent");
            }
            HOTMEM_STEP_WAIT => self.now = self.now.max(request.until_ns.min(self.now + SECOND)),
            _ => {}
        }
        code
    }

    /// Steps until the driver has nothing to do or has stopped. The device answers at once.
    fn run(&mut self) -> i32 {
        for _ in 0..10_000 {
            match self.one_step() {
                HOTMEM_STEP_SEND => self.answer(),
                HOTMEM_STEP_AGAIN | HOTMEM_STEP_WAIT => {}
                code => return code,
            }
        }
        panic!("the driver does not come to rest");
    }

    fn reset(&mut self) {
        (self.sent, self.device.answer) = (None, None);
        let driver = self.driver.pointer();
        // SAFETY: `driver` points to a driver, and the device has no request of it.
        let code = unsafe { hotmem_virtio_mem_reset(driver, &raw const self.device.config) };
        assert_eq!(code, 0);
    }

    /// Removes all memory of the device, which is gone.
    fn withdraw(&mut self) {
        (self.sent, self.device.answer) = (None, None);
        let driver = self.driver.pointer();
        let mut codes = std::iter::repeat_with(|| {
            // SAFETY: `driver` points to a driver, and the device has no request of it.
            unsafe { hotmem_virtio_mem_withdraw(driver) }
        });
        let code = codes.find(|&code| code != HOTMEM_STEP_AGAIN);
        assert_eq!(code, Some(HOTMEM_STEP_IDLE));
        let status = status(driver);
        assert_eq!((status.state, status.plugged), (HOTMEM_VIRTIO_MEM_WITHDRAWN, 0));
        assert_eq!(self.one_step(), HOTMEM_EINVAL, "the device is gone");
        let counts = self.instance.counts();
        assert_eq!((counts.present, counts.isolated), (BOOT_END / 4096, 0));
    }

    /// Checks that exactly the blocks that the device has plugged are in use.
    fn check(&self) {
        let counts = self.instance.counts();
        let plugged = self.device.config.plugged_size / 4096;
        assert_eq!((counts.movable, counts.present - BOOT_END / 4096), (plugged, plugged));
        for (block, &is_plugged) in (0..).zip(&self.device.blocks) {
            let at = BOOT_END + block * 2 * MIB;
            let flags = HOTMEM_MOVABLE | HOTMEM_AT;
            let frame = self.instance.alloc(&hotmem_request { flags, at, ..request(1) });
            assert_eq!(frame.is_ok(), is_plugged, "block {block}");
            if let Ok(frame) = frame {
                assert_eq!(self.instance.free(frame, 1), 0);
            }
        }
    }
}

impl Exchange for Resize {
    fn answer(&mut self) {
        if let Some(request) = self.sent.take() {
            self.device.carry_out(&request);
        }
    }

    fn step(&mut self) -> bool {
        self.one_step() != HOTMEM_STEP_IDLE
    }

    fn work(&mut self, work: Work) {
        let Some(request) = self.sent.take() else { return };
        match work {
            Work::None => self.sent = Some(request),
            Work::Done | Work::Answered | Work::AnsweredTwice => self.device.carry_out(&request),
            Work::HalfDone => {
                let mut half = request;
                half[16] /= 2;
                if half[16] > 0 {
                    self.device.carry_out(&half);
                }
                self.device.answer = Some(ERROR);
            }
            Work::Refused => self.device.answer = Some(ERROR),
            Work::Malformed => self.device.answer = Some([0xff; 10]),
        }
    }

    fn end(&mut self, Cut { work, ending, .. }: Cut) {
        let is_answered = matches!(work, Work::Answered | Work::Malformed);
        let answer = if is_answered { None } else { self.device.answer.take() };
        match ending {
            Ending::Late => {
                self.one_step();
                self.device.answer = answer.or(self.device.answer);
                self.answer();
            }
            Ending::Silence => {
                for _ in 0..3 {
                    self.now += SECOND;
                    self.one_step();
                }
                self.reset();
            }
            Ending::FailedRestart => {
                let odd = hotmem_virtio_mem_config { block_size: 3, ..self.device.config };
                // SAFETY: `driver` points to a driver.
                let code = unsafe { hotmem_virtio_mem_reset(self.driver.pointer(), &odd) };
                assert_eq!(code, HOTMEM_EINVAL);
                self.reset();
            }
            Ending::Drop => {
                assert_eq!(self.init(), HOTMEM_EALREADY);
                self.reset();
            }
            Ending::Withdraw => {
                self.withdraw();
                // Another device of the same region comes, on which nothing is plugged.
                self.device = Device::new(self.to);
                self.reset();
            }
            _ => self.reset(),
        }
    }

    fn finish(&mut self, cut: Cut) {
        for _ in 0..2 {
            if self.run() != HOTMEM_STEP_IDLE {
                // The device cannot be trusted: the kernel starts it again.
                assert!(!matches!(cut.work, Work::None | Work::Done | Work::Answered));
                self.reset();
            }
        }
        for target in [self.to, REGION, 0] {
            self.device.config.requested_size = target;
            assert_eq!(self.run(), HOTMEM_STEP_IDLE);
            let status = status(self.driver.pointer());
            assert_eq!((status.state, status.plugged), (HOTMEM_VIRTIO_MEM_REACHED, target));
            assert_eq!(self.device.config.plugged_size, target);
            self.check();
        }
    }
}

#[test]
fn nothing_is_lost_if_a_virtio_mem_driver_is_cut_after_any_step() {
    let endings = [
        Ending::Late,
        Ending::Silence,
        Ending::Restart,
        Ending::FailedRestart,
        Ending::Drop,
        Ending::Withdraw,
    ];
    // The kernel's queue refuses a second answer to a request.
    let works = Work::ALL.into_iter().filter(|&work| work != Work::AnsweredTwice);
    let works = Vec::from_iter(works);
    for sizes in RESIZES {
        Cut::each(sizes, (&works, &endings), 3, |cut| cut.make(&mut Resize::begin(sizes)));
    }
}
