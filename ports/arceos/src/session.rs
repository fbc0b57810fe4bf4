//! The kernel's main loop.

use crate::load::Load;
use crate::reporting::Reporting;
use crate::virtio_mem::{self, VirtioMem};
use crate::{events, trial, wakeup};
use axalloc::FRAMES;
use axhal::time::monotonic_time;
use axstd::println;
use core::time::Duration;
use hotmem::{AllocRequest, Bytes};
use hotmem_virtio::mem::{Failure, Pending, Progress, Status};

/// The size that the host requests to signal that it has no more requests.
const END: Bytes = Bytes::mib(2);

/// If the plugged size is no multiple of this, the kernel keeps all memory in use until that blocks
/// a request.
const KEPT: Bytes = Bytes::mib(64);

/// How often a failed device is started again, and the pause before that.
const STARTS: u32 = 8;
const REST: Duration = Duration::from_millis(100);

/// Follows the host's requests.
pub fn run() {
    // ArceOS's own last line ends with a change of colour.
    println!();
    let device = virtio_mem::start(virtio_mem::memory());
    let reporting = Reporting::start();
    events::boot();
    let Some(device) = device else { return end(true) };
    let mut session =
        Session { device, reporting, load: Load::start(), starts: 1, said: None, touched: false };
    let mut reached = Bytes::ZERO;
    while reached != END {
        if !session.follow(reached) {
            return end(false);
        }
        let grown = session.device.requested() > reached;
        reached = session.device.requested();
        if grown && reached != END {
            session.load.use_memory(!reached.0.is_multiple_of(KEPT.0));
        }
    }
    session.load.end();
    end(true);
}

struct Session {
    device: VirtioMem,
    reporting: Option<Reporting>,
    load: Load,
    /// How often the device was started.
    starts: u32,
    /// The last reported reason for not having reached the requested size.
    said: Option<Pending>,
    /// Whether plugged memory has been used.
    touched: bool,
}

impl Session {
    /// Waits for the host to request another size, and reaches it. Returns false if the device
    /// cannot be used.
    fn follow(&mut self, reached: Bytes) -> bool {
        let (mut began, grown) = (monotonic_time(), FRAMES.counts().online);
        (self.said, self.touched) = (None, false);
        loop {
            if self.device.requested() == reached {
                began = monotonic_time();
            }
            let progress = virtio_mem::poll(&mut self.device);
            if let Progress::Ready(failure) = progress {
                if !self.start_again(failure) {
                    return false;
                }
                continue;
            }
            if !self.touched && FRAMES.counts().online > grown {
                self.touch(began);
            }
            match self.device.driver().status() {
                Status::Reached if self.device.requested() != reached => {
                    events::resized(&self.device, began);
                    return true;
                }
                Status::Pending(why) if self.said != Some(why) => self.explain(why),
                _ => {}
            }
            let until = self.reporting.as_mut().map(Reporting::poll);
            match progress {
                Progress::Working => {}
                Progress::Pending(time) => wakeup::wait(Some(until.unwrap_or(time).min(time))),
                _ => wakeup::wait(until),
            }
        }
    }

    /// Reports the reason for not reaching the size, and shows that the kernel still allocates and
    /// frees memory.
    fn explain(&mut self, why: Pending) {
        self.said = Some(why);
        self.load.free();
        events::pending(&self.device, why);
        trial::run();
    }

    /// Uses some of the plugged memory for the first time.
    fn touch(&mut self, began: Duration) {
        let region = self.device.driver().config().region();
        let plugged = AllocRequest::frames(1).within(region.start()..);
        if let Ok(frame) = FRAMES.alloc(plugged) {
            events::touched(frame.range().bytes().0 as usize, began);
            self.touched = true;
        }
    }

    /// Starts a failed device again, with its memory.
    fn start_again(&mut self, failure: Failure) -> bool {
        events::pending(&self.device, failure);
        trial::run();
        wakeup::wait(Some(monotonic_time() + REST));
        self.starts += 1;
        self.starts <= STARTS && self.device.restart().is_ok()
    }
}

/// Prints the verdict, and ends the machine.
fn end(well: bool) {
    println!("hotmem: {}", if well { "PASS" } else { "FAIL" });
    let code = if well { 0x10_u32 } else { 0x11 };
    // SAFETY: QEMU's isa-debug-exit device ends the machine; without it this does nothing.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") code) };
}
