//! DIMMs of a pseries machine while the guest runs, and the instructions that the guest executes.

use super::Dimm;
use crate::qemu::{Error, Event, HostEvent, RequestEnd, Vm};
use hotmem::Bytes;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

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

/// The result of a request to remove a DIMM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removal {
    /// The guest's report of the end of the request.
    pub end: RequestEnd,
    /// QEMU's event.
    pub host: HostEvent,
}

impl Vm {
    /// Starts the CPUs of a machine whose configuration is
    /// [`starts_stopped`](super::Config::starts_stopped).
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn start_cpus(&mut self) -> Result<(), Error> {
        self.execute("cont", &json!({})).map(drop)
    }

    /// Adds a DIMM without waiting for the guest.
    ///
    /// # Errors
    /// QEMU refuses the command.
    pub fn add(&mut self, dimm: &Dimm) -> Result<(), Error> {
        let [backend, device] = dimm.options();
        self.monitor_line(&format!("object_add {backend}"))?;
        let added = self.monitor_line(&format!("device_add {device}"));
        if added.is_err() {
            self.delete_backend(&dimm.id)?;
        }
        added
    }

    /// Deletes the memory backend of a DIMM that was removed.
    fn delete_backend(&mut self, id: &str) -> Result<(), Error> {
        self.monitor_line(&format!("object_del mem-{id}"))
    }

    /// Asks the guest to release a DIMM, without waiting for the guest.
    ///
    /// # Errors
    /// QEMU refuses the command.
    pub fn request_removal(&mut self, id: &str) -> Result<(), Error> {
        self.monitor_line(&format!("device_del {id}"))
    }

    /// Adds a DIMM and waits until the guest has added its memory.
    ///
    /// # Errors
    /// QEMU refuses the command, or the guest hangs or gives up.
    pub fn plug(&mut self, dimm: &Dimm) -> Result<RequestEnd, Error> {
        self.add(dimm)?;
        self.request_end(&format!("end of the addition of {}", dimm.id))
    }

    /// Asks the guest to release a DIMM, and waits until the guest and QEMU have reported
    /// the end of the request.
    ///
    /// # Errors
    /// As for [`plug`](Self::plug).
    pub fn unplug(&mut self, id: &str) -> Result<Removal, Error> {
        // QEMU 7.2 reports each refusal of the guest twice. Drop reports of an earlier request.
        self.device_events()?;
        self.request_removal(id)?;
        let awaited = format!("end of the removal of {id}");
        let end = self.request_end(&awaited)?;
        let deadline = Instant::now() + self.patience();
        loop {
            for host in self.device_events()? {
                match &host {
                    HostEvent::Deleted(device) if device == id => self.delete_backend(id)?,
                    HostEvent::Refused(device) if device == id => {}
                    _ => continue,
                }
                return Ok(Removal { end, host });
            }
            if Instant::now() > deadline {
                return Err(self.hang(&format!("{awaited} in QEMU")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the machine's DIMMs, as QEMU lists them, in the order of their addresses.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn dimms(&mut self) -> Result<Vec<PluggedDimm>, Error> {
        const NAME: &str = "query-memory-devices";
        listed_dimms(&self.execute(NAME, &json!({}))?).map_err(|device| Error::Refused {
            command: NAME.into(),
            reason: format!("the answer {device} is not a list of DIMMs"),
        })
    }

    /// Returns the number of instructions that the guest has executed since QEMU's start. The
    /// number does not grow while the guest waits for an interrupt.
    ///
    /// # Errors
    /// [`Error::Refused`] if the machine is not
    /// [`counts_instructions`](super::Config::counts_instructions).
    pub fn instructions(&mut self) -> Result<u64, Error> {
        const NAME: &str = "query-replay";
        let answer = self.execute(NAME, &json!({}))?;
        executed_instructions(&answer).ok_or_else(|| Error::Refused {
            command: NAME.into(),
            reason: format!("the answer {answer} has no number of instructions"),
        })
    }

    /// Waits for the end of the guest's current request. Errors name the event `awaited`.
    ///
    /// # Errors
    /// The guest hangs or gives up.
    pub fn request_end(&mut self, awaited: &str) -> Result<RequestEnd, Error> {
        let end = self.wait(awaited, |event| match event {
            Event::Done(end) => Some(end.clone()),
            _ => None,
        });
        Ok(end?.0)
    }
}

/// Returns the DIMMs in QEMU's list of memory devices, or what is no such list or device.
fn listed_dimms(answer: &Value) -> Result<Vec<PluggedDimm>, &Value> {
    let devices = answer.as_array().ok_or(answer)?;
    let dimms = devices.iter().filter(|device| device["type"] == "dimm");
    let mut dimms = dimms
        .map(|device| PluggedDimm::of(&device["data"]).ok_or(device))
        .collect::<Result<Vec<_>, _>>()?;
    dimms.sort_by_key(|dimm| dimm.address);
    Ok(dimms)
}

/// Returns the number of instructions in QEMU's answer. QEMU reports it only while it records.
fn executed_instructions(answer: &Value) -> Option<u64> {
    answer["icount"].as_u64().filter(|_| answer["mode"] == "record")
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

    #[test]
    fn dimms_are_listed_in_the_order_of_their_addresses() {
        let dimm = |id, addr| json!({ "type": "dimm", "data": { "id": id, "addr": addr, "size": 2, "node": 3 } });
        let other = json!({ "type": "virtio-mem", "data": {} });
        let expected =
            |id: &str, address| PluggedDimm { id: id.into(), address, size: Bytes(2), node: 3 };
        let all = json!([dimm("b", 5), other, dimm("a", 1)]);
        assert_eq!(listed_dimms(&all), Ok(vec![expected("a", 1), expected("b", 5)]));
        let invalid = json!([{ "type": "dimm", "data": 1 }]);
        assert_eq!(listed_dimms(&invalid), Err(&invalid[0]));
        assert!(listed_dimms(&json!({})).is_err());
    }

    #[test]
    fn instructions_are_counted_only_in_a_recording() {
        let counted = json!({ "mode": "record", "icount": 70273, "filename": "/dev/null" });
        assert_eq!(executed_instructions(&counted), Some(70273));
        assert_eq!(executed_instructions(&json!({ "mode": "none", "icount": 0 })), None);
    }
}
