//! QEMU's monitor: adds and removes DIMMs, and receives QEMU's events about them.
//!
//! It parses messages itself, because the library that the other machines use knows the events of a
//! single version of QEMU, and fails at any other event.

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

/// An event of QEMU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostEvent {
    /// A DIMM was removed.
    Deleted(String),
    /// The guest refused to release a DIMM.
    Refused(String),
}

/// A plugged DIMM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plugged {
    /// Its name.
    pub id: String,
    /// Its address.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// Its node.
    pub node: u32,
}

/// A message from QEMU.
#[derive(Deserialize)]
struct Message {
    event: Option<String>,
    #[serde(default)]
    data: Value,
    error: Option<Refusal>,
    #[serde(default, rename = "return")]
    answer: Value,
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

/// A connection to QEMU's monitor.
pub(super) struct Monitor {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    events: Vec<HostEvent>,
}

impl Monitor {
    /// Negotiates with QEMU. No answer may take longer than `patience`.
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
        let [behind, device] = dimm.options();
        self.line(&format!("object_add {behind}"))?;
        let added = self.line(&format!("device_add {device}"));
        if added.is_err() {
            self.line(&format!("object_del mem-{}", dimm.id))?;
        }
        added
    }

    /// Asks the guest to release a DIMM.
    pub(super) fn ask_back(&mut self, id: &str) -> Result<(), Error> {
        self.line(&format!("device_del {id}"))
    }

    /// Removes the memory backend of a DIMM that was removed.
    pub(super) fn forget(&mut self, id: &str) -> Result<(), Error> {
        self.line(&format!("object_del mem-{id}"))
    }

    /// Starts the CPUs of a machine that was created stopped.
    pub(super) fn go_on(&mut self) -> Result<(), Error> {
        self.execute("cont", &json!({})).map(drop)
    }

    /// Returns the DIMMs that the machine has, by address.
    pub(super) fn dimms(&mut self) -> Result<Vec<Plugged>, Error> {
        const NAME: &str = "query-memory-devices";
        let all = self.execute(NAME, &json!({}))?;
        let no_dimm = |what: &Value| Error::Refused {
            command: NAME.into(),
            reason: format!("it answers {what}, which is not a list of DIMMs"),
        };
        let mut dimms = Vec::new();
        for device in all.as_array().ok_or_else(|| no_dimm(&all))? {
            if device["type"] == "dimm" {
                dimms.push(Plugged::of(&device["data"]).ok_or_else(|| no_dimm(device))?);
            }
        }
        dimms.sort_by_key(|dimm| dimm.address);
        Ok(dimms)
    }

    /// Returns the number of instructions that the guest has executed, if they are counted.
    pub(super) fn instructions(&mut self) -> Result<u64, Error> {
        const NAME: &str = "query-replay";
        let answer = self.execute(NAME, &json!({}))?;
        // Without recording, QEMU reports 0.
        let count = answer["icount"].as_u64().filter(|_| answer["mode"] == "record");
        count.ok_or_else(|| Error::Refused {
            command: NAME.into(),
            reason: format!("it answers {answer}: no instructions are counted"),
        })
    }

    /// Returns the events that QEMU has sent since the last call.
    pub(super) fn events(&mut self) -> Result<Vec<HostEvent>, Error> {
        self.execute("query-status", &json!({}))?;
        Ok(std::mem::take(&mut self.events))
    }

    /// Executes a command line in QEMU's human monitor, which must print nothing.
    pub(super) fn line(&mut self, line: &str) -> Result<(), Error> {
        let answer = self.execute("human-monitor-command", &json!({ "command-line": line }))?;
        let reason = answer.as_str().unwrap_or_default();
        let reason = reason.trim();
        if reason.is_empty() {
            return Ok(());
        }
        Err(Error::Refused { command: line.into(), reason: reason.into() })
    }

    /// Executes a command and returns the answer. Events that arrive before it are kept.
    fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        let message = json!({ "execute": command, "arguments": arguments });
        // The message is written at once, because QEMU wakes for each write.
        let sent = self.writer.write_all(format!("{message}\n").as_bytes());
        sent.map_err(Error::Monitor)?;
        loop {
            let message = self.message()?;
            match (message.event, message.error) {
                (Some(event), _) => self.events.extend(HostEvent::of(&event, &message.data)),
                (None, Some(Refusal { desc })) => {
                    return Err(Error::Refused { command: command.into(), reason: desc });
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
    /// Returns the event of this name, or `None` if it is not about DIMMs.
    fn of(event: &str, data: &Value) -> Option<HostEvent> {
        let device = data["device"].as_str()?.to_owned();
        match event {
            "DEVICE_DELETED" => Some(HostEvent::Deleted(device)),
            "DEVICE_UNPLUG_GUEST_ERROR" => Some(HostEvent::Refused(device)),
            _ => None,
        }
    }
}

impl Plugged {
    fn of(data: &Value) -> Option<Plugged> {
        Some(Plugged {
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
    use crate::PATIENCE;
    use std::thread;

    /// Returns a monitor whose QEMU sends these messages, the first of them as its greeting.
    fn monitor(answers: &'static [&'static str]) -> Result<Monitor, Error> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut commands = BufReader::new(theirs.try_clone().unwrap()).lines();
            let mut theirs = theirs;
            for (nth, answer) in answers.iter().enumerate() {
                if nth > 0 && commands.next().is_none() {
                    return;
                }
                writeln!(theirs, "{answer}\r").unwrap();
            }
        });
        Monitor::new(ours, PATIENCE)
    }

    #[test]
    fn events_and_answers_are_distinguished() {
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
        let dimm = Plugged { id: "a".into(), address: 1, size: Bytes(2), node: 3 };
        assert_eq!(monitor.dimms().unwrap(), [dimm]);
        assert_eq!(monitor.events().unwrap(), [HostEvent::Refused("a".into())]);
        assert_eq!(monitor.instructions().unwrap(), 70273);
        assert!(matches!(monitor.instructions(), Err(Error::Refused { .. })));
        let error = monitor.ask_back("b").unwrap_err();
        assert!(error.to_string().contains("no such device"), "{error}");
        let error = monitor.ask_back("b").unwrap_err();
        assert!(error.to_string().contains("Error: no"), "{error}");
        assert!(matches!(monitor.dimms(), Err(Error::Monitor(_))));
    }

    #[test]
    fn an_invalid_message_is_an_error() {
        assert!(matches!(monitor(&["hello"]), Err(Error::Garbled { .. })));
        assert!(matches!(monitor(&[]), Err(Error::Monitor(_))));
        let mut odd =
            monitor(&["{}", "{}", r#"{"return": [{"type": "dimm", "data": 1}]}"#]).unwrap();
        assert!(matches!(odd.dimms(), Err(Error::Refused { .. })));
    }
}
