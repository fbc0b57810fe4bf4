//! Lists the points of the suite.

use crate::balloon::{self, config as balloon_config, hints, inflate, reports, statistics};
use crate::mem::{self, config_points as config, contents, plug, queue, state, unplug, unplug_all};
use crate::point::Check::{self, Balloon, Memory, Transport};
use crate::point::{Point, Requirement};
use crate::transport;

/// What a memory device (5.15) must do.
pub static MEMORY_POINTS: &[Point] = &[
    must("transport/reset-reads-zero", "2.4.1", Transport(transport::reset_reads_zero, &mem::TYPE)),
    must(
        "transport/reset-after-driver-ok",
        "2.4.1",
        Transport(transport::reset_after_driver_ok, &mem::TYPE),
    ),
    must(
        "transport/features-subset-or-refused",
        "2.2.2",
        Transport(transport::features_subset_or_refused, &mem::TYPE),
    ),
    convention(
        "transport/features-unknown-bit-refused",
        "2.2.2",
        Transport(transport::features_unknown_bit_refused, &mem::TYPE),
    ),
    must(
        "transport/generation-after-host-change",
        "4.2.2.1",
        Transport(transport::generation_after_host_change, &mem::TYPE),
    ),
    convention(
        "transport/queue-ready-reads-back",
        "4.2.2",
        Transport(transport::queue_ready_reads_back, &mem::TYPE),
    ),
    must(
        "transport/queue-zero-after-reset",
        "4.2.2.1",
        Transport(transport::queue_zero_after_reset, &mem::TYPE),
    ),
    convention(
        "transport/unused-queue-size-zero",
        "4.2.2",
        Transport(transport::unused_queue_size_zero, &mem::TYPE),
    ),
    must(
        "transport/interrupt-after-answer",
        "2.7.7.2",
        Transport(transport::interrupt_after_answer, &mem::TYPE),
    ),
    must(
        "transport/interrupt-after-host-change",
        "5.15.4.2",
        Transport(transport::interrupt_after_host_change, &mem::TYPE),
    ),
    convention(
        "transport/interrupt-status",
        "4.2.2",
        Transport(transport::interrupt_status, &mem::TYPE),
    ),
    convention("transport/generation-after-plug", "2.5", Memory(config::generation_after_plug)),
    must("mem/config/block-size-power-of-two", "5.15.4.2", Memory(config::block_size_power_of_two)),
    must(
        "mem/config/fields-multiple-of-block",
        "5.15.4.2",
        Memory(config::fields_multiple_of_block),
    ),
    must(
        "mem/config/usable-at-least-requested",
        "5.15.4.2",
        Memory(config::usable_at_least_requested),
    ),
    must("mem/config/plugged-within-usable", "5.15.4.2", Memory(config::plugged_within_usable)),
    convention("mem/config/read-only", "5.15.4", Memory(config::read_only)),
    convention("mem/config/node-id-with-pxm", "5.15.4", Memory(config::node_id_with_pxm)),
    must("mem/config/stable-across-reset", "5.15.4.2", Memory(config::stable_across_reset)),
    must("mem/plug/first-block", "5.15.6.3.2", Memory(plug::first_block)),
    must("mem/plug/last-usable-block", "5.15.6.3.2", Memory(plug::last_usable_block)),
    must("mem/plug/max-in-one-request", "5.15.6.3.2", Memory(plug::max_in_one_request)),
    must("mem/plug/zero-blocks", "5.15.6.3.2", Memory(plug::zero_blocks)),
    must("mem/plug/unaligned", "5.15.6.3.2", Memory(plug::unaligned)),
    must("mem/plug/below-region", "5.15.6.3.2", Memory(plug::below_region)),
    must("mem/plug/beyond-usable", "5.15.6.3.2", Memory(plug::beyond_usable)),
    must("mem/plug/wraps-64-bit", "5.15.6.3.2", Memory(plug::wraps_64_bit)),
    must("mem/plug/already-plugged", "5.15.6.3.2", Memory(plug::already_plugged)),
    must("mem/plug/overlaps-plugged", "5.15.6.3.2", Memory(plug::overlaps_plugged)),
    convention("mem/plug/over-requested-nack", "5.15", Memory(plug::over_requested_nack)),
    must("mem/unplug/plugged", "5.15.6.4.2", Memory(unplug::plugged)),
    must("mem/unplug/already-unplugged", "5.15.6.4.2", Memory(unplug::already_unplugged)),
    must("mem/unplug/mixed", "5.15.6.4.2", Memory(unplug::mixed)),
    must("mem/unplug/zero-and-unaligned", "5.15.6.4.2", Memory(unplug::zero_and_unaligned)),
    must("mem/unplug/out-of-range", "5.15.6.4.2", Memory(unplug::out_of_range)),
    must(
        "mem/unplug/content-of-neighbours-kept",
        "5.15.6.2",
        Memory(unplug::content_of_neighbours_kept),
    ),
    must("mem/unplug-all/when-empty", "5.15.6.5.2", Memory(unplug_all::when_empty)),
    must("mem/unplug-all/when-mixed", "5.15.6.5.2", Memory(unplug_all::when_mixed)),
    must(
        "mem/unplug-all/usable-at-least-requested",
        "5.15.4.2",
        Memory(unplug_all::usable_at_least_requested),
    ),
    must("mem/unplug-all/plug-after", "5.15.6.3.2", Memory(unplug_all::plug_after)),
    must("mem/state/plugged", "5.15.6.6.2", Memory(state::plugged)),
    must("mem/state/unplugged", "5.15.6.6.2", Memory(state::unplugged)),
    must("mem/state/mixed", "5.15.6.6.2", Memory(state::mixed)),
    must("mem/state/below-region", "5.15.6.6.2", Memory(state::below_region)),
    must("mem/state/padding-ignored", "5.15.6.6.2", Memory(state::padding_ignored)),
    must("mem/memory/writable-when-plugged", "5.15.6.2", Memory(contents::writable_when_plugged)),
    must(
        "mem/memory/contents-kept-over-reset",
        "5.15.5.2",
        Memory(contents::contents_kept_over_reset),
    ),
    must("mem/memory/state-kept-over-reset", "5.15.5.2", Memory(contents::state_kept_over_reset)),
    must("mem/memory/unplugged-readable", "5.15.6.2", Memory(contents::unplugged_readable)),
    must("mem/queue/request-split", "2.7.4.1", Memory(queue::request_split)),
    must("mem/queue/response-split", "2.7.4.1", Memory(queue::response_split)),
    convention("mem/queue/used-len-10", "2.7.8", Memory(queue::used_len_10)),
    convention("mem/queue/batch-order", "2.7", Memory(queue::batch_order)),
    convention(
        "mem/queue/unknown-type-does-not-lose-others",
        "2.7",
        Memory(queue::unknown_type_does_not_lose_others),
    ),
];

/// What a balloon (5.5) must do.
pub static BALLOON_POINTS: &[Point] = &[
    must(
        "transport/reset-reads-zero",
        "2.4.1",
        Transport(transport::reset_reads_zero, &balloon::TYPE),
    ),
    must(
        "transport/reset-after-driver-ok",
        "2.4.1",
        Transport(transport::reset_after_driver_ok, &balloon::TYPE),
    ),
    must(
        "transport/features-subset-or-refused",
        "2.2.2",
        Transport(transport::features_subset_or_refused, &balloon::TYPE),
    ),
    convention(
        "transport/features-unknown-bit-refused",
        "2.2.2",
        Transport(transport::features_unknown_bit_refused, &balloon::TYPE),
    ),
    // The only field that changes has 32 bits, so that a driver sees no inconsistent state (4.2.2.1).
    convention(
        "transport/generation-after-host-change",
        "2.5",
        Transport(transport::generation_after_host_change, &balloon::TYPE),
    ),
    convention(
        "transport/queue-ready-reads-back",
        "4.2.2",
        Transport(transport::queue_ready_reads_back, &balloon::TYPE),
    ),
    must(
        "transport/queue-zero-after-reset",
        "4.2.2.1",
        Transport(transport::queue_zero_after_reset, &balloon::TYPE),
    ),
    convention(
        "transport/unused-queue-size-zero",
        "4.2.2",
        Transport(transport::unused_queue_size_zero, &balloon::TYPE),
    ),
    must(
        "transport/interrupt-after-answer",
        "2.7.7.2",
        Transport(transport::interrupt_after_answer, &balloon::TYPE),
    ),
    convention(
        "transport/interrupt-after-host-change",
        "2.3",
        Transport(transport::interrupt_after_host_change, &balloon::TYPE),
    ),
    convention(
        "transport/interrupt-status",
        "4.2.2",
        Transport(transport::interrupt_status, &balloon::TYPE),
    ),
    convention("balloon/inflate/257-pfns", "5.5.6", Balloon(inflate::pfns_257)),
    must("balloon/inflate/split-array", "2.7.4.1", Balloon(inflate::split_array)),
    must("balloon/inflate/used-len-zero", "2.7.8.2", Balloon(inflate::used_len_zero)),
    convention("balloon/deflate/contents-writable", "5.5.6.2", Balloon(inflate::contents_writable)),
    convention("balloon/actual-readback", "5.5.6", Balloon(balloon_config::actual_readback)),
    convention("balloon/config/read-only", "5.5.4", Balloon(balloon_config::read_only)),
    convention("balloon/stats/held-until-asked", "5.5.6.3", Balloon(statistics::held_until_asked)),
    must("balloon/stats/unknown-tag", "5.5.6.3.2", Balloon(statistics::unknown_tag)),
    must("balloon/report/readable-untouched", "2.7.5.1", Balloon(reports::readable_untouched)),
    must("balloon/report/poison-kept", "5.5.6.7.2", Balloon(reports::poison_kept)),
    convention("balloon/report/32-entries", "5.5.6.7", Balloon(reports::entries_32)),
    must("balloon/hint/stale-id-ignored", "5.5.6.5.2", Balloon(hints::stale_id_ignored)),
];

const fn must(name: &'static str, section: &'static str, check: Check) -> Point {
    Point { name, section, requirement: Requirement::Must, check }
}

const fn convention(name: &'static str, section: &'static str, check: Check) -> Point {
    Point { name, section, requirement: Requirement::Convention, check }
}
