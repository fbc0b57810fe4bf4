//! Implements [`Connectors`] by RTAS calls.

use crate::rtas::{Firmware, Rtas};
use crate::work_area::WorkArea;
use hotmem_dlpar::{BUSY, Connectors, DrcIndex, LONGEST_LIST, Refused, Written};

/// The status for an invalid answer: PAPR's hardware error.
pub const NONSENSE: i32 = -1;
/// The number of answers for one connector after which they count as endless. QEMU gives five.
const MOST_ANSWERS: u32 = 1000;

/// Answers of `ibm,configure-connector` other than errors and "busy".
const DONE: i32 = 0;
const PROPERTY: i32 = 3;
/// Answers that continue in the tree: next sibling, next child, next property, previous parent.
const MOVES: core::ops::RangeInclusive<i32> = 1..=4;

const ASSOCIATIVITY: &[u8] = b"ibm,associativity";

/// The connectors of a machine.
#[derive(Debug)]
pub struct RtasConnectors<F> {
    /// The calls.
    pub rtas: Rtas<F>,
    /// The number of LMBs that requests could not change or restore.
    pub left: u32,
    area: WorkArea,
    configuring: Option<Configuring>,
}

/// The configuration of a connector, which may take many calls.
#[derive(Clone, Copy, Debug)]
struct Configuring {
    connector: DrcIndex,
    answers: u32,
    list: Option<([u32; LONGEST_LIST], usize)>,
}

impl<F: Firmware> RtasConnectors<F> {
    /// Makes the connectors that these calls control.
    pub fn new(rtas: Rtas<F>) -> RtasConnectors<F> {
        RtasConnectors { rtas, left: 0, area: WorkArea::new(), configuring: None }
    }
}

impl Configuring {
    /// Reads the property in the work area. Returns `false` if it is invalid.
    fn read(&mut self, area: &WorkArea) -> bool {
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
        let mut list = [0; LONGEST_LIST];
        for (entry, cell) in list.iter_mut().zip(cells) {
            *entry = cell;
        }
        // The caller refuses a longer list.
        self.list = Some((list, len));
        true
    }
}

impl<F: Firmware> Connectors for RtasConnectors<F> {
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
        list: &mut [u32; LONGEST_LIST],
    ) -> (i32, Option<usize>) {
        let resumed = self.configuring.take().filter(|under_way| under_way.connector == connector);
        let mut under_way = resumed.unwrap_or_else(|| {
            self.area.begin(connector.0);
            Configuring { connector, answers: 0, list: None }
        });
        loop {
            let status = self.rtas.configure_connector(&mut self.area);
            under_way.answers += 1;
            let makes_sense = match status {
                DONE => {
                    let Some((told, len)) = under_way.list else { return (DONE, None) };
                    *list = told;
                    return (DONE, Some(len));
                }
                BUSY | 9900..=9905 => {
                    self.configuring = Some(under_way);
                    return (status, None);
                }
                PROPERTY => under_way.read(&self.area),
                status => MOVES.contains(&status),
            };
            if status < 0 {
                return (status, None);
            }
            if !makes_sense || under_way.answers >= MOST_ANSWERS {
                return (NONSENSE, None);
            }
        }
    }

    /// Returns success without a call, because the firmware maintains the device tree.
    fn update(&mut self, _: Written<'_>, _: Option<Written<'_>>) -> i32 {
        0
    }

    fn refused(&mut self, _: &Refused) {
        self.left += 1;
    }
}

#[cfg(test)]
#[path = "connectors/tests.rs"]
mod tests;
