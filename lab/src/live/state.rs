//! The state of a guest's memory, from the guest's events and the device's answers.

use crate::{
    qemu::{Event, Observation},
    size::approximate,
};
use hotmem::Bytes;
use std::{collections::VecDeque, time::Duration};

/// The largest number of events in a state.
const MAX_EVENTS: usize = 50;

/// The memory of a guest, and the latest events.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct State {
    /// The boot memory.
    pub(super) boot_memory: Bytes,
    /// The size that the host last requested of the device.
    pub(super) requested_size: Bytes,
    /// The size that the device has plugged.
    pub(super) plugged: Bytes,
    /// The guest's online memory, with the boot memory.
    pub(super) online: Bytes,
    /// The guest's allocated memory.
    pub(super) used_memory: Bytes,
    /// The resident memory of QEMU.
    pub(super) resident_memory: Bytes,
    /// Descriptions of the latest events, each with the time since QEMU's start. The first is the
    /// latest.
    pub(super) events: VecDeque<(Duration, String)>,
}

impl State {
    /// Records an observation of the machine.
    pub(super) fn record(&mut self, time: Duration, observation: &Observation<'_>) {
        let line = match *observation {
            Observation::Requested(target) => {
                self.requested_size = target;
                Some(format!("the host requests {} of the device", approximate(target)))
            }
            Observation::Plugged(size) => {
                self.plugged = size;
                None
            }
            Observation::Event(event) => self.record_event(event),
            Observation::Failed(point) => Some(format!("not ok: {point}")),
        };
        if let Some(line) = line {
            self.events.push_front((time, line));
            self.events.truncate(MAX_EVENTS);
        }
    }

    /// Records an event. Returns its description, or `None` if the event is not about memory.
    fn record_event(&mut self, event: &Event) -> Option<String> {
        Some(match *event {
            Event::Boot { boot_memory, cpus, .. } => {
                self.boot_memory = Bytes(boot_memory);
                self.online = self.boot_memory;
                format!("has booted with {}, CPUs: {cpus}", approximate(self.boot_memory))
            }
            Event::Device { ref kind, region_size, .. } => {
                format!("{kind} device of up to {}", approximate(Bytes(region_size)))
            }
            Event::Resized { target, plugged, online, free, requests, us, .. } => {
                self.plugged = Bytes(plugged);
                self.online = Bytes(online);
                self.used_memory = Bytes(online.saturating_sub(free));
                let time = crate::table::time(Duration::from_micros(us));
                format!("has {} after {time}, requests: {requests}", approximate(Bytes(target)))
            }
            Event::Pending { target, plugged, ref reason, .. } => {
                self.plugged = Bytes(plugged);
                format!("cannot reach {} for now: {reason}", approximate(Bytes(target)))
            }
            Event::Touched { bytes, .. } => {
                self.used_memory = self.used_memory + Bytes(bytes);
                format!("has written to {}", approximate(Bytes(bytes)))
            }
            Event::Freed { bytes, .. } => {
                self.used_memory = Bytes(self.used_memory.0.saturating_sub(bytes));
                format!("has freed {}", approximate(Bytes(bytes)))
            }
            Event::Verified { bytes } => format!("has checked {}", approximate(Bytes(bytes))),
            Event::Reported { bytes, requests, .. } => {
                format!("has reported {}, requests: {requests}", approximate(Bytes(bytes)))
            }
            Event::Inflated { held, .. } => format!("its balloon has {}", approximate(Bytes(held))),
            Event::Removed { device, .. } => format!("has released device {device}"),
            _ => return None,
        })
    }

    /// Returns the largest of all sizes. A bar of this size has the full width.
    pub(super) fn largest_size(&self) -> Bytes {
        let sizes = [
            self.boot_memory + self.requested_size,
            self.boot_memory + self.plugged,
            self.online,
            self.resident_memory,
        ];
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
    fn sizes_and_descriptions_follow_requests_and_events() {
        let mut state = State::default();
        let time = Duration::from_millis(70);
        let boot = event(r#"{"event":"boot","ms":3,"boot_memory":134217728,"cpus":1}"#);
        state.record(time, &Observation::Event(&boot));
        state.record(time, &Observation::Requested(Bytes::gib(1)));
        state.record(time, &Observation::Plugged(Bytes::mib(512)));
        assert_eq!((state.online, state.plugged), (Bytes::mib(128), Bytes::mib(512)));
        assert_eq!(state.largest_size(), Bytes::gib(1) + Bytes::mib(128));
        let online = Bytes::mib(1152).0;
        let free = Bytes::mib(1140).0;
        let resized = format!(
            r#"{{"event":"resized","target":1073741824,"plugged":1073741824,"online":{online},"free":{free},"requests":1,"us":464}}"#
        );
        state.record(time, &Observation::Event(&event(&resized)));
        assert_eq!((state.plugged, state.used_memory), (Bytes::gib(1), Bytes::mib(12)));
        state.record(
            time,
            &Observation::Event(&event(r#"{"event":"touched","bytes":1048576,"us":1}"#)),
        );
        assert_eq!(state.used_memory, Bytes::mib(13));
        let lines: Vec<_> = state.events.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            lines,
            [
                "has written to 1M",
                "has 1G after 464 µs, requests: 1",
                "the host requests 1G of the device",
                "has booted with 128M, CPUs: 1"
            ]
        );
    }

    #[test]
    fn a_state_has_a_limited_number_of_events() {
        let mut state = State::default();
        for _ in 0..2 * MAX_EVENTS {
            state.record(Duration::ZERO, &Observation::Failed("2"));
        }
        assert_eq!(state.events.len(), MAX_EVENTS);
    }
}
