//! Describes in words why memory cannot be plugged or unplugged.

use super::memory::Obstacle;
use hotmem::{AddError, RangeError, RangeErrorKind, Veto, Why};

/// Says why memory cannot be added.
pub(super) fn not_prepared(error: AddError) -> &'static str {
    match error {
        AddError::Range(RangeError { kind: RangeErrorKind::Vetoed(Veto(why)), .. }) => why,
        _ => "no frames for words and page tables",
    }
}

/// Returns the obstacle that the refusal of a range is for the driver.
pub(super) fn refused(kind: RangeErrorKind) -> Obstacle {
    match kind {
        RangeErrorKind::Unaligned => Obstacle::Never("not whole pageblocks"),
        RangeErrorKind::Unreachable => Obstacle::Never("beyond the reach of this kernel's mapping"),
        RangeErrorKind::Announced => Obstacle::Never("overlaps other memory"),
        RangeErrorKind::NotAnnounced => Obstacle::Never("not within one region"),
        RangeErrorKind::Present | RangeErrorKind::Device => Obstacle::Never("present already"),
        RangeErrorKind::OtherNode => Obstacle::Never("shares 128 MiB with memory of another node"),
        RangeErrorKind::Held => Obstacle::Later("being added or removed"),
        RangeErrorKind::Poisoned => Obstacle::Later("poisoned"),
        RangeErrorKind::Vetoed(Veto(why)) => Obstacle::Later(why),
        _ => Obstacle::Later("not offline any more"),
    }
}

/// Says why memory stays online.
pub(super) fn reason(why: Why) -> &'static str {
    match why {
        Why::Unmovable(why) | Why::Veto(why) => why,
        Why::Pinned => "pinned",
        Why::Allocated => "allocated",
        Why::Retry => "in use, could not be moved now",
        Why::Metadata => "metadata of memory that is still online",
        Why::Busy => "being allocated or freed",
        Why::HeldByAnother => "isolated by another caller",
        Why::Reporting => "being reported to the host",
        Why::NotEnoughFree { .. } => "no free memory elsewhere to migrate to",
        Why::NotOnline => "not online",
        Why::Foreign => "begun on another machine",
    }
}
