//! The points of balloons.

use super::{any_device, convention, must};
use crate::balloon::{self, config as balloon_config, hints, inflate, reports, statistics};
use crate::point::Check::Balloon;
use crate::point::{Point, Requirement};

/// What a balloon (5.5) must do.
pub static BALLOON_POINTS: &[Point] = &[
    any_device::reset_reads_zero(&balloon::TYPE),
    any_device::reset_after_driver_ok(&balloon::TYPE),
    any_device::features_subset_or_refused(&balloon::TYPE),
    any_device::features_unknown_bit_refused(&balloon::TYPE),
    // The only field that changes has 32 bits, so that over MMIO a driver sees no inconsistent state.
    any_device::generation_after_host_change(&balloon::TYPE)
        .required_by(Requirement::Convention, "2.5"),
    any_device::queue_ready_reads_back(&balloon::TYPE),
    any_device::queue_zero_after_reset(&balloon::TYPE),
    any_device::unused_queue_size_zero(&balloon::TYPE),
    any_device::interrupt_after_answer(&balloon::TYPE),
    any_device::interrupt_after_host_change(&balloon::TYPE)
        .required_by(Requirement::Convention, "2.3"),
    any_device::interrupt_status(&balloon::TYPE),
    convention(
        "balloon/inflate/257-pfns",
        "5.5.6",
        "An inflate request with 257 pages takes all of them.",
        Balloon(inflate::pfns_257),
    ),
    must(
        "balloon/inflate/split-array",
        "2.7.4.1",
        "An inflate request in two descriptors takes all of its pages, also if a number lies in both.",
        Balloon(inflate::split_array),
    ),
    must(
        "balloon/inflate/used-len-zero",
        "2.7.8.2",
        "The used length of inflate and deflate requests is 0.",
        Balloon(inflate::used_len_zero),
    ),
    convention(
        "balloon/deflate/contents-writable",
        "5.5.6.2",
        "Deflated pages can be read and written.",
        Balloon(inflate::contents_writable),
    ),
    convention(
        "balloon/actual-readback",
        "5.5.6",
        "`actual` reads what the driver has written.",
        Balloon(balloon_config::actual_readback),
    ),
    convention(
        "balloon/config/read-only",
        "5.5.4",
        "Writes to `num_pages` and `free_page_hint_cmd_id` change nothing.",
        Balloon(balloon_config::read_only),
    ),
    convention(
        "balloon/stats/held-until-asked",
        "5.5.6.3",
        "The buffer with statistics is used only when the host asks.",
        Balloon(statistics::held_until_asked),
    ),
    must(
        "balloon/stats/unknown-tag",
        "5.5.6.3.2",
        "A statistic with an unknown tag is ignored, and those behind it are not.",
        Balloon(statistics::unknown_tag),
    ),
    must(
        "balloon/report/readable-untouched",
        "2.7.5.1",
        "A report does not change pages in buffers that the device may only read.",
        Balloon(reports::readable_untouched),
    ),
    must(
        "balloon/report/poison-kept",
        "5.5.6.7.2",
        "With `PAGE_POISON`, reported pages keep the poison value.",
        Balloon(reports::poison_kept),
    ),
    convention(
        "balloon/report/32-entries",
        "5.5.6.7",
        "A report with 32 pages takes all of them.",
        Balloon(reports::entries_32),
    ),
    must(
        "balloon/hint/stale-id-ignored",
        "5.5.6.5.2",
        "Pages that are hinted with another command ID keep their contents.",
        Balloon(hints::stale_id_ignored),
    ),
];
