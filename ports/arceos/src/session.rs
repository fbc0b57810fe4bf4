//! Runs the kernel's main loop, which carries out the host's requests.

use crate::load::Load;
use crate::reporting::Reporting;
use crate::virtio_mem::{self, VirtioMem};
use crate::{allocation_check, events, machine, wakeup};
use axalloc::FRAMES;
use axhal::time::monotonic_time;
use axstd::println;
use core::time::Duration;
use hotmem::{AllocRequest, Bytes};
use hotmem_virtio::mem::{Failure, Pending, Progress, Status};

/// The size that the host requests to signal that it has no more requests.
const END_SIZE: Bytes = Bytes::mib(2);

/// If the plugged size is a multiple of this size, the kernel frees the memory of its load after it
/// has checked the memory. Otherwise it keeps that memory in use until the memory blocks a request.
const FREED_MULTIPLE: Bytes = Bytes::mib(64);

/// The maximal number of times that the device is started.
const MAX_STARTS: u32 = 8;
/// The pause before a failed device is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Carries out the host's requests until the host requests [`END_SIZE`]. Then ends the machine.
pub fn run() {
    // The last line that ArceOS prints ends with a change of colour and without a line feed.
    println!();
    if !machine::is_supported() {
        return end(false);
    }
    let device = match virtio_mem::start(virtio_mem::memory()).transpose() {
        Ok(device) => device,
        Err(error) => {
            println!("Bail out! the device: {error}");
            return end(false);
        }
    };
    let reporting = match Reporting::start().transpose() {
        Ok(reporting) => reporting,
        Err(error) => {
            println!("Bail out! the balloon: {error}");
            return end(false);
        }
    };
    events::boot();
    let Some(device) = device else { return end(true) };
    let mut session = Session {
        device,
        reporting,
        load: Load::start(),
        starts: 1,
        reported_reason: None,
        has_used_plugged: false,
    };
    let mut reached = Bytes::ZERO;
    while reached != END_SIZE {
        if !session.reach_next_size(reached) {
            return end(false);
        }
        let grown = session.device.requested() > reached;
        reached = session.device.requested();
        if grown && reached != END_SIZE {
            session.load.use_memory(!reached.0.is_multiple_of(FREED_MULTIPLE.0));
        }
    }
    session.load.end();
    end(true);
}

struct Session {
    device: VirtioMem,
    reporting: Option<Reporting>,
    load: Load,
    /// The number of times that the device was started.
    starts: u32,
    /// The reason that was last reported for not reaching the requested size.
    reported_reason: Option<Pending>,
    /// Whether memory that was plugged for the current request has been used.
    has_used_plugged: bool,
}

impl Session {
    /// Waits until the host requests another size than `reached`, and then reaches that size.
    /// Returns false if a device cannot be used any more.
    fn reach_next_size(&mut self, reached: Bytes) -> bool {
        let (mut start, online_before) = (monotonic_time(), FRAMES.counts().online);
        (self.reported_reason, self.has_used_plugged) = (None, false);
        loop {
            if self.device.requested() == reached {
                start = monotonic_time();
            }
            let progress = virtio_mem::poll(&mut self.device);
            if let Progress::Ready(failure) = progress {
                if !self.restart(failure) {
                    return false;
                }
                continue;
            }
            if !self.has_used_plugged && FRAMES.counts().online > online_before {
                self.touch(start);
            }
            match self.device.driver().status() {
                Status::Reached if self.device.requested() != reached => {
                    events::resized(&self.device, start);
                    return true;
                }
                Status::Pending(reason) if self.reported_reason != Some(reason) => {
                    self.report_pending(reason)
                }
                _ => {}
            }
            let until = match self.reporting.as_mut().map(Reporting::poll).transpose() {
                Ok(until) => until,
                Err(failure) => {
                    println!("Bail out! the balloon: {failure}");
                    return false;
                }
            };
            match progress {
                Progress::Working => {}
                Progress::Pending(time) => wakeup::wait(Some(until.unwrap_or(time).min(time))),
                _ => wakeup::wait(until),
            }
        }
    }

    /// Reports the reason for not reaching the requested size. Frees the load's memory, and checks
    /// that the kernel still allocates and frees memory.
    fn report_pending(&mut self, reason: Pending) {
        self.reported_reason = Some(reason);
        self.load.free();
        events::pending(&self.device, reason);
        allocation_check::run();
    }

    /// Allocates a frame of plugged memory, and reports it.
    fn touch(&mut self, start: Duration) {
        let region = self.device.driver().config().region();
        let plugged = AllocRequest::frames(1).within(region.start()..);
        if let Ok(frame) = FRAMES.alloc(plugged) {
            events::touched(frame.range().bytes().0 as usize, start);
            self.has_used_plugged = true;
        }
    }

    /// Starts a failed device again; its memory stays plugged. Returns false if it cannot be
    /// started.
    fn restart(&mut self, failure: Failure) -> bool {
        events::pending(&self.device, failure);
        allocation_check::run();
        wakeup::wait(Some(monotonic_time() + RESTART_PAUSE));
        self.starts += 1;
        self.starts <= MAX_STARTS && self.device.restart().is_ok()
    }
}

/// Prints the verdict, and ends the machine. The run also fails if an invariant was violated.
fn end(passed: bool) {
    let passed = passed && hotmem::violated_invariants().count == 0;
    println!("hotmem: {}", if passed { "PASS" } else { "FAIL" });
    let code = if passed { 0x10_u32 } else { 0x11 };
    // SAFETY: QEMU's isa-debug-exit device ends the machine. Without that device the write has no
    // effect.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") code) };
}
