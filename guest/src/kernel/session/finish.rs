//! Decides when a run is over, and makes the final checks.

use super::Session;
use crate::arch::{NextKernel, interrupts};
use crate::kernel::attached_device::AttachedDevice;
use crate::kernel::balloon::Balloon;
use crate::kernel::churn;
use crate::kernel::descriptors::CheckedDescriptors;
use crate::kernel::fatal::{give_up, must};
use crate::kernel::memory::FRAMES;
use crate::kernel::moving_pages;
use crate::kernel::nmi::{self, Nmis};
use crate::kernel::progress::WATCHDOG;
use hotmem::Bytes;
use hotmem_guest::cmdline::ExitWhen;
use hotmem_guest::event::Event;
use hotmem_guest::report::Verdict;
use hotmem_guest::signal::other_cpus;
use hotmem_guest::watchdog::Step;

impl Session {
    pub(super) fn is_over(&mut self) -> bool {
        if let Some(bursts) = &*self.bursts {
            return bursts.are_over();
        }
        let balloon_is_ready = self.balloon.as_ref().is_none_or(Balloon::has_requested_size);
        let (mut is_reached, mut total) = (self.entropy.is_none() && balloon_is_ready, Bytes::ZERO);
        for attached in self.devices() {
            is_reached &= attached.target.is_reached;
            total = total + attached.target.size;
        }
        match self.options.exit {
            ExitWhen::Boot | ExitWhen::Nvdimm => true,
            ExitWhen::Resizes(count) => {
                let is_at_rest = self.late_memory.is_none() || self.late_memory_is_at_rest();
                self.resizes >= count && is_at_rest
            }
            ExitWhen::Size(size) => is_reached && total == size,
            ExitWhen::Inflations(count) => self.inflations >= count,
            ExitWhen::Reported(size) => {
                let answered = self.balloon.as_ref().map(Balloon::answered_reports);
                answered.is_some_and(|(bytes, _)| bytes >= size)
            }
            ExitWhen::Command => self.commands.as_ref().is_some_and(|port| port.has_ended),
            ExitWhen::Never => false,
        }
    }

    /// Makes the final checks of a run that is over. If they succeed, starts the next kernel, if there
    /// is one.
    #[inline(never)]
    pub(crate) fn finish(&mut self) -> Verdict {
        WATCHDOG.enter(Step::Verify);
        let cpus = other_cpus();
        if self.options.memory_written_by_cpus != Bytes::ZERO {
            let writes = moving_pages::stop();
            self.report.ok(format_args!("{writes} writes by {cpus} more CPUs, none lost"));
        }
        if self.options.churn {
            let allocations = churn::stop();
            self.report.ok(format_args!(
                "frames taken {allocations} times by {cpus} more CPUs, all found as written"
            ));
        }
        if self.options.nmis {
            let Nmis { count, in_engine, allocations } = nmi::statistics();
            let summary = format_args!(
                "{count} NMIs, {in_engine} of them in an allocation or a free, took frames {allocations} times"
            );
            if in_engine == 0 { self.report.not_ok(summary) } else { self.report.ok(summary) }
        }
        if self.objects.are_wanted() {
            self.report_heap();
            self.report.ok(format_args!("{} objects on the heap, all as made", self.objects.len()));
        }
        if let Some(pinned) = self.pinned_ranges.take() {
            if pinned.unpin(&mut self.engine.hotplug) {
                self.report.ok("memory pinned for a device");
            } else {
                self.report.not_ok("memory pinned for a device: a pin is gone");
            }
        }
        self.engine.hooks.workload.verify_and_free_all();
        self.report_written_and_verified();
        if self.options.descriptors {
            let checked =
                must("descriptors", self.engine.check_descriptors(CheckedDescriptors::All));
            self.report.ok(format_args!("{checked} descriptors of RAM, all as written"));
        }
        if self.touched_memory != Bytes::ZERO {
            self.report.ok(format_args!("touched {}, all found as written", self.touched_memory));
        }
        self.report_answered_reports();
        // SAFETY: the other CPUs neither allocate nor free frames any more.
        match unsafe { FRAMES.validate() } {
            Ok(_) => self.report.ok("validate"),
            Err(fault) => self.report.not_ok(format_args!("validate: {fault}")),
        }
        self.scan();
        match self.next_kernel.take() {
            Some(next) if self.report.passes() => self.hand_over(next),
            _ => self.report.finish(),
        }
    }

    /// Resets the devices, which keep their plugged memory, and starts the next kernel.
    pub(super) fn hand_over(&mut self, next: NextKernel) -> ! {
        let plugged =
            self.devices().fold(Bytes::ZERO, |sum, attached| sum + attached.driver().plugged());
        self.report.event(&Event::HandOver { plugged });
        self.devices.iter_mut().for_each(AttachedDevice::stop);
        self.entropy = None;
        *self.balloon = None;
        interrupts::disable();
        give_up(format_args!("next kernel: {}", next.start()))
    }
}
