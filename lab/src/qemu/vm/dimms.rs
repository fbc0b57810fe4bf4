//! Inserts and removes DIMMs in memory slots while the guest runs.

use super::Vm;
use crate::qemu::{Error, Event};
use hotmem::Bytes;
use std::time::Duration;

/// A DIMM whose memory the guest has brought online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dimm {
    /// The number of its memory slot.
    pub slot: u32,
    /// The size of its memory.
    pub size: Bytes,
    /// The node of its memory.
    pub node: u32,
}

impl Vm {
    /// Inserts a DIMM into a free memory slot. `name` identifies it until its memory is
    /// [freed](Self::free_dimm).
    ///
    /// # Errors
    /// [`Error`].
    pub fn insert_dimm(&mut self, name: &str, size: Bytes, node: u32) -> Result<(), Error> {
        self.add_dimm_memory(name, size)?;
        self.plug_dimm(name, node)
    }

    /// Makes the host's memory of a DIMM.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_dimm_memory(&mut self, name: &str, Bytes(size): Bytes) -> Result<(), Error> {
        self.monitor_line(&format!(
            "object_add memory-backend-ram,id=mem{name},size={size}B,reserve=off"
        ))
    }

    /// Inserts a DIMM whose memory was [made](Self::add_dimm_memory).
    ///
    /// # Errors
    /// [`Error`].
    pub fn plug_dimm(&mut self, name: &str, node: u32) -> Result<(), Error> {
        self.monitor_line(&format!("device_add pc-dimm,id=dimm{name},memdev=mem{name},node={node}"))
    }

    /// Waits until the guest has brought the memory of a DIMM online. Returns the DIMM and the time
    /// that the guest measured.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait_for_added_dimm(&mut self) -> Result<(Dimm, Duration), Error> {
        let added = |event: &Event| match *event {
            Event::DimmAdded { slot, size, node, us, .. } => {
                Some((Dimm { slot, size: Bytes(size), node }, Duration::from_micros(us)))
            }
            _ => None,
        };
        Ok(self.wait("online memory of a DIMM", added)?.0)
    }

    /// Asks the guest to give the DIMM back.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_dimm(&mut self, name: &str) -> Result<(), Error> {
        self.monitor_line(&format!("device_del dimm{name}"))
    }

    /// Waits until the guest has given a DIMM back. Returns its slot and the memory that is online.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait_for_removed_dimm(&mut self) -> Result<(u32, Bytes), Error> {
        let removed = |event: &Event| match *event {
            Event::DimmRemoved { slot, online, .. } => Some((slot, Bytes(online))),
            _ => None,
        };
        Ok(self.wait("removal of a DIMM", removed)?.0)
    }

    /// Frees the host's memory of a DIMM that the guest has given back.
    ///
    /// # Errors
    /// [`Error`].
    pub fn free_dimm(&mut self, name: &str) -> Result<(), Error> {
        self.monitor_line(&format!("object_del mem{name}"))
    }
}
