//! The run: follow the device's target, as the command line says, and report.

use super::clock::Clock;
use super::device::PciDevice;
use super::hooks::KernelHooks;
use super::memory::FRAMES;
use super::serial::Serial;
use super::{WATCHDOG, give_up, trap};
use core::fmt::Display;
use core::time::Duration;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Bytes, Hotplug, OneCpu};
use hotmem_guest::cmdline::{ExitWhen, Options, Touch};
use hotmem_guest::event::Event;
use hotmem_guest::report::{Report, Verdict};
use hotmem_guest::watchdog::Step;
use hotmem_virtio::mem::{Driver, HotplugMemory, Pending, Progress, Status};

/// A run with a device.
pub(crate) struct Session<'a> {
    report: Report<Serial>,
    clock: &'a Clock,
    options: &'a Options,
    device: PciDevice,
    engine: Engine,
    target: Target,
    touching: Option<Touching>,
    touched: Bytes,
    resizes: u32,
    /// Memory that held the engine's words when it was last reported.
    reserved: Bytes,
}

/// The engine, with what this kernel brings to it and what the device has under way in it.
pub(crate) struct Engine {
    pub(crate) hotplug: Hotplug<'static, OneCpu>,
    pub(crate) hooks: KernelHooks,
    pub(crate) memory: HotplugMemory<'static, OneCpu>,
}

/// The size that the device wants, and how far that has come.
struct Target {
    size: Bytes,
    /// What was plugged when it was first seen.
    plugged: Bytes,
    /// When that was.
    since_us: u64,
    /// Requests that had been sent by then.
    requests: u64,
    reached: bool,
    /// The reason that was reported last.
    pending: Option<Pending>,
}

/// A round of touching that is under way.
#[derive(Default)]
struct Touching {
    bytes: Bytes,
    us: u64,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        report: Report<Serial>,
        clock: &'a Clock,
        options: &'a Options,
        device: PciDevice,
        engine: Engine,
    ) -> Self {
        let config = device.driver().config();
        let nothing = config.requested() == Bytes::ZERO && config.plugged() == Bytes::ZERO;
        let target = Target {
            size: config.requested(),
            plugged: Bytes::ZERO,
            since_us: clock.now_us(),
            requests: 0,
            reached: nothing,
            pending: None,
        };
        Session {
            report,
            clock,
            options,
            device,
            engine,
            target,
            touching: None,
            touched: Bytes::ZERO,
            resizes: 0,
            reserved: FRAMES.metadata_reserved(),
        }
    }

    /// Follows the device until the run is over.
    pub(crate) fn run(mut self) -> Verdict {
        loop {
            WATCHDOG.enter(Step::Resize);
            let progress = self.step_device();
            self.note_status();
            if progress == Progress::Again || self.touch_some() {
                continue;
            }
            if self.is_over() {
                return self.finish();
            }
            WATCHDOG.enter(Step::Idle);
            trap::wait();
        }
    }

    /// One step of the driver, with the device as it is now.
    fn step_device(&mut self) -> Progress {
        trap::answer_bell(|| self.device.ack_interrupt());
        let now_us = self.clock.now_us();
        let (plugged, requests) = (self.driver().plugged(), self.driver().statistics().requests);
        let Engine { hotplug, hooks, memory } = &mut self.engine;
        let now = Duration::from_micros(now_us);
        let progress = self.device.poll(now, 1, &mut memory.with(hotplug, hooks));
        let size = self.driver().config().requested();
        if size != self.target.size {
            self.target =
                Target { size, plugged, since_us: now_us, requests, reached: false, pending: None };
        }
        if let Progress::Failed(failure) = progress {
            give_up(format_args!("virtio-mem: {failure}"));
        }
        progress
    }

    fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// Reports a target that was reached, or that cannot be reached for now.
    fn note_status(&mut self) {
        match self.driver().status() {
            Status::Reached if !self.target.reached => self.reached(),
            Status::Pending(why) if self.target.pending != Some(why) => {
                self.target.pending = Some(why);
                let blocker = self.engine.memory.blocker();
                let (target, plugged) = (self.target.size, self.driver().plugged());
                let why: &dyn Display = match &blocker {
                    Some(blocker) if matches!(why, Pending::Memory(_)) => blocker,
                    _ => &why,
                };
                self.report.event(&Event::Pending { target, plugged, why });
            }
            _ => {}
        }
    }

    fn reached(&mut self) {
        let plugged = self.driver().plugged();
        let counts = FRAMES.counts();
        self.report.event(&Event::Resized {
            target: self.target.size,
            plugged,
            online: Bytes(counts.online * FRAME_SIZE),
            free: Bytes(counts.free * FRAME_SIZE),
            requests: self.driver().statistics().requests.wrapping_sub(self.target.requests),
            us: self.clock.now_us().saturating_sub(self.target.since_us),
        });
        self.target.reached = true;
        self.resizes += 1;
        self.report_written_and_verified();
        let before = self.target.plugged;
        if plugged >= before {
            self.report.ok(format_args!("plug {}", plugged - before));
        } else {
            self.report.ok(format_args!("unplug {}", before - plugged));
        }
        if plugged > before && self.options.touch != Touch::UpTo(Bytes::ZERO) {
            self.engine.hooks.workload.memory_came();
            self.touching = Some(Touching::default());
        }
    }

    /// Whether there is more to touch.
    fn touch_some(&mut self) -> bool {
        let Some(touching) = &mut self.touching else { return false };
        WATCHDOG.enter(Step::Touch);
        let started = self.clock.now_us();
        let touched = self.engine.hooks.workload.touch_some();
        touching.us += self.clock.now_us().saturating_sub(started);
        if let Some(bytes) = touched {
            touching.bytes = touching.bytes + bytes;
            return true;
        }
        let Touching { bytes, us } = *touching;
        // Also if there was nothing to touch: somebody may wait for the end of it.
        self.report.event(&Event::Touched { bytes, us });
        self.touched = self.touched + bytes;
        self.touching = None;
        false
    }

    fn is_over(&self) -> bool {
        match self.options.exit {
            ExitWhen::Boot => true,
            ExitWhen::Resizes(count) => self.resizes >= count,
            ExitWhen::Size(size) => self.target.reached && self.target.size == size,
            ExitWhen::Never => false,
        }
    }

    fn finish(mut self) -> Verdict {
        WATCHDOG.enter(Step::Verify);
        self.engine.hooks.workload.verify_and_free_all();
        self.report_written_and_verified();
        if self.touched != Bytes::ZERO {
            self.report.ok(format_args!("touched {}, all found as written", self.touched));
        }
        match FRAMES.validate() {
            Ok(_) => self.report.ok("validate"),
            Err(fault) => self.report.not_ok(format_args!("validate: {fault}")),
        }
        self.report.finish()
    }

    fn report_written_and_verified(&mut self) {
        let bytes = self.engine.hooks.workload.take_verified();
        if bytes != Bytes::ZERO {
            self.report.event(&Event::Verified { bytes });
        }
        let reserved = FRAMES.metadata_reserved();
        let announced = reserved - core::mem::replace(&mut self.reserved, reserved);
        let written = core::mem::take(&mut self.engine.hooks.written) + announced;
        if written != Bytes::ZERO {
            self.report.event(&Event::Metadata { written });
        }
    }
}
