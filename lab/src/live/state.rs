//! The current state of a guest's memory, as far as events have reported it.

use crate::{
    qemu::{Event, Seen},
    size::about,
};
use hotmem::Bytes;
use std::{collections::VecDeque, time::Duration};

/// The number of events that are kept.
const KEPT: usize = 50;

/// The memory of a guest, and the latest events.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct State {
    /// The memory at boot.
    pub(super) boot: Bytes,
    /// The size that the host last requested of the device.
    pub(super) requested: Bytes,
    /// The size that the device last reported as plugged.
    pub(super) plugged: Bytes,
    /// The memory that the guest has online, boot memory included.
    pub(super) online: Bytes,
    /// The part of it that is in use.
    pub(super) used: Bytes,
    /// The guest's memory that the host has committed.
    pub(super) resident: Bytes,
    /// The events, each with the time since QEMU's start, the latest first.
    pub(super) events: VecDeque<(Duration, String)>,
}

impl State {
    /// Records an observation of the machine.
    pub(super) fn see(&mut self, at: Duration, seen: &Seen<'_>) {
        let line = match *seen {
            Seen::Requested(target) => {
                self.requested = target;
                Some(format!("the device is asked for {}", about(target)))
            }
            Seen::Plugged(size) => {
                self.plugged = size;
                None
            }
            Seen::Event(event) => self.event(event),
            Seen::Failed(point) => Some(format!("not ok: {point}")),
        };
        if let Some(line) = line {
            self.events.push_front((at, line));
            self.events.truncate(KEPT);
        }
    }

    /// Returns a description of the event, or `None` if it does not concern memory.
    fn event(&mut self, event: &Event) -> Option<String> {
        Some(match *event {
            Event::Boot { boot_memory, cpus, .. } => {
                self.boot = Bytes(boot_memory);
                self.online = self.boot;
                format!("boots with {} and CPUs: {cpus}", about(self.boot))
            }
            Event::Device { ref kind, region_size, .. } => {
                format!("{kind} device of up to {}", about(Bytes(region_size)))
            }
            Event::Resized { target, plugged, online, free, requests, us, .. } => {
                self.plugged = Bytes(plugged);
                self.online = Bytes(online);
                self.used = Bytes(online.saturating_sub(free));
                let took = crate::table::time(Duration::from_micros(us));
                format!("has {} after {took}, requests: {requests}", about(Bytes(target)))
            }
            Event::Pending { target, plugged, ref why, .. } => {
                self.plugged = Bytes(plugged);
                format!("cannot reach {} for now: {why}", about(Bytes(target)))
            }
            Event::Touched { bytes, .. } => {
                self.used = self.used + Bytes(bytes);
                format!("has written to {}", about(Bytes(bytes)))
            }
            Event::Freed { bytes, .. } => {
                self.used = Bytes(self.used.0.saturating_sub(bytes));
                format!("has freed {}", about(Bytes(bytes)))
            }
            Event::Verified { bytes } => format!("read {} again, unchanged", about(Bytes(bytes))),
            Event::Reported { bytes, requests, .. } => {
                format!("has reported {}, requests: {requests}", about(Bytes(bytes)))
            }
            Event::Inflated { held, .. } => format!("its balloon holds {}", about(Bytes(held))),
            Event::Removed { device, .. } => format!("let device {device} go"),
            _ => return None,
        })
    }

    /// Returns the largest of all sizes, which is the right end of the bars.
    pub(super) fn most(&self) -> Bytes {
        let sizes =
            [self.boot + self.requested, self.boot + self.plugged, self.online, self.resident];
        sizes.into_iter().max().unwrap_or_default().max(Bytes(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::Report;

    fn event(json: &str) -> Event {
        let Ok(Report::Event(event)) = Report::parse(json) else { panic!("{json}") };
        event
    }

    #[test]
    fn sizes_follow_requests_and_events() {
        let mut state = State::default();
        let at = Duration::from_millis(70);
        let boot = event(r#"{"event":"boot","ms":3,"boot_memory":134217728,"cpus":1}"#);
        state.see(at, &Seen::Event(&boot));
        state.see(at, &Seen::Requested(Bytes::gib(1)));
        state.see(at, &Seen::Plugged(Bytes::mib(512)));
        assert_eq!((state.online, state.plugged), (Bytes::mib(128), Bytes::mib(512)));
        assert_eq!(state.most(), Bytes::gib(1) + Bytes::mib(128));
        let online = Bytes::mib(1152).0;
        let free = Bytes::mib(1140).0;
        let resized = format!(
            r#"{{"event":"resized","target":1073741824,"plugged":1073741824,"online":{online},"free":{free},"requests":1,"us":464}}"#
        );
        state.see(at, &Seen::Event(&event(&resized)));
        assert_eq!((state.plugged, state.used), (Bytes::gib(1), Bytes::mib(12)));
        state.see(at, &Seen::Event(&event(r#"{"event":"touched","bytes":1048576,"us":1}"#)));
        assert_eq!(state.used, Bytes::mib(13));
        let lines: Vec<_> = state.events.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            lines,
            [
                "has written to 1.0 MiB",
                "has 1.0 GiB after 464 µs, requests: 1",
                "the device is asked for 1.0 GiB",
                "boots with 128.0 MiB and CPUs: 1"
            ]
        );
    }

    #[test]
    fn old_events_are_dropped() {
        let mut state = State::default();
        for _ in 0..2 * KEPT {
            state.see(Duration::ZERO, &Seen::Failed("2"));
        }
        assert_eq!(state.events.len(), KEPT);
    }
}
