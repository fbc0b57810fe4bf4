//! The run: follow the device's target, as the command line says, and report.

use super::clock::Clock;
use super::device::PciDevice;
use super::manager::Manager;
use super::memory::FRAMES;
use super::serial::Serial;
use super::{WATCHDOG, give_up, trap};
use core::time::Duration;
use hotmem::Bytes;
use hotmem::geometry::FRAME_SIZE;
use hotmem_guest::cmdline::{ExitWhen, Options};
use hotmem_guest::event::Event;
use hotmem_guest::report::{Report, Verdict};
use hotmem_guest::watchdog::Step;
use hotmem_virtio::mem::{Driver, Pending, Progress, Status};

/// A run with a device.
pub(crate) struct Session<'a> {
    report: Report<Serial>,
    clock: &'a Clock,
    options: &'a Options,
    device: PciDevice,
    manager: Manager,
    target: Target,
    touching: Option<Touching>,
    touched: Bytes,
    resizes: u32,
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
        manager: Manager,
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
            manager,
            target,
            touching: None,
            touched: Bytes::ZERO,
            resizes: 0,
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
        trap::answer_bell(|| {
            self.device.ack_interrupt();
        });
        let now_us = self.clock.now_us();
        let (plugged, requests) = (self.driver().plugged(), self.driver().statistics().requests);
        let progress = self.device.poll(Duration::from_micros(now_us), 1, &mut self.manager);
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
                self.report.event(&Event::Pending {
                    target: self.target.size,
                    plugged: self.driver().plugged(),
                    why: &why,
                });
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
        if plugged > before {
            self.manager.hooks.workload.memory_came();
            self.touching = Some(Touching::default());
        }
    }

    /// Whether there is more to touch.
    fn touch_some(&mut self) -> bool {
        let Some(touching) = &mut self.touching else { return false };
        WATCHDOG.enter(Step::Touch);
        let started = self.clock.now_us();
        let touched = self.manager.hooks.workload.touch_some();
        touching.us += self.clock.now_us().saturating_sub(started);
        if let Some(bytes) = touched {
            touching.bytes = touching.bytes + bytes;
            return true;
        }
        let Touching { bytes, us } = *touching;
        if bytes != Bytes::ZERO {
            self.report.event(&Event::Touched { bytes, us });
        }
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
        self.manager.hooks.workload.verify_and_free_all();
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
        let bytes = self.manager.hooks.workload.take_verified();
        if bytes != Bytes::ZERO {
            self.report.event(&Event::Verified { bytes });
        }
        let written = self.manager.take_written();
        if written != Bytes::ZERO {
            self.report.event(&Event::Metadata { written });
        }
    }
}
