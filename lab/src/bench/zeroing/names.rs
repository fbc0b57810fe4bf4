//! The names of the bench, its cases and its metric in the records.

use crate::bench::record::Metric;
use crate::hosted::HostPages;
use crate::size;
use hotmem::Bytes;

/// The name of the bench in its records.
pub(super) const NAME: &str = "zeroing";

/// The CPU time for allocating all frames and writing a word of each.
pub(super) const TIME: Metric = ("cpu_time", "s");

/// Returns the name of the case with this size and these pages of the host.
pub(super) fn case(kind: &str, size: Bytes, pages: HostPages) -> String {
    let pages = match pages {
        HostPages::Small => "4k",
        HostPages::Huge => "thp",
    };
    format!("{kind}/{}/{pages}", size::short(size))
}
