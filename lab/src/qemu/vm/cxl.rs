//! CXL memory of a running guest: commands for it, and dynamic capacity.

use super::Vm;
use crate::qemu::{Error, Event};
use hotmem::Bytes;
use serde_json::json;
use std::time::Duration;

/// CXL memory that the guest has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CxlMemory {
    /// Its number.
    pub number: usize,
    /// Its first address.
    pub addr: u64,
    /// Its size.
    pub size: Bytes,
    /// The number of devices between which addresses alternate.
    pub ways: usize,
    /// Its node.
    pub node: u32,
}

/// A change of CXL memory to RAM or back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconfigured {
    /// The memory that is online afterwards.
    pub online: Bytes,
    /// The time that the guest measured.
    pub time: Duration,
}

/// Dynamic capacity of a device: the first byte in its region, and the size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Extent {
    /// The offset in the region.
    pub offset: u64,
    /// The size.
    pub size: Bytes,
}

/// What the guest has done with an extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExtentChange {
    /// It is online.
    Added(Reconfigured),
    /// It was given back.
    Removed(Reconfigured),
    /// It was not accepted, or not given back, for this reason.
    Kept(String),
}

impl Vm {
    /// Makes a device offer extents of dynamic capacity. The guest reports each.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_capacity(&mut self, device: usize, extents: &[Extent]) -> Result<(), Error> {
        self.change_capacity("cxl-add-dynamic-capacity", "selection-policy", device, extents)
    }

    /// Makes a device ask for extents of dynamic capacity. The guest reports each.
    ///
    /// # Errors
    /// [`Error`].
    pub fn release_capacity(&mut self, device: usize, extents: &[Extent]) -> Result<(), Error> {
        self.change_capacity("cxl-release-dynamic-capacity", "removal-policy", device, extents)
    }

    fn change_capacity(
        &mut self,
        command: &str,
        policy: &str,
        device: usize,
        extents: &[Extent],
    ) -> Result<(), Error> {
        let extents: Vec<_> = extents
            .iter()
            .map(|extent| json!({ "offset": extent.offset, "len": extent.size.0 }))
            .collect();
        let arguments = json!({
            "path": format!("/machine/peripheral/cxldev{device}"),
            "host-id": 0,
            policy: "prescriptive",
            "region": 0,
            "extents": extents,
        });
        self.execute(command, &arguments)?;
        Ok(())
    }

    /// Waits until the guest has done something with an extent. Returns the address of the extent, and
    /// what was done.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait_for_extent(&mut self) -> Result<(u64, ExtentChange), Error> {
        let changed = |event: &Event| match event {
            &Event::Extent { ref change, addr, online, us, .. } => {
                let (online, time) = (Bytes(online), Duration::from_micros(us));
                let done = Reconfigured { online, time };
                let is_addition = change == "added";
                let added = if is_addition { ExtentChange::Added } else { ExtentChange::Removed };
                Some((addr, added(done)))
            }
            Event::ExtentKept { addr, reason, .. } => {
                Some((*addr, ExtentChange::Kept(reason.clone())))
            }
            _ => None,
        };
        Ok(self.wait("change of an extent", changed)?.0)
    }

    /// Waits until the guest has found CXL memory.
    ///
    /// # Errors
    /// [`Error::GuestRefused`] if the guest refuses a device before, and other [`Error`]s.
    pub fn wait_for_cxl(&mut self) -> Result<CxlMemory, Error> {
        let found = |event: &Event| match *event {
            Event::CxlMemory { memory, addr, size, ways, node, .. } => {
                Some(Ok(CxlMemory { number: memory, addr, size: Bytes(size), ways, node }))
            }
            Event::CxlRefused { ref reason, .. } => Some(Err(Error::GuestRefused {
                command: "use a CXL device".into(),
                reason: reason.clone(),
            })),
            _ => None,
        };
        self.wait("CXL memory", found)?.0
    }

    /// Sends a command to the guest. Returns the guest's events until it answers.
    ///
    /// # Errors
    /// [`Error::GuestRefused`] if the guest refuses the command, and other [`Error`]s.
    pub fn command(&mut self, line: &str) -> Result<Vec<Event>, Error> {
        let commands = self.commands.as_ref().ok_or(Error::NoCommands)?;
        if !commands.is_ready {
            let is_ready = |event: &Event| matches!(event, Event::TakesCommands).then_some(());
            self.wait("readiness for commands", is_ready)?;
        }
        self.commands.as_mut().ok_or(Error::NoCommands)?.send(line)?;
        let mut events = Vec::new();
        let answered = |event: &Event| match event {
            Event::Answered { reason } => Some(reason.clone()),
            event => {
                events.push(event.clone());
                None
            }
        };
        match self.wait("answer to a command", answered)?.0 {
            None => Ok(events),
            Some(reason) => Err(Error::GuestRefused { command: line.into(), reason }),
        }
    }

    /// Resets the machine: the guest boots again. Devices keep the extents that it has accepted.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn reset(&mut self) -> Result<(), Error> {
        if let Some(commands) = &mut self.commands {
            commands.is_ready = false;
        }
        // Elsewhere a reset ends QEMU.
        self.execute("set-action", &json!({ "reboot": "reset" }))?;
        self.execute("system_reset", &json!({})).map(drop)
    }

    /// Makes CXL memory RAM (`system-ram N`) or device memory again (`devdax N`).
    ///
    /// # Errors
    /// As for [`command`](Self::command).
    pub fn reconfigure(&mut self, command: &str) -> Result<Reconfigured, Error> {
        let mut events = self.command(command)?.into_iter();
        let changed = events.find_map(|event| match event {
            Event::Reconfigured { online, us, .. } => {
                Some(Reconfigured { online: Bytes(online), time: Duration::from_micros(us) })
            }
            _ => None,
        });
        changed.ok_or_else(|| self.hang("report of a change"))
    }
}
