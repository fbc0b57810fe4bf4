//! Selects the LMBs that a request may take.

use super::candidates::Candidates;
use super::{OpenRequest, Step};
use crate::description::{Change, LmbSelection, Request};
use crate::outcome::Error;
use crate::property::{DrcIndex, FLAG_ASSIGNED, FLAG_RESERVED};
use crate::table::{Group, Table};
use hotmem::Platform;

impl<P: Platform> OpenRequest<'_, P> {
    /// Checks the request against the table before it changes anything.
    pub(super) fn select(request: Request, table: &Table<'_>) -> Result<Self, Error> {
        let candidates = request.candidates();
        let ((first, end), wanted) = match request.selection {
            LmbSelection::Count(0) | LmbSelection::Range { count: 0, .. } => {
                return Err(Error::Zero);
            }
            LmbSelection::Count(wanted) => {
                let available = table.count(candidates);
                if available < wanted {
                    return Err(Error::NotEnough { wanted, available });
                }
                ((0, table.lmbs), wanted)
            }
            LmbSelection::Index(index) => {
                let position = table.position_of(index).ok_or(Error::Unknown(index))?;
                let is_connector_only =
                    request.change == Change::Remove && table.is_connector_only(position);
                if !is_connector_only {
                    request.check_one(table, position, index)?;
                }
                ((position, position + 1), u32::from(!is_connector_only))
            }
            LmbSelection::Range { first: index, count } => {
                let first = table.position_of(index).ok_or(Error::Unknown(index))?;
                let there = table.lmbs - first;
                if count > there {
                    return Err(Error::BeyondTable { first: index, count, there });
                }
                let end = first + count;
                let reserved = table.next_in(first..end, |group| !group.eligible);
                if let Some(position) = reserved {
                    return Err(reserved_at(table, position));
                }
                let mut wanted = 0;
                let mut position = first;
                while let Some(candidate) = table.next_in(position..end, candidates) {
                    wanted += 1;
                    position = candidate + 1;
                }
                ((first, end), wanted)
            }
        };
        let step = match request.change {
            Change::Add => Step::Acquire,
            Change::Remove => Step::Offline,
        };
        let candidates = Candidates::new(first..end, wanted, candidates);
        Ok(OpenRequest::new(request, step, candidates))
    }
}

impl Request {
    /// Returns the function that returns the LMBs of a group that the request may take.
    fn candidates(self) -> fn(&Group) -> u64 {
        match self.change {
            Change::Add => Group::addable,
            Change::Remove => Group::removable,
        }
    }

    fn check_one(self, table: &Table<'_>, position: u32, index: DrcIndex) -> Result<(), Error> {
        let flags = table.lmb(position).flags;
        if flags & FLAG_RESERVED != 0 {
            return Err(reserved_at(table, position));
        }
        match (self.change, flags & FLAG_ASSIGNED != 0) {
            (Change::Add, true) => Err(Error::Assigned(index)),
            (Change::Remove, false) => Err(Error::NotAssigned(index)),
            _ => Ok(()),
        }
    }
}

impl Table<'_> {
    /// Returns the connector of a taken LMB or of a candidate.
    ///
    /// # Errors
    /// [`Error::Reserved`] if it has none.
    pub(super) fn connector(&self, position: u32) -> Result<DrcIndex, Error> {
        self.lmb(position).drc_index.ok_or_else(|| reserved_at(self, position))
    }
}

fn reserved_at(table: &Table<'_>, position: u32) -> Error {
    Error::Reserved { address: table.lmb(position).range.start().phys_addr() }
}
