//! Drives a device of any type: the handshake, queues, requests and their answers.

use crate::buffers::Buffers;
use crate::device::{Device, SCRATCH_BYTES};
use crate::failure::{Failure, Stop, expect};
use crate::registers::{
    ACKNOWLEDGE, CONFIG, CONFIG_GENERATION, DEVICE_FEATURES, DEVICE_FEATURES_SEL, DEVICE_ID,
    DRIVER, DRIVER_FEATURES, DRIVER_FEATURES_SEL, DRIVER_OK, FAILED, FEATURES_OK, INTERRUPT_ACK,
    INTERRUPT_STATUS, MAGIC, MAGIC_VALUE, MODERN, NEEDS_RESET, QUEUE_DESC, QUEUE_DEVICE,
    QUEUE_DRIVER, QUEUE_NOTIFY, QUEUE_NUM, QUEUE_NUM_MAX, QUEUE_READY, QUEUE_SEL, STATUS, VERSION,
    VERSION_1,
};
use crate::ring::{Descriptor, MAX_DESCRIPTORS, RING_BYTES, Ring, Used};
use core::ops::Range;
use core::time::Duration;

/// The largest number of queues of a device: those of a balloon.
const MAX_QUEUES: u16 = 5;
/// The buffers lie behind the queues.
const BUFFERS: u64 = 8 * RING_BYTES;
/// The pages that are given to a balloon lie behind the buffers.
const PAGES: u64 = 16 * RING_BYTES;
/// The size of a page of a balloon in bytes (5.5.6).
pub(crate) const PAGE_BYTES: u64 = 4096;
/// How often a device runs at least before it fails to answer, so that a busy host does not fail it.
const MIN_RUNS: u32 = 100;

/// The time, and how long to wait for a device.
#[derive(Clone, Copy)]
pub struct Clock<'a> {
    now: &'a dyn Fn() -> Duration,
    answer_limit: Duration,
}

impl<'a> Clock<'a> {
    /// Makes a clock. `now` returns the time since any moment in the past, and never a shorter time than
    /// before. `answer_limit` is the time within which a device must answer: a second is usual.
    #[must_use]
    pub const fn new(now: &'a dyn Fn() -> Duration, answer_limit: Duration) -> Clock<'a> {
        Clock { now, answer_limit }
    }
}

/// A device, and the driver's side of its queues.
pub(crate) struct Driver<'a> {
    device: &'a mut dyn Device,
    clock: Clock<'a>,
    ram: u64,
    rings: [Option<Ring>; MAX_QUEUES as usize],
    pub(crate) buffers: Buffers,
}

impl<'a> Driver<'a> {
    /// Takes a device with this ID, and resets it before it uses memory that an earlier driver may have
    /// given to the device.
    ///
    /// # Panics
    /// Panics if the device has not the RAM that [`GuestMemory::ram`](crate::GuestMemory::ram) promises.
    pub(crate) fn new(
        device: &'a mut dyn Device,
        id: u32,
        clock: Clock<'a>,
    ) -> Result<Driver<'a>, Failure> {
        let Range { start: ram, end } = device.ram();
        assert!(
            ram.is_multiple_of(PAGE_BYTES) && end.saturating_sub(ram) >= SCRATCH_BYTES,
            "GuestMemory::ram must return SCRATCH_BYTES from a multiple of 4096"
        );
        assert!(ram + SCRATCH_BYTES <= PAGE_BYTES << 32, "GuestMemory::ram must lie below 16 TiB");
        let (rings, buffers) = ([None; MAX_QUEUES as usize], Buffers::new(ram + BUFFERS));
        let mut driver = Driver { device, clock, ram, rings, buffers };
        driver.identify(id)?;
        driver.reset()?;
        driver.clear_buffers()?;
        Ok(driver)
    }

    /// Checks the registers that a driver must check first (4.2.3.1.1).
    fn identify(&mut self, id: u32) -> Result<(), Failure> {
        expect("MagicValue", MAGIC, self.register(MAGIC_VALUE))?;
        expect("Version", MODERN, self.register(VERSION))?;
        expect("DeviceID", id, self.register(DEVICE_ID))
    }

    pub(crate) fn device(&mut self) -> &mut dyn Device {
        self.device
    }

    /// Returns the address of the RAM whose pages are given to a balloon.
    pub(crate) fn pages(&self) -> u64 {
        self.ram + PAGES
    }

    pub(crate) fn status(&mut self) -> u32 {
        self.register(STATUS)
    }

    pub(crate) fn generation(&mut self) -> u32 {
        self.register(CONFIG_GENERATION)
    }

    /// Returns why the device has interrupted (4.2.2), since that was acknowledged last.
    pub(crate) fn interrupt_status(&mut self) -> u32 {
        self.register(INTERRUPT_STATUS)
    }

    /// Acknowledges all causes of interrupts.
    pub(crate) fn acknowledge_interrupts(&mut self) {
        let causes = self.interrupt_status();
        self.set_register(INTERRUPT_ACK, causes);
    }

    /// Forgets interrupts. Skips the point if the adapter does not see them.
    pub(crate) fn forget_interrupts(&mut self) -> Result<(), Stop> {
        self.acknowledge_interrupts();
        self.device.take_interrupt()?;
        Ok(())
    }

    /// Waits until the device has interrupted, and returns whether it has. If the interrupt status names
    /// causes, `cause` must be among them. A transport with messages names none.
    pub(crate) fn wait_for_interrupt(&mut self, cause: u32) -> bool {
        let mut has_interrupted = false;
        self.wait_for(|driver| {
            has_interrupted |= driver.device.take_interrupt() == Ok(true);
            let causes = driver.interrupt_status();
            has_interrupted && (causes == 0 || causes & cause != 0)
        })
    }

    /// Resets the device (2.4), and waits until its status is 0.
    pub(crate) fn reset(&mut self) -> Result<(), Failure> {
        self.set_register(STATUS, 0);
        self.rings = [None; MAX_QUEUES as usize];
        let mut found = 0;
        let is_reset = self.wait_for(|driver| {
            found = driver.status();
            found == 0
        });
        if is_reset { Ok(()) } else { Err(Failure::Status { expected: 0, found }) }
    }

    /// Sets ACKNOWLEDGE and DRIVER (3.1.1), one after the other.
    pub(crate) fn acknowledge(&mut self) {
        self.set_register(STATUS, ACKNOWLEDGE);
        self.set_register(STATUS, ACKNOWLEDGE | DRIVER);
    }

    /// Returns the features that the device offers.
    pub(crate) fn offered(&mut self) -> u64 {
        let mut word = |number: u32| {
            self.set_register(DEVICE_FEATURES_SEL, number);
            u64::from(self.register(DEVICE_FEATURES))
        };
        word(0) | word(1) << 32
    }

    /// Resets the device, accepts features, and returns whether the device agrees.
    pub(crate) fn negotiate(&mut self, features: u64) -> Result<bool, Failure> {
        self.reset()?;
        self.acknowledge();
        for (number, bits) in (0..).zip(low_and_high(features)) {
            self.set_register(DRIVER_FEATURES_SEL, number);
            self.set_register(DRIVER_FEATURES, bits);
        }
        self.set_register(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
        Ok(self.status() & FEATURES_OK != 0)
    }

    /// Sets up all queues and starts the device, whose features are negotiated.
    pub(crate) fn start(&mut self) -> Result<(), Failure> {
        for number in 0..MAX_QUEUES {
            self.set_up_queue(number)?;
        }
        self.set_register(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
        self.check_status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK)
    }

    /// Resets the device, negotiates `features` and starts it.
    pub(crate) fn restart(&mut self, features: u64) -> Result<(), Failure> {
        self.accept(features)?;
        self.start()
    }

    /// Resets the device and accepts features, to which the device must agree.
    pub(crate) fn accept(&mut self, features: u64) -> Result<(), Failure> {
        if self.negotiate(features | VERSION_1)? {
            return Ok(());
        }
        let expected = ACKNOWLEDGE | DRIVER | FEATURES_OK;
        Err(Failure::Status { expected, found: self.status() })
    }

    pub(crate) fn queue_max(&mut self, number: u16) -> u32 {
        self.set_register(QUEUE_SEL, number.into());
        self.register(QUEUE_NUM_MAX)
    }

    pub(crate) fn is_queue_ready(&mut self, number: u16) -> bool {
        self.set_register(QUEUE_SEL, number.into());
        self.register(QUEUE_READY) != 0
    }

    fn set_up_queue(&mut self, number: u16) -> Result<(), Failure> {
        let max = self.queue_max(number).min(MAX_DESCRIPTORS.into());
        let Ok(size) = u16::try_from(max.checked_ilog2().map_or(0, |log| 1 << log)) else {
            return Ok(());
        };
        if size == 0 {
            return Ok(());
        }
        let start = self.ram + RING_BYTES * u64::from(number);
        let ring = Ring::new(self.device, number, size, start)?;
        self.set_register(QUEUE_NUM, size.into());
        for (register, addr) in
            [QUEUE_DESC, QUEUE_DRIVER, QUEUE_DEVICE].into_iter().zip(ring.areas())
        {
            let [low, high] = low_and_high(addr);
            self.set_register(register, low);
            self.set_register(register + 4, high);
        }
        self.set_register(QUEUE_READY, 1);
        self.rings[usize::from(number)] = Some(ring);
        Ok(())
    }

    /// Forgets all buffers. No request may be outstanding.
    pub(crate) fn clear_buffers(&mut self) -> Result<(), Failure> {
        self.buffers.clear(self.device)
    }

    /// Makes a buffer with contents that the device reads.
    pub(crate) fn readable(&mut self, bytes: &[u8]) -> Result<Descriptor, Failure> {
        self.buffers.readable(self.device, bytes)
    }

    /// Makes a chain available without a notification. Returns its first descriptor.
    pub(crate) fn push(&mut self, queue: u16, chain: &[Descriptor]) -> Result<u16, Stop> {
        let ring = self.rings.get_mut(usize::from(queue)).and_then(Option::as_mut);
        let ring = ring.ok_or(Stop::Skipped("the device has no such queue"))?;
        ring.push(self.device, chain)
    }

    pub(crate) fn notify(&mut self, queue: u16) {
        self.set_register(QUEUE_NOTIFY, queue.into());
    }

    /// Lets the device run once, and returns a chain that it has used.
    pub(crate) fn poll(&mut self, queue: u16) -> Result<Option<Used>, Failure> {
        self.device.run();
        match self.rings.get_mut(usize::from(queue)).and_then(Option::as_mut) {
            Some(ring) => ring.pop(self.device),
            None => Ok(None),
        }
    }

    /// Waits until the device has used a chain.
    pub(crate) fn wait(&mut self, queue: u16) -> Result<Used, Failure> {
        let mut result = Ok(None);
        self.wait_for(|driver| {
            result = driver.poll(queue);
            !matches!(result, Ok(None))
        });
        let used = result?.ok_or(Failure::NoAnswer { queue })?;
        self.buffers.check(self.device)?;
        Ok(used)
    }

    /// Lets the device run for a hundredth of the time limit. Returns a chain that it has used
    /// meanwhile.
    pub(crate) fn settle(&mut self, queue: u16) -> Result<Option<Used>, Failure> {
        let mut result = Ok(None);
        let limit = self.clock.answer_limit / 100;
        self.wait_within(limit, |driver| {
            result = driver.poll(queue);
            !matches!(result, Ok(None))
        });
        result
    }

    /// Makes a chain available, and waits for the answer. Returns the used length.
    pub(crate) fn send(&mut self, queue: u16, chain: &[Descriptor]) -> Result<u32, Stop> {
        self.push(queue, chain)?;
        self.notify(queue);
        Ok(self.wait(queue)?.len)
    }

    /// Lets the device run until `is_done` or the time limit. Returns whether it is done.
    pub(crate) fn wait_for(&mut self, is_done: impl FnMut(&mut Self) -> bool) -> bool {
        self.wait_within(self.clock.answer_limit, is_done)
    }

    fn wait_within(&mut self, limit: Duration, mut is_done: impl FnMut(&mut Self) -> bool) -> bool {
        let start = (self.clock.now)();
        let mut runs = 0;
        loop {
            if is_done(self) {
                return true;
            }
            self.device.run();
            runs += 1;
            let waited = (self.clock.now)().saturating_sub(start);
            if runs >= MIN_RUNS && waited >= limit {
                return false;
            }
            core::hint::spin_loop();
        }
    }

    /// Checks that the device has not answered more than it was asked, has written nothing else, and
    /// does not need a reset.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        self.device.run();
        for ring in self.rings.iter_mut().flatten() {
            if let Some(Used { .. }) = ring.pop(self.device)? {
                return Err(Failure::UnexpectedAnswer { queue: ring.number() });
            }
            ring.check(self.device)?;
        }
        self.buffers.check(self.device)?;
        let status = self.status();
        self.check_status(status & !(NEEDS_RESET | FAILED))
    }

    /// Reads a field of 32 bits of the configuration.
    pub(crate) fn config(&mut self, offset: u64) -> u32 {
        self.register(CONFIG + offset)
    }

    /// Reads a field of 16 bits of the configuration.
    pub(crate) fn config_u16(&mut self, offset: u64) -> u16 {
        let mut bytes = [0; 2];
        self.device.read(CONFIG + offset, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Reads a field of 64 bits of the configuration, in two halves (4.2.2.2).
    pub(crate) fn config_u64(&mut self, offset: u64) -> u64 {
        u64::from(self.config(offset)) | u64::from(self.config(offset + 4)) << 32
    }

    /// Writes 32 bits of the configuration.
    pub(crate) fn set_config(&mut self, offset: u64, value: u32) {
        self.set_register(CONFIG + offset, value);
    }

    fn check_status(&mut self, expected: u32) -> Result<(), Failure> {
        let found = self.status();
        if found == expected { Ok(()) } else { Err(Failure::Status { expected, found }) }
    }

    fn register(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.device.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        self.device.write(offset, &value.to_le_bytes());
    }
}

fn low_and_high(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}
