//! Checks a device of the VMM against the VIRTIO specification (`hotmem.check`), by the points of
//! `hotmem-conformance`. What a point wants of the host is a comment of the report, which somebody on the
//! host must carry out: `docs/vmm.md`.
//!
//! | file | contents |
//! |---|---|
//! | `conformance.rs` | runs the points |
//! | `conformance/adapter.rs` | the device, the memory and the host, as the points see them |
//! | `conformance/pci.rs` | a device on PCI behind the registers of virtio-mmio |
//! | `conformance/window.rs` | volatile access to registers and to memory |

mod adapter;
mod pci;
mod window;

pub(crate) use adapter::{Adapter, DeviceRegisters};
pub(crate) use pci::PciRegisters;
pub(crate) use window::Window;

use super::progress::WATCHDOG;
use crate::arch::{Clock, Console};
use core::time::Duration;
use hotmem_conformance::{self as suite, BALLOON_POINTS, MEMORY_POINTS, Outcome, Point};
use hotmem_guest::cmdline::CheckedDevice;
use hotmem_guest::report::Report;
use hotmem_guest::watchdog::Step;

/// The time within which a device must answer. It is long, because a device of a busy host may be slow.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Checks all points with the device.
pub(crate) fn run(
    kind: CheckedDevice,
    adapter: &mut Adapter<'_>,
    clock: &Clock,
    report: &mut Report<Console>,
) {
    let points: &'static [Point] = match kind {
        CheckedDevice::Memory => MEMORY_POINTS,
        CheckedDevice::Balloon => BALLOON_POINTS,
    };
    let now = || Duration::from_micros(clock.now_us());
    for point in points {
        WATCHDOG.enter(Step::Check);
        let outcome = point.check(adapter, suite::Clock::new(&now, ANSWER_LIMIT));
        let has_failed = matches!(outcome, Outcome::Failed(_));
        report.point(!has_failed, |number| point.tap(number, &outcome));
    }
}
