//! Gives memory to the host through the balloon's device, and checks that pinned memory stays with
//! the guest.

use super::Session;
use crate::kernel::balloon::{Balloon, BalloonMemory};
use crate::kernel::fatal::{give_up, must};
use core::time::Duration;
use hotmem::Bytes;
use hotmem_guest::cmdline::{ExitWhen, WorkAt};
use hotmem_guest::event::Event;
use hotmem_virtio::balloon;

/// For a shorter wait than this the kernel polls and does not halt, because the next timer tick
/// would wake it too late.
const MIN_HALT: Duration = Duration::from_millis(1);

impl Session {
    /// Checks pinned memory after the balloon has changed its size. If the balloon is empty, pins
    /// one more range.
    #[inline(never)]
    pub(super) fn check_pinned(&mut self) {
        let (Some(pinned), Some(balloon_size)) =
            (&mut self.pinned_ranges, self.unchecked_balloon_size)
        else {
            return;
        };
        let hotplug = &mut self.engine.hotplug;
        let checked = pinned.check(self.clock).and_then(|()| {
            if balloon_size == Bytes::ZERO {
                pinned.pin(hotplug)?;
            }
            pinned.event()
        });
        match checked {
            Err(error) if error.is_temporary() => {}
            result => {
                self.report.event(&must("pinned memory", result));
                self.unchecked_balloon_size = None;
            }
        }
    }

    /// Runs some steps of the balloon's driver, and reports events.
    #[inline(never)]
    pub(super) fn step_balloon(&mut self) -> balloon::Progress {
        let (Some(balloon), Some(memory)) = (&mut *self.balloon, &mut self.engine.hooks.balloon)
        else {
            return balloon::Progress::Idle;
        };
        let now_us = self.clock.now_us();
        let progress = match balloon.step(Duration::from_micros(now_us), memory) {
            Err(failure) if failure.device_holds_no_memory() => {
                self.report.event(&Event::BalloonLost { why: &failure });
                *self.balloon = None;
                self.engine.hooks.balloon = None;
                return balloon::Progress::Idle;
            }
            progress => must("virtio-balloon", progress),
        };
        if progress != balloon::Progress::Idle {
            self.balloon_busy_us = now_us;
        }
        if let Some(event) = balloon.next_event(progress == balloon::Progress::Idle) {
            self.report.event(&event);
            let reached_size = match event {
                Event::Inflated { held, .. } => Some(held),
                _ => None,
            };
            let most_is_hinted = self
                .unused_boot_memory
                .is_some_and(|boot| memory.hinted_frames() > boot.frames() / 2);
            let moment = match event {
                Event::Inflated { held, .. } if held != Bytes::ZERO => Some(WorkAt::Inflated),
                Event::Reported { .. } if most_is_hinted => Some(WorkAt::Hinted),
                _ => None,
            };
            if let Some(size) = reached_size {
                self.report_balloon_size(size);
            }
            if moment == Some(self.options.work_at) {
                self.begin_work();
            }
        }
        progress
    }

    /// Reports that the balloon has reached the size that the host requests.
    fn report_balloon_size(&mut self, size: Bytes) {
        self.unchecked_balloon_size = Some(size);
        self.inflations += 1;
        let before = core::mem::replace(&mut self.balloon_size, size);
        if size >= before {
            self.report.ok(format_args!("inflate {}", size - before));
        } else {
            self.report.ok(format_args!("deflate {}", before - size));
        }
    }

    /// Reports how much free memory the host was told of, if any.
    pub(super) fn report_answered_reports(&mut self) {
        let answered = self.balloon.as_ref().map(Balloon::answered_reports);
        if let Some((bytes, requests @ 1..)) = answered {
            self.report.ok(format_args!("reported {bytes}, {requests} requests answered"));
        }
    }

    /// Ends the run if it would wait for ever for what the balloon's device cannot do.
    pub(super) fn check_balloon_is_usable(&self) {
        let balloon = self.balloon.as_ref();
        match self.options.exit {
            ExitWhen::Inflations(_) if balloon.is_none() => give_up("there is no balloon"),
            ExitWhen::Reported(_) if !balloon.is_some_and(Balloon::takes_reports) => {
                give_up("there is no balloon that takes reports of free memory")
            }
            _ => {}
        }
    }

    /// Returns whether the balloon must be polled again within [`MIN_HALT`], so that the kernel
    /// must not halt.
    pub(super) fn must_poll_soon(&self, balloon: balloon::Progress) -> bool {
        let now = Duration::from_micros(self.clock.now_us());
        matches!(balloon, balloon::Progress::Pending(until) if until < now + MIN_HALT)
    }

    /// Starts the page-fault bursts that are due on other CPUs. Reports the results after the last
    /// burst.
    #[inline(never)]
    pub(super) fn step_bursts(&mut self) {
        let Some(bursts) = &mut *self.bursts else { return };
        let reporter = self.engine.hooks.balloon.as_mut().and_then(BalloonMemory::reporter);
        let statistics = reporter.map(|reporter| reporter.statistics()).unwrap_or_default();
        if let Some(event) = bursts.step(self.clock.now_us(), statistics) {
            self.report.event(&event);
        }
    }
}
