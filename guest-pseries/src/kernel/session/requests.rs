//! Begins and ends requests of the host, and asks the balloon for memory that an addition lacks.

use super::{QueuedRequest, Session};
use crate::kernel::memory;
use crate::kernel::report::{Event, Outcome, write_event};
use crate::kernel::time::{ns_since, ticks};
use hotmem::{AnnounceError, Bytes, NodeId, PfnRange};
use hotmem_dlpar::{Change, DrcIndex, Error, Failure, LmbSelection, Request, Summary};
use hotmem_virtio::balloon::Memory as _;
use hotmem_virtio::missing_frames;

impl Session {
    /// Returns the next request, if there is one.
    pub(super) fn next_request(&mut self) -> Option<QueuedRequest> {
        self.repeated.take().or_else(|| {
            let next = self.queue[0].take();
            self.queue.rotate_left(1);
            next
        })
    }

    /// If a request has failed for want of kernel memory, requests the memory from the balloon. Returns
    /// whether the balloon will return any.
    pub(super) fn request_from_balloon(&mut self, result: &Result<Summary, Failure>) -> bool {
        let missing_frames = match result {
            Err(Failure { error: Error::Add(error), .. }) => missing_frames(error),
            Err(Failure { error: Error::Announce(AnnounceError::NoMetadata(bytes)), .. }) => {
                bytes.frames()
            }
            _ => 0,
        };
        let (Some(balloon), Some(memory)) = (&*self.balloon, &mut self.hooks.balloon) else {
            return false;
        };
        missing_frames > 0 && balloon.request_back(missing_frames, memory)
    }

    pub(super) fn balloon_is_returning_memory(&self) -> bool {
        self.hooks.balloon.as_ref().is_some_and(|memory| {
            memory.deflate_request().needed_frames > 0 && memory.inflated_frames() > 0
        })
    }

    /// Ends a request that cannot begin. If the host has requested the removal of specific LMBs of
    /// this partition, refuses the request in the firmware.
    pub(super) fn report_refused_request(&mut self, queued: QueuedRequest, error: Error) {
        let first = match queued.request.selection() {
            LmbSelection::Index(first) | LmbSelection::Range { first, .. } => Some(first),
            LmbSelection::Count(_) => None,
        };
        let first = first.filter(|&first| self.dlpar.table().by_index(first).is_some());
        if let (Change::Remove, Some(first)) = (queued.request.change(), first) {
            let _ = self.connectors.rtas.set_isolation(first, false);
        }
        self.finish(queued, &Err(error.into()));
    }

    pub(super) fn finish(&mut self, queued: QueuedRequest, result: &Result<Summary, Failure>) {
        let ns = ns_since(queued.event_time);
        let request = queued.request;
        self.connectors.rtas.firmware.end_lasting_fault();
        let cancelled_for = self.cancelled_for.take();
        let outcome = match result {
            Ok(summary) => Outcome::Succeeded {
                lmbs: summary.lmbs,
                ranges: summary.ranges,
                skipped: summary.skipped,
                misplaced: summary.misplaced,
            },
            Err(failure) => Outcome::Refused {
                why: failure,
                cancelled_for,
                unrestored: failure.unrestored,
                lost: failure.lost,
            },
        };
        let (online, free) = memory::online_and_free();
        let assigned = self.assigned();
        write_event(&Event::Done {
            outcome,
            request,
            ns,
            assigned,
            online,
            free,
            nodes: self.nodes(),
        });
        self.ended_requests += 1;
        let range = self.frames_of(request);
        match (request.change(), result) {
            (Change::Add, Ok(_)) => {
                self.hooks.pins.record_addition(range);
                self.touch(range);
            }
            (Change::Remove, Err(_)) => self.hooks.pins.unpin(range),
            _ => {}
        }
    }

    /// Checks and frees the workload's memory. Then touches the amount of memory that the command
    /// line names, preferably in `added`.
    fn touch(&mut self, added: PfnRange) {
        if self.options.touch == Bytes::ZERO {
            return;
        }
        let verified = self.hooks.workload.verify_and_free();
        write_event(&Event::Verified { bytes: verified });
        let since = ticks();
        self.hooks.workload.touch(self.options.touch, added);
        write_event(&Event::Touched {
            bytes: self.hooks.workload.owned_bytes(),
            ns: ns_since(since),
        });
    }

    fn nodes(&self) -> [Bytes; 8] {
        [0, 1, 2, 3, 4, 5, 6, 7].map(|node| {
            let node = NodeId(node);
            let zones = hotmem::Zone::ALL.map(|zone| self.hotplug.zone(node, zone).online);
            Bytes(zones.iter().sum::<u64>() << 12)
        })
    }

    /// Returns the frames of the LMBs that a request names. Returns an empty range if the request
    /// gives only a number of LMBs.
    fn frames_of(&self, request: Request) -> PfnRange {
        let (first, count) = match request.selection() {
            LmbSelection::Index(first) => (first, 1),
            LmbSelection::Range { first, count } => (first, count),
            LmbSelection::Count(_) => return PfnRange::EMPTY,
        };
        let table = self.dlpar.table();
        let last = first.0.checked_add(count.saturating_sub(1)).map(DrcIndex);
        let ends = [Some(first), last].map(|index| table.by_index(index?));
        match ends {
            [Some(first), Some(last)] => {
                PfnRange::new(first.range.start(), last.range.end()).unwrap_or(PfnRange::EMPTY)
            }
            _ => PfnRange::EMPTY,
        }
    }
}
