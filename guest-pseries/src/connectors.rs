//! Implements [`Connectors`] by RTAS calls.

use crate::rtas::{Firmware, Rtas};
use crate::work_area::WorkArea;
use hotmem_dlpar::{BUSY, Connectors, DrcIndex, MAX_LIST_LEN, PropertyValue, RefusedLmb};

/// The status that stands for an invalid answer of the firmware: PAPR's hardware error.
pub const INVALID_ANSWER: i32 = -1;
/// The number of answers for one connector after which its configuration fails as endless. QEMU
/// gives five answers.
const MAX_ANSWERS: u32 = 1000;

/// The status of `ibm,configure-connector` when the connector is configured.
const CONFIGURED: i32 = 0;
/// The status when the work area holds the next property.
const PROPERTY: i32 = 3;
/// The statuses that move in the device tree: next sibling, next child, next property, parent.
const TREE_MOVES: core::ops::RangeInclusive<i32> = 1..=4;

const ASSOCIATIVITY: &[u8] = b"ibm,associativity";

/// The connectors of a machine.
#[derive(Debug)]
pub struct RtasConnectors<'a, F> {
    /// The RTAS of the machine.
    pub rtas: Rtas<F>,
    /// The number of LMBs that requests could neither change nor restore.
    pub unchanged_lmbs: u32,
    area: &'a mut WorkArea,
    configuring: Option<Configuring>,
}

/// The configuration of a connector, which may take many calls.
#[derive(Clone, Copy, Debug)]
struct Configuring {
    connector: DrcIndex,
    answers: u32,
    list: Option<([u32; MAX_LIST_LEN], usize)>,
}

impl<'a, F: Firmware> RtasConnectors<'a, F> {
    /// Makes the connectors that `rtas` controls. The firmware writes to `area`.
    pub fn new(rtas: Rtas<F>, area: &'a mut WorkArea) -> RtasConnectors<'a, F> {
        RtasConnectors { rtas, unchanged_lmbs: 0, area, configuring: None }
    }
}

impl Configuring {
    /// Reads the property in the work area. Returns `false` if it is invalid.
    fn read_property(&mut self, area: &WorkArea) -> bool {
        let Some(property) = area.property() else { return false };
        if property.name != ASSOCIATIVITY {
            return true;
        }
        let (cells, rest) = property.value.as_chunks();
        let mut cells = cells.iter().map(|&cell| u32::from_be_bytes(cell));
        let Some(len) = cells.next().and_then(|len| usize::try_from(len).ok()) else {
            return false;
        };
        if !rest.is_empty() || cells.len() != len {
            return false;
        }
        let mut list = [0; MAX_LIST_LEN];
        for (entry, cell) in list.iter_mut().zip(cells) {
            *entry = cell;
        }
        // A list may be longer than `MAX_LIST_LEN`. The caller sees its length and refuses it.
        self.list = Some((list, len));
        true
    }
}

impl<F: Firmware> Connectors for RtasConnectors<'_, F> {
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32) {
        self.rtas.entity_sense(connector)
    }

    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32 {
        self.rtas.set_allocation(connector, usable)
    }

    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32 {
        self.rtas.set_isolation(connector, isolated)
    }

    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; MAX_LIST_LEN],
    ) -> (i32, Option<usize>) {
        let resumed =
            self.configuring.take().filter(|configuring| configuring.connector == connector);
        let mut configuring = resumed.unwrap_or_else(|| {
            self.area.begin(connector.0);
            Configuring { connector, answers: 0, list: None }
        });
        loop {
            let status = self.rtas.configure_connector(self.area);
            configuring.answers += 1;
            let is_valid = match status {
                CONFIGURED => {
                    let Some((entries, len)) = configuring.list else { return (CONFIGURED, None) };
                    *list = entries;
                    return (CONFIGURED, Some(len));
                }
                BUSY | 9900..=9905 => {
                    self.configuring = Some(configuring);
                    return (status, None);
                }
                PROPERTY => configuring.read_property(self.area),
                status => TREE_MOVES.contains(&status),
            };
            if status < 0 {
                return (status, None);
            }
            if !is_valid || configuring.answers >= MAX_ANSWERS {
                return (INVALID_ANSWER, None);
            }
        }
    }

    /// Returns success without a call, because the firmware maintains the device tree.
    fn update(&mut self, _: PropertyValue<'_>, _: Option<PropertyValue<'_>>) -> i32 {
        0
    }

    fn refused(&mut self, _: &RefusedLmb) {
        self.unchanged_lmbs += 1;
    }
}

#[cfg(test)]
#[path = "connectors/tests.rs"]
mod tests;
