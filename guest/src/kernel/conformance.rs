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

use adapter::HOST_LIMIT;
pub(crate) use adapter::{Adapter, DeviceRegisters};
pub(crate) use pci::PciRegisters;
pub(crate) use window::Window;

use super::progress::WATCHDOG;
use crate::arch::{Clock, Console};
use core::time::Duration;
use hotmem_conformance::{self as suite, BALLOON_POINTS, MEMORY_POINTS, Outcome, Unsupported};
use hotmem_guest::cmdline::{CheckedDevice, KnownFailures};
use hotmem_guest::report::Report;
use hotmem_guest::watchdog::Step;

/// The time within which a device must answer. It is long, because a device of a busy host may be slow.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How many points have ended in each way.
#[derive(Default)]
struct Counts {
    passed: u32,
    failed: u32,
    known: u32,
    skipped: u32,
}

/// Checks all points with the device. Reports how many points have passed, have failed, and were skipped. The
/// run fails if a point does, or if nobody on the host has carried out what a point wants.
pub(crate) fn run(
    kind: CheckedDevice,
    known: KnownFailures,
    adapter: &mut Adapter<'_>,
    clock: &Clock,
    report: &mut Report<Console>,
) {
    let points = match kind {
        CheckedDevice::Memory => MEMORY_POINTS,
        CheckedDevice::Balloon => BALLOON_POINTS,
    };
    let now = || Duration::from_micros(clock.now_us());
    let mut counts = Counts::default();
    for point in points {
        WATCHDOG.enter(Step::Check);
        let point = if adapter.is_on_pci() { point.over_pci() } else { *point };
        let outcome = match point.check(adapter, suite::Clock::new(&now, ANSWER_LIMIT)) {
            Outcome::Skipped(Unsupported::REASON) => Outcome::Skipped(adapter.why_unsupported()),
            outcome => outcome,
        };
        let is_known = known.has(point.name);
        counts.add(&outcome, is_known);
        let is_ok = point.tap(0, &outcome).known_to_fail(is_known).is_ok();
        report.point(is_ok, |number| point.tap(number, &outcome).known_to_fail(is_known));
    }
    if let Some(wish) = adapter.unanswered() {
        let limit = HOST_LIMIT.as_secs();
        report.not_ok(format_args!("no one carried out `# host: {wish}` in {limit} s"));
    }
    let Counts { passed, failed, known, skipped } = counts;
    report.comment(format_args!(
        "points: {}, passed: {passed}, failed: {failed}, known failures: {known}, skipped: {skipped}",
        points.len()
    ));
}

impl Counts {
    fn add(&mut self, outcome: &Outcome, is_known: bool) {
        *match (outcome, is_known) {
            (Outcome::Skipped(_), _) => &mut self.skipped,
            (Outcome::Failed(_), true) => &mut self.known,
            (Outcome::Passed, false) => &mut self.passed,
            // A known failure that passes is a failure of its list.
            (Outcome::Failed(_), false) | (Outcome::Passed, true) => &mut self.failed,
        } += 1;
    }
}
