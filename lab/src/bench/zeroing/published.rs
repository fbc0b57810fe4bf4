//! The figures published with the series "mm/virtio: skip redundant zeroing of host-zeroed reported
//! pages" (Michael S. Tsirkin, linux-mm, 2026): the CPU time of a process that touches 256 MiB of
//! anonymous memory, which was reported before, in a guest of 2 GiB with 1 CPU and transparent huge
//! pages. They are 51 ± 26 ms with the series and 232 ± 20 ms without.

use super::TIME;
use crate::bench::record::{RanOn, Sample};

const CASE: &str = "published/256M/thp";
/// The subjects, and the means in seconds.
const FIGURES: [(&str, f64); 2] = [("linux-published", 0.051), ("linux-published-no-marks", 0.232)];

/// Adds the published figures, which this bench does not measure.
pub(super) fn record(sample: &mut Sample) {
    sample.set_executor(RanOn::Kvm);
    for (subject, seconds) in FIGURES {
        sample.add(CASE, subject, TIME, seconds);
    }
}
