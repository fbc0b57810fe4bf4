//! CXL memory of a running guest: commands for it, and dynamic capacity.

use super::Vm;
use crate::qemu::{Error, Event};
use hotmem::Bytes;
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

impl Vm {
    /// Waits until the guest has found CXL memory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait_for_cxl(&mut self) -> Result<CxlMemory, Error> {
        let found = |event: &Event| match *event {
            Event::CxlMemory { memory, addr, size, ways, node, .. } => {
                Some(CxlMemory { number: memory, addr, size: Bytes(size), ways, node })
            }
            _ => None,
        };
        Ok(self.wait("CXL memory", found)?.0)
    }

    /// Sends a command to the guest. Returns the guest's events until it answers.
    ///
    /// # Errors
    /// [`Error::GuestRefused`] if the guest refuses the command, and other [`Error`]s.
    pub fn command(&mut self, line: &str) -> Result<Vec<Event>, Error> {
        let commands = self.commands.as_mut().ok_or(Error::NoCommands)?;
        commands.send(line)?;
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
