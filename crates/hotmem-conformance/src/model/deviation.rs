//! Lists what a model can do wrongly.

/// Defines [`Deviation`] from lines of a description, a name and a point.
macro_rules! deviations {
    ($($(#[$doc:meta])* $name:ident => $point:literal,)*) => {
        /// One thing that a model does wrongly.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Deviation {
            $($(#[$doc])* $name,)*
        }

        impl Deviation {
            /// All deviations.
            pub const ALL: &[Deviation] = &[$(Deviation::$name,)*];

            /// Returns the name of the point that notices the deviation.
            #[must_use]
            pub fn point(self) -> &'static str {
                match self {
                    $(Deviation::$name => $point,)*
                }
            }
        }
    };
}

deviations! {
    /// A reset before FEATURES_OK leaves FAILED in the status.
    ResetFails => "transport/reset-reads-zero",
    /// A reset of a started device does nothing.
    ResetIgnoredWhenStarted => "transport/reset-after-driver-ok",
    /// A device without optional features accepts FEATURES_OK, and then answers nothing.
    FewFeaturesNotServed => "transport/features-subset-or-refused",
    /// A feature that is not offered is accepted.
    UnknownFeatureAccepted => "transport/features-unknown-bit-refused",
    /// The generation stays when the host changes the configuration.
    GenerationIgnoresHost => "transport/generation-after-host-change",
    /// The generation stays when blocks are plugged.
    GenerationIgnoresPlug => "transport/generation-after-plug",
    /// The register `QueueReady` reads as 0.
    QueueReadyReadsZero => "transport/queue-ready-reads-back",
    /// Queues stay ready over a reset.
    QueuesStayReady => "transport/queue-zero-after-reset",
    /// Queues that do not exist have a size.
    EveryQueueHasSize => "transport/unused-queue-size-zero",

    /// The device does not interrupt when it has used a buffer, but sets the register.
    NoInterruptAfterAnswer => "transport/interrupt-after-answer",
    /// The device interrupts for a change of the configuration when it has used a buffer.
    AnswerIsConfigChange => "transport/interrupt-after-answer",
    /// The device does not interrupt when the host changes the configuration, but sets the register.
    NoInterruptAfterHostChange => "transport/interrupt-after-host-change",
    /// The register `InterruptStatus` reads as 0.
    InterruptStatusZero => "transport/interrupt-status",
    /// The register `InterruptStatus` says that a buffer was used, whatever the reason is.
    EveryInterruptForBuffer => "transport/interrupt-status",
    /// The acknowledgement of interrupts is ignored.
    InterruptAckIgnored => "transport/interrupt-status",

    /// A block has 96 KiB.
    BlocksOf96Kib => "mem/config/block-size-power-of-two",
    /// The region does not end with a whole block.
    RegionEndsWithinBlock => "mem/config/fields-multiple-of-block",
    /// The usable region is one block too small for a requested size of more than half of the region.
    UsableBelowRequested => "mem/config/usable-at-least-requested",
    /// The usable region shrinks with the requested size.
    UsableShrinks => "mem/config/plugged-within-usable",
    /// The driver can write `requested_size`.
    RequestedSizeWritable => "mem/config/read-only",
    /// `node_id` is another node.
    OtherNode => "mem/config/node-id-with-pxm",
    /// A reset of a started device makes the region smaller.
    ResetShrinksRegion => "mem/config/stable-across-reset",

    /// PLUG plugs the blocks behind those of the request.
    PlugsNextInstead => "mem/plug/first-block",
    /// `plugged_size` stays 0.
    PluggedSizeStays => "mem/plug/first-block",
    /// The first block cannot be plugged.
    FirstBlockRefused => "mem/plug/first-block",
    /// The last usable block cannot be plugged.
    LastBlockRefused => "mem/plug/last-usable-block",
    /// At most 16 blocks can be plugged in one request.
    AtMost16Blocks => "mem/plug/max-in-one-request",
    /// PLUG of no blocks is acknowledged.
    PlugOfZeroBlocks => "mem/plug/zero-blocks",
    /// PLUG rounds addresses down.
    PlugUnaligned => "mem/plug/unaligned",
    /// PLUG below the region is acknowledged.
    PlugBelowRegion => "mem/plug/below-region",
    /// PLUG beyond the usable region is acknowledged.
    PlugBeyondUsable => "mem/plug/beyond-usable",
    /// The end of a PLUG request is computed in 64 bits.
    PlugWraps => "mem/plug/wraps-64-bit",
    /// PLUG of plugged blocks is acknowledged.
    PlugOfPlugged => "mem/plug/already-plugged",
    /// PLUG of plugged blocks is answered by NACK.
    PlugOfPluggedNack => "mem/plug/already-plugged",
    /// PLUG of blocks of which some are plugged plugs the others.
    PlugOfMixed => "mem/plug/overlaps-plugged",
    /// PLUG of blocks of which some are plugged is answered by NACK.
    PlugOfMixedNack => "mem/plug/overlaps-plugged",
    /// PLUG of more blocks than requested is answered by ERROR.
    PlugOverRequestedError => "mem/plug/over-requested-nack",
    /// More blocks than requested can be plugged.
    PlugOverRequested => "mem/plug/over-requested-nack",

    /// UNPLUG of several blocks unplugs only the first.
    UnplugOnlyFirst => "mem/unplug/plugged",
    /// UNPLUG of unplugged blocks is acknowledged.
    UnplugOfUnplugged => "mem/unplug/already-unplugged",
    /// UNPLUG of unplugged blocks is answered by NACK.
    UnplugOfUnpluggedNack => "mem/unplug/already-unplugged",
    /// UNPLUG of blocks of which some are plugged is answered by NACK.
    UnplugOfMixedNack => "mem/unplug/mixed",
    /// UNPLUG of blocks of which some are plugged unplugs these.
    UnplugOfMixed => "mem/unplug/mixed",
    /// UNPLUG of no blocks is acknowledged.
    UnplugOfZeroBlocks => "mem/unplug/zero-and-unaligned",
    /// UNPLUG with an address inside of a block is acknowledged.
    UnplugUnaligned => "mem/unplug/zero-and-unaligned",
    /// UNPLUG below the region is acknowledged.
    UnplugBelowRegion => "mem/unplug/out-of-range",
    /// UNPLUG beyond the usable region is acknowledged.
    UnplugBeyondUsable => "mem/unplug/out-of-range",
    /// UNPLUG also discards the end of the block before.
    UnplugDiscardsNeighbour => "mem/unplug/content-of-neighbours-kept",

    /// UNPLUG ALL is an error if nothing is plugged.
    UnplugAllOfNone => "mem/unplug-all/when-empty",
    /// UNPLUG ALL unplugs only the first plugged run of blocks.
    UnplugAllOfFirstRun => "mem/unplug-all/when-mixed",
    /// After UNPLUG ALL, the usable region is smaller than the requested size.
    UnplugAllShrinksUsable => "mem/unplug-all/usable-at-least-requested",
    /// After UNPLUG ALL, the usable region is empty.
    UnplugAllEmptiesUsable => "mem/unplug-all/usable-at-least-requested",
    /// After UNPLUG ALL, the device counts the blocks as plugged when it compares with the requested
    /// size.
    UnplugAllKeepsCount => "mem/unplug-all/plug-after",

    /// Several plugged blocks are mixed.
    PluggedAreMixed => "mem/state/plugged",
    /// Several unplugged blocks are mixed.
    UnpluggedAreMixed => "mem/state/unplugged",
    /// Mixed blocks are in the state of the first.
    MixedAsFirst => "mem/state/mixed",
    /// STATE below the region is acknowledged.
    StateBelowRegion => "mem/state/below-region",
    /// A request whose padding is not 0 is an error.
    PaddingMatters => "mem/state/padding-ignored",

    /// What is written to the middle of a block is lost.
    MiddleNotWritable => "mem/memory/writable-when-plugged",
    /// A reset discards the contents of plugged blocks.
    ResetDiscardsContents => "mem/memory/contents-kept-over-reset",
    /// A reset unplugs the last block, if several are plugged.
    ResetUnplugsLast => "mem/memory/state-kept-over-reset",
    /// The guest cannot read unplugged blocks, although it has not agreed to that.
    UnpluggedUnreadable => "mem/memory/unplugged-readable",

    /// A request is read behind the first descriptor if that is too short.
    RequestExceedsDescriptor => "mem/queue/request-split",
    /// A request must be in one descriptor.
    RequestInOneDescriptor => "mem/queue/request-split",
    /// The response is written behind the first descriptor if that is too short.
    ResponseExceedsDescriptor => "mem/queue/response-split",
    /// The response is written only to the first descriptor.
    ResponseInOneDescriptor => "mem/queue/response-split",
    /// The used length of each response is 0.
    UsedLengthZero => "mem/queue/used-len-10",
    /// Requests are carried out in the reverse order.
    BatchReversed => "mem/queue/batch-order",
    /// A request of an unknown type ends the handling of all available requests.
    UnknownTypeLosesOthers => "mem/queue/unknown-type-does-not-lose-others",

    /// Of an inflate request, only 256 pages are taken.
    Only256Pages => "balloon/inflate/257-pfns",
    /// Of an inflate request for more than 256 pages, no page is taken.
    LongRequestIgnored => "balloon/inflate/257-pfns",
    /// A number of a page that is divided between two descriptors is lost.
    DividedNumberLost => "balloon/inflate/split-array",
    /// Of an inflate request, only the first descriptor is read.
    OnlyFirstDescriptor => "balloon/inflate/split-array",
    /// The used length of inflate and deflate requests is the number of bytes that the device has read.
    UsedLengthOfRead => "balloon/inflate/used-len-zero",
    /// What is written to deflated pages is lost.
    DeflatedNotWritable => "balloon/deflate/contents-writable",
    /// `actual` always reads 0.
    ActualForgotten => "balloon/actual-readback",
    /// The driver can write `num_pages`.
    NumPagesWritable => "balloon/config/read-only",
    /// The driver can write `free_page_hint_cmd_id`.
    HintCommandWritable => "balloon/config/read-only",
    /// The buffer with statistics is used at once.
    StatisticsNotHeld => "balloon/stats/held-until-asked",
    /// Statistics behind an unknown one are lost.
    UnknownTagEndsStatistics => "balloon/stats/unknown-tag",
    /// A report discards pages that the device may not write.
    ReportDiscardsReadable => "balloon/report/readable-untouched",
    /// Reported pages are zeroed, although the driver needs its poison value.
    PoisonIgnored => "balloon/report/poison-kept",
    /// Of a report, only 16 pages are taken.
    Only16Reports => "balloon/report/32-entries",
    /// Pages of hints with a wrong command ID are discarded.
    StaleHintsTaken => "balloon/hint/stale-id-ignored",
}

/// What a model does unlike most devices. The specification allows the first three. The suite tolerates the
/// next two, and notices the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Behaviour {
    /// A memory device answers its first requests by BUSY.
    BusyAtFirst,
    /// A device refuses to run without one of its features, except for those of a balloon that concern
    /// the contents of memory.
    NeedsAllFeatures,
    /// A balloon offers only reports of free pages, on the queue that the specification lists.
    OnlyReports,
    /// A balloon offers only reports of free pages, on the queue behind those that always exist.
    OnlyReportsWithoutGap,
    /// The generation changes each time it is read, also if the configuration does not (4.2.2).
    GenerationNeverRests,
    /// The generation changes only when the driver reads the configuration after a change, as a note of
    /// 4.1.4.3.1 recommends.
    GenerationChangesWhenRead,
    /// The device answers nothing.
    NeverAnswers,
    /// The device uses each chain twice.
    AnswersTwice,
    /// The device uses chains that are not outstanding.
    UsesWrongChain,
    /// The device adds 1000 to its used index.
    UsedIndexJumps,
    /// The device reports more bytes as written than it may write.
    ReportsTooMany,
    /// The device writes behind its buffers.
    WritesBehindBuffers,
    /// The device writes to buffers that it may only read.
    WritesReadable,
    /// The device writes to the descriptors.
    WritesDescriptors,
    /// All fields of the configuration have all bits set.
    ConfigOfOnes,
    /// All fields of the configuration are 0.
    ConfigOfZeros,
    /// The region of a memory device is one block of 2^62 bytes, near the end of 64 bits.
    ConfigOfHugeBlock,
    /// A memory device answers each request by BUSY.
    AlwaysBusy,
    /// The device panics when it is notified.
    Panics,
    /// The device does not return when it is notified.
    Hangs,
}

impl Behaviour {
    /// Returns the bytes of a configuration that is not that of a usual device.
    pub(super) fn config(self) -> Option<Vec<u8>> {
        const HUGE: u64 = 1 << 62;
        match self {
            Behaviour::ConfigOfOnes => Some(vec![0xff; 64]),
            Behaviour::ConfigOfZeros => Some(vec![0; 64]),
            Behaviour::ConfigOfHugeBlock => {
                let fields = [HUGE, 0, 3 * HUGE - 1, HUGE, HUGE, 0, HUGE];
                Some(fields.iter().flat_map(|field| field.to_le_bytes()).collect())
            }
            _ => None,
        }
    }
}
