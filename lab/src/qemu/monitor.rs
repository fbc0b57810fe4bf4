//! Executes commands of QEMU's monitor (QMP), and collects its events about devices.
//!
//! The messages are parsed here, because a library with the events of one version of QEMU fails at an
//! event of another version.

use super::Error;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

/// An event of QEMU about a device. The value is the name of the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostEvent {
    /// The device was removed.
    Deleted(String),
    /// The guest refused to release the device.
    Refused(String),
    /// The guest has answered the insertion of a DIMM by `_OST`.
    Answered {
        /// The name of the DIMM.
        device: String,
        /// Whether it uses the memory.
        is_accepted: bool,
    },
}

/// A message from QEMU: an event, an error, or the answer to a command.
#[derive(Deserialize)]
struct Message {
    event: Option<String>,
    #[serde(default)]
    data: Value,
    error: Option<Refusal>,
    #[serde(default, rename = "return")]
    answer: Value,
}

/// An error as the answer to a command.
#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "desc")]
    reason: String,
}

/// A connection to QEMU's monitor.
pub(super) struct Monitor {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    events: Vec<HostEvent>,
}

impl Monitor {
    /// Connects to QEMU's monitor. Each answer must arrive within `patience`.
    pub(super) fn new(socket: UnixStream, patience: Duration) -> Result<Monitor, Error> {
        socket.set_read_timeout(Some(patience)).map_err(Error::Monitor)?;
        let reader = BufReader::new(socket.try_clone().map_err(Error::Monitor)?);
        let mut monitor = Monitor { reader, writer: socket, events: Vec::new() };
        let _greeting = monitor.message()?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Returns the events about devices that have arrived since the last call.
    pub(super) fn take_events(&mut self) -> Vec<HostEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns the next event about a device, and waits for it.
    pub(super) fn next_event(&mut self) -> Result<HostEvent, Error> {
        while self.events.is_empty() {
            let Message { event, data, .. } = self.message()?;
            self.events.extend(event.and_then(|event| HostEvent::of(&event, &data)));
        }
        Ok(self.events.remove(0))
    }

    /// Executes a command and returns the answer. Events that arrive before the answer are stored
    /// in `events`.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        let message = json!({ "execute": command, "arguments": arguments });
        // The message is sent by one write, because QEMU wakes for each write.
        let sent = self.writer.write_all(format!("{message}\n").as_bytes());
        sent.map_err(Error::Monitor)?;
        loop {
            let message = self.message()?;
            match (message.event, message.error) {
                (Some(event), _) => self.events.extend(HostEvent::of(&event, &message.data)),
                (None, Some(Refusal { reason })) => {
                    return Err(Error::Refused { command: command.into(), reason });
                }
                (None, None) => return Ok(message.answer),
            }
        }
    }

    fn message(&mut self) -> Result<Message, Error> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).map_err(Error::Monitor)? == 0 {
            return Err(Error::Monitor(io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_str(&line).map_err(|source| Error::Garbled { line, source })
    }
}

impl HostEvent {
    /// Returns the event with the name `event`, or `None` if it is not about a device.
    fn of(event: &str, data: &Value) -> Option<HostEvent> {
        if event == "ACPI_DEVICE_OST" {
            // An insertion is event 1, and status 0 is success (ACPI 6.5, 6.3.5).
            let info = &data["info"];
            let device = info["device"].as_str().unwrap_or_default().to_owned();
            let is_accepted = info["status"] == 0;
            return (info["source"] == 1).then_some(HostEvent::Answered { device, is_accepted });
        }
        let device = data["device"].as_str()?.to_owned();
        match event {
            "DEVICE_DELETED" => Some(HostEvent::Deleted(device)),
            "DEVICE_UNPLUG_GUEST_ERROR" => Some(HostEvent::Refused(device)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience;
    use std::{io::ErrorKind, thread};

    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;
    const EMPTY: &str = r#"{"return": {}}"#;

    /// Returns a monitor of a simulated QEMU that sends these messages. The first is the greeting,
    /// and each further one answers a command.
    fn monitor(answers: &'static [&'static str]) -> Result<Monitor, Error> {
        let (monitor_end, qemu_end) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut commands = BufReader::new(qemu_end.try_clone().unwrap()).lines();
            let mut qemu_end = qemu_end;
            for (nth, answer) in answers.iter().enumerate() {
                if nth > 0 && commands.next().is_none() {
                    return;
                }
                writeln!(qemu_end, "{answer}\r").unwrap();
            }
        });
        Monitor::new(monitor_end, patience())
    }

    fn execute(monitor: &mut Monitor) -> Result<Value, Error> {
        monitor.execute("qom-get", &json!({ "path": "/machine" }))
    }

    #[test]
    fn events_before_an_answer_are_kept_and_refusals_are_errors() {
        let mut monitor = monitor(&[
            GREETING,
            EMPTY,
            "{\"event\": \"MEM_UNPLUG_ERROR\", \"data\": {\"device\": \"a\", \"msg\": \"no\"}}\n\
             {\"event\": \"MEMORY_DEVICE_SIZE_CHANGE\", \"data\": {\"id\": \"vmem0\", \"size\": 5}}\n\
             {\"event\": \"DEVICE_UNPLUG_GUEST_ERROR\", \"data\": {\"device\": \"a\"}}\n\
             {\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/x\"}}\n\
             {\"event\": \"ACPI_DEVICE_OST\", \"data\": {\"info\": {\"device\": \"d\", \"source\": 1, \"status\": 0}}}\n\
             {\"event\": \"ACPI_DEVICE_OST\", \"data\": {\"info\": {\"device\": \"d\", \"source\": 3, \"status\": 130}}}\n\
             {\"return\": 68719476736}",
            r#"{"error": {"class": "GenericError", "desc": "no such device"}}"#,
        ])
        .unwrap();
        assert_eq!(execute(&mut monitor).unwrap(), json!(68_719_476_736_u64));
        let answered = HostEvent::Answered { device: "d".into(), is_accepted: true };
        assert_eq!(monitor.next_event().unwrap(), HostEvent::Refused("a".into()));
        assert_eq!(monitor.take_events(), [answered]);
        let error = execute(&mut monitor).unwrap_err();
        assert!(error.to_string().contains("no such device"), "{error}");
        assert!(matches!(execute(&mut monitor), Err(Error::Monitor(_))));
    }

    #[test]
    fn an_invalid_message_and_a_closed_monitor_are_errors() {
        assert!(matches!(monitor(&["hello"]), Err(Error::Garbled { .. })));
        assert!(matches!(monitor(&[]), Err(Error::Monitor(_))));
        let closed = &[GREETING, EMPTY];
        assert!(matches!(execute(&mut monitor(closed).unwrap()), Err(Error::Monitor(_))));
    }

    #[test]
    fn a_monitor_that_sends_nothing_is_an_error() {
        let (silent, _open) = UnixStream::pair().unwrap();
        let timeout = Monitor::new(silent, Duration::from_millis(10)).map(|_| ());
        assert!(
            matches!(timeout, Err(Error::Monitor(error)) if error.kind() == ErrorKind::WouldBlock)
        );
    }
}
