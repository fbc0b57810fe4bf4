//! Holds the request that is on the queue, and its purpose.

use super::request::Request;
use super::walk::Segment;
use core::time::Duration;

/// The one request on the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) request: Request,
    pub(super) purpose: Purpose,
    /// The time at which the wait for the answer began: the first step after the one that sent the
    /// request. The step that sent it may have prepared memory for seconds.
    pub(super) waiting_since: Option<Duration>,
    pub(super) is_overdue: bool,
}

/// The purpose of a request, which determines the meaning of its answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// PLUG of a prepared range.
    Plug,
    /// UNPLUG of a prepared range.
    Unplug,
    /// STATE of a part of a prepared range, after an UNPLUG of unknown effect.
    Resolve,
    /// STATE of a range that is not prepared.
    Query(Segment),
    /// UNPLUG of plugged blocks that are unused or unusable.
    Discard,
    /// UNPLUG_ALL, while the memory manager uses no memory of the device.
    Clear,
}
