//! QEMU's monitor, which adds and removes DIMMs and sends events about them.
//!
//! The other machines use the library `qapi`. That library has the events of one version of QEMU,
//! and fails at an event that is not among them. Therefore this module parses messages itself.

use super::Dimm;
use crate::qemu::Error;
use hotmem::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

/// An event of QEMU about a DIMM. The value is the DIMM's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostEvent {
    /// The DIMM was removed.
    Deleted(String),
    /// The guest refused to release the DIMM.
    Refused(String),
}

/// A plugged DIMM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PluggedDimm {
    /// Its name.
    pub id: String,
    /// Its address.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// Its node.
    pub node: u32,
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

    /// Adds a DIMM.
    pub(super) fn add(&mut self, dimm: &Dimm) -> Result<(), Error> {
        let [backend, device] = dimm.options();
        self.line(&format!("object_add {backend}"))?;
        let added = self.line(&format!("device_add {device}"));
        if added.is_err() {
            self.line(&format!("object_del mem-{}", dimm.id))?;
        }
        added
    }

    /// Asks the guest to release a DIMM.
    pub(super) fn request_removal(&mut self, id: &str) -> Result<(), Error> {
        self.line(&format!("device_del {id}"))
    }

    /// Deletes the memory backend of a DIMM that was removed.
    pub(super) fn delete_backend(&mut self, id: &str) -> Result<(), Error> {
        self.line(&format!("object_del mem-{id}"))
    }

    /// Starts the CPUs of a machine whose configuration is `starts_stopped`.
    pub(super) fn start_cpus(&mut self) -> Result<(), Error> {
        self.execute("cont", &json!({})).map(drop)
    }

    /// Returns the machine's DIMMs, in the order of their addresses.
    pub(super) fn dimms(&mut self) -> Result<Vec<PluggedDimm>, Error> {
        const NAME: &str = "query-memory-devices";
        let all = self.execute(NAME, &json!({}))?;
        let no_dimms = |answer: &Value| Error::Refused {
            command: NAME.into(),
            reason: format!("the answer {answer} is not a list of DIMMs"),
        };
        let mut dimms = Vec::new();
        for device in all.as_array().ok_or_else(|| no_dimms(&all))? {
            if device["type"] == "dimm" {
                dimms.push(PluggedDimm::of(&device["data"]).ok_or_else(|| no_dimms(device))?);
            }
        }
        dimms.sort_by_key(|dimm| dimm.address);
        Ok(dimms)
    }

    /// Returns the number of instructions that the guest has executed, if they are counted.
    pub(super) fn instructions(&mut self) -> Result<u64, Error> {
        const NAME: &str = "query-replay";
        let answer = self.execute(NAME, &json!({}))?;
        // QEMU reports the number only while it records.
        let count = answer["icount"].as_u64().filter(|_| answer["mode"] == "record");
        count.ok_or_else(|| Error::Refused {
            command: NAME.into(),
            reason: format!("the answer {answer} has no number of instructions"),
        })
    }

    /// Returns the events about DIMMs that QEMU has sent since the last call.
    pub(super) fn events(&mut self) -> Result<Vec<HostEvent>, Error> {
        self.execute("query-status", &json!({}))?;
        Ok(std::mem::take(&mut self.events))
    }

    /// Executes a command line in QEMU's human monitor. It is an error if the monitor prints
    /// anything.
    pub(super) fn line(&mut self, line: &str) -> Result<(), Error> {
        let answer = self.execute("human-monitor-command", &json!({ "command-line": line }))?;
        let reason = answer.as_str().unwrap_or_default();
        let reason = reason.trim();
        if reason.is_empty() {
            return Ok(());
        }
        Err(Error::Refused { command: line.into(), reason: reason.into() })
    }

    /// Executes a command and returns the answer. Events that arrive before the answer are stored
    /// in `events`.
    fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
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
    /// Returns the event with the name `event`, or `None` if it is not about DIMMs.
    fn of(event: &str, data: &Value) -> Option<HostEvent> {
        let device = data["device"].as_str()?.to_owned();
        match event {
            "DEVICE_DELETED" => Some(HostEvent::Deleted(device)),
            "DEVICE_UNPLUG_GUEST_ERROR" => Some(HostEvent::Refused(device)),
            _ => None,
        }
    }
}

impl PluggedDimm {
    fn of(data: &Value) -> Option<PluggedDimm> {
        Some(PluggedDimm {
            id: data["id"].as_str()?.into(),
            address: data["addr"].as_u64()?,
            size: Bytes(data["size"].as_u64()?),
            node: u32::try_from(data["node"].as_u64()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience;
    use std::thread;

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

    #[test]
    fn events_before_an_answer_are_kept_and_refusals_are_errors() {
        let mut monitor = monitor(&[
            r#"{"QMP": {"version": {}, "capabilities": []}}"#,
            r#"{"return": {}}"#,
            "{\"event\": \"MEM_UNPLUG_ERROR\", \"data\": {\"device\": \"a\", \"msg\": \"no\"}}\n\
             {\"event\": \"DEVICE_UNPLUG_GUEST_ERROR\", \"data\": {\"device\": \"a\"}}\n\
             {\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/x\"}}\n\
             {\"return\": [{\"type\": \"dimm\", \"data\": {\"id\": \"a\", \"addr\": 1, \"size\": 2, \
             \"node\": 3}}, {\"type\": \"virtio-mem\", \"data\": {}}]}",
            r#"{"return": {"status": "running"}}"#,
            r#"{"return": {"mode": "record", "icount": 70273, "filename": "/dev/null"}}"#,
            r#"{"return": {"mode": "none", "icount": 0}}"#,
            r#"{"error": {"class": "GenericError", "desc": "no such device"}}"#,
            r#"{"return": "Error: no\r\n"}"#,
        ])
        .unwrap();
        let dimm = PluggedDimm { id: "a".into(), address: 1, size: Bytes(2), node: 3 };
        assert_eq!(monitor.dimms().unwrap(), [dimm]);
        assert_eq!(monitor.events().unwrap(), [HostEvent::Refused("a".into())]);
        assert_eq!(monitor.instructions().unwrap(), 70273);
        assert!(matches!(monitor.instructions(), Err(Error::Refused { .. })));
        let error = monitor.request_removal("b").unwrap_err();
        assert!(error.to_string().contains("no such device"), "{error}");
        let error = monitor.request_removal("b").unwrap_err();
        assert!(error.to_string().contains("Error: no"), "{error}");
        assert!(matches!(monitor.dimms(), Err(Error::Monitor(_))));
    }

    #[test]
    fn an_invalid_message_and_a_closed_monitor_are_errors() {
        assert!(matches!(monitor(&["hello"]), Err(Error::Garbled { .. })));
        assert!(matches!(monitor(&[]), Err(Error::Monitor(_))));
        let mut monitor =
            monitor(&["{}", "{}", r#"{"return": [{"type": "dimm", "data": 1}]}"#]).unwrap();
        assert!(matches!(monitor.dimms(), Err(Error::Refused { .. })));
    }
}
