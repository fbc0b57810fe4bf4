//! Defines the machine of the tests, and the guest that runs on it.

use crate::device::Device;
use crate::kernel::Kernel;
use core::time::Duration;
use hotmem::{Allocation, Budget, Bytes, Frames, Hotplug, OneCpu, OnlineType, Pfn, PfnRange};
use hotmem_testkit::Memory;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::boot_forwarding;
use hotmem_testkit::forwarding::{ForwardingMapping, with_kernel};
use hotmem_virtio::mem::{
    Driver, Failure, Features, HotplugMemory, Pending, Reason, RequestKind, Status, Step,
};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The address of the first device's region. Boot memory lies at address 0.
pub(crate) const REGION_ADDR: u64 = GIB;
const BOOT_SIZE: u64 = 32 * MIB;
/// The size of the address space that is reserved for a machine. A page takes memory only once it
/// is accessed.
const ADDRESS_SPACE: u64 = 6 * GIB;

/// The engine. Its mapping passes each call on to the kernel of the test.
pub(crate) type Engine<'f> = Hotplug<'f, OneCpu, ForwardingMapping<Kernel<'f>>>;

/// The frames of a machine. Its memory is reserved address space.
pub(crate) struct Machine {
    pub(crate) frames: Frames<OneCpu>,
    memory: Memory,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine { frames: Frames::new(OneCpu), memory: Memory::new(Bytes(ADDRESS_SPACE).frames()) }
    }

    /// Reads the first word of a frame.
    pub(crate) fn read(&self, pfn: u64) -> u64 {
        self.memory.word(pfn).load(Relaxed)
    }

    /// Writes the first word of a frame.
    pub(crate) fn write(&self, pfn: u64, word: u64) {
        self.memory.word(pfn).store(word, Relaxed);
    }

    pub(crate) fn boot(&self) -> Engine<'_> {
        boot_forwarding(&self.frames, &self.memory, Bytes(BOOT_SIZE).frames())
    }
}

/// A guest: the engine, the kernel, the device, and its driver.
pub(crate) struct Guest<'f> {
    pub(crate) device: Device,
    pub(crate) driver: Driver,
    pub(crate) memory: HotplugMemory<'f, OneCpu>,
    pub(crate) hotplug: Option<Engine<'f>>,
    pub(crate) kernel: Kernel<'f>,
    frames: &'f Frames<OneCpu>,
    pub(crate) now: Duration,
    /// The outstanding answer, and the number of polls until it arrives.
    outstanding_answer: Option<(Vec<u8>, u32)>,
    /// Whether the driver has started. The driver starts at the first step, so that a test can
    /// prepare the device before.
    has_started: bool,
    /// The number of frames that were present after boot.
    boot_present: u64,
}

impl<'f> Guest<'f> {
    pub(crate) fn new(
        machine: &'f Machine,
        block_size: u64,
        size: u64,
        online: impl Into<Option<OnlineType>>,
    ) -> Guest<'f> {
        Self::at(machine, block_size, REGION_ADDR, size, online)
    }

    /// Makes a guest with a device of 1 GiB, all of which is plugged.
    pub(crate) fn plugged(machine: &'f Machine, block_size: u64, online: OnlineType) -> Guest<'f> {
        let mut guest = Guest::new(machine, block_size, GIB, online);
        guest.resize(GIB);
        guest.poll();
        guest
    }

    pub(crate) fn at(
        machine: &'f Machine,
        block_size: u64,
        addr: u64,
        size: u64,
        online: impl Into<Option<OnlineType>>,
    ) -> Guest<'f> {
        let hotplug = machine.boot();
        let guest = Self::in_machine(machine, block_size, addr, size, online);
        let boot_present = machine.frames.counts().present;
        Guest { hotplug: Some(hotplug), boot_present, ..guest }
    }

    /// Makes a guest in a machine that the caller has booted.
    pub(crate) fn in_machine(
        machine: &'f Machine,
        block_size: u64,
        addr: u64,
        size: u64,
        online: impl Into<Option<OnlineType>>,
    ) -> Guest<'f> {
        let mut device = Device::new(block_size, addr, size);
        let driver = Driver::new(&device.read_config(), Features::all()).unwrap();
        Guest {
            device,
            driver,
            memory: HotplugMemory::new(online, Budget { pageblocks: 64 }),
            hotplug: None,
            kernel: Kernel::new(&machine.frames),
            frames: &machine.frames,
            now: Duration::from_secs(1),
            outstanding_answer: None,
            has_started: false,
            boot_present: 0,
        }
    }

    /// Returns the frame at this offset in the device's region.
    pub(crate) fn at_offset(&self, bytes: u64) -> Pfn {
        self.driver.config().region().start().checked_add(bytes >> 12).unwrap()
    }

    pub(crate) fn resize(&mut self, size: u64) {
        self.device.resize(size);
    }

    pub(crate) fn step(&mut self) -> Step {
        let config = self.device.read_config();
        if !self.has_started {
            self.has_started = true;
            self.driver = Driver::new(&config, Features::all()).unwrap();
        }
        let arrived =
            self.outstanding_answer.take_if(|(_, polls)| *polls == 0).map(|(bytes, _)| bytes);
        if let Some((_, polls)) = &mut self.outstanding_answer {
            *polls -= 1;
        }
        let hotplug = self.hotplug.as_mut().expect("this guest has the engine");
        let step = with_kernel(hotplug, &mut self.kernel, |hotplug, hooks| {
            let mut memory = self.memory.bind(hotplug, hooks).unwrap();
            self.driver.step(self.now, &config, arrived.as_deref(), &mut memory)
        });
        if let Step::Ready(Ok(request)) = step {
            if request.kind() == RequestKind::Unplug {
                let range = request.range();
                assert!(self.kernel.is_all_unmapped(range), "the driver unplugs mapped memory");
                self.kernel.assert_unused(range);
            }
            self.outstanding_answer = Some(self.device.handle(&request.to_bytes()));
        }
        self.check_mapped();
        step
    }

    /// Checks that only plugged memory is mapped.
    fn check_mapped(&self) {
        let config = self.device.config;
        for &pageblock in &self.kernel.mapped {
            let offset = (pageblock << 21) - config.addr;
            let first = (offset / config.block_size) as usize;
            let last = ((offset + 2 * MIB - 1) / config.block_size) as usize;
            assert!(
                self.device.blocks[first..=last].iter().all(|&b| b),
                "memory that is not plugged is mapped"
            );
        }
    }

    /// Sets the requested size to the plugged size, so that the shrink ends.
    pub(crate) fn request_plugged_size(&mut self) {
        self.resize(self.driver.plugged().0);
        self.poll();
        self.assert_reached();
    }

    /// Makes the driver fail.
    pub(crate) fn fail(&mut self) {
        let hotplug = self.hotplug.as_mut().expect("this guest has the engine");
        with_kernel(hotplug, &mut self.kernel, |hotplug, hooks| {
            let mut memory = self.memory.bind(hotplug, hooks).unwrap();
            self.driver.fail(self.now, Failure::Region(Reason::Other("stopped")), &mut memory)
        });
    }

    /// Begins a new driver, after a reset of the device: its answer to the outstanding request never
    /// arrives.
    pub(crate) fn begin_new_driver(&mut self) {
        self.outstanding_answer = None;
        self.has_started = false;
    }

    /// Sets the requested size to the plugged size, and replaces the driver by a new driver.
    pub(crate) fn restart_driver(&mut self) {
        self.begin_new_driver();
        self.resize(self.driver.plugged().0);
        self.poll();
        self.assert_reached();
    }

    pub(crate) fn poll(&mut self) -> Step {
        for _ in 0..100_000 {
            let step = self.step();
            if !matches!(step, Step::Ready(Ok(_)) | Step::Working)
                && self.outstanding_answer.is_none()
            {
                return step;
            }
        }
        panic!("the driver does not wait: {:?}", self.driver);
    }

    pub(crate) fn run(&mut self, time: Duration) -> Step {
        let end = self.now + time;
        loop {
            let step = self.poll();
            match step {
                Step::Pending(until) if until <= end => self.now = until,
                _ => {
                    self.now = end;
                    return step;
                }
            }
        }
    }

    /// Checks that the requested size is reached, rounded to whole units, and that the driver, the
    /// device and the engine agree.
    pub(crate) fn assert_reached(&self) {
        let plugged = self.driver.plugged();
        let unit = Bytes(self.driver.config().block_size().0.max(2 * MIB));
        let requested = Bytes(self.device.config.requested_size);
        let reachable = Bytes(requested.0 / unit.0 * unit.0);
        let expected = match reachable == requested {
            true => Status::Reached,
            false => Status::Pending(Pending::Units { requested, reachable, unit }),
        };
        assert_eq!(self.driver.status(), expected, "{:?} {:?}", self.driver, self.memory);
        assert_eq!(plugged, reachable);
        assert_eq!(plugged.0, self.device.config.plugged_size);
        assert_eq!(self.kernel.mapped.len() as u64 * 2 * MIB, plugged.0);
        let counts = self.frames.validated().unwrap();
        assert_eq!(counts.present - self.boot_present, plugged.frames());
        assert_eq!(self.kernel.frames_going_offline, 0);
    }

    /// Checks that all allocations lie in present memory.
    pub(crate) fn check_allocations(&self) {
        let region = self.driver.config().region();
        for range in self.kernel.allocations.iter().map(Allocation::range) {
            if region.overlaps(range) {
                assert!(self.kernel.is_all_mapped(range), "{range} is allocated but not present");
            }
        }
    }
}

/// Returns the pageblocks of a range, by number.
pub(crate) fn pageblocks(range: PfnRange) -> std::ops::Range<u64> {
    range.start().number() >> 9..range.end().number().div_ceil(512)
}
