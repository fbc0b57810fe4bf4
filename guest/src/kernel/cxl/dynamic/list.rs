//! The device's list of the extents that the kernel has accepted.

use super::outcome::{DynamicError, Obstacle, Outcome};
use super::{DynamicMemory, Lender, range_of};
use crate::kernel::engine::Engine;
use crate::kernel::fatal::give_up;
use hotmem::State;
use hotmem_cxl::command::{ExtentPage, get_extents, opcode};

/// The number of extents that are read at once.
const EXTENTS_AT_ONCE: u32 = 64;

impl DynamicMemory {
    /// Puts online what was accepted before boot.
    #[inline(never)]
    pub(super) fn adopt(
        &mut self,
        lender: &mut Lender<'_>,
        engine: &mut Engine,
        report: &mut dyn FnMut(Outcome<'_>),
    ) -> Result<(), DynamicError> {
        let (mut listed, mut total_before) = (0, u32::MAX);
        loop {
            // The buffer is needed for other commands before the next extent is read.
            let len = lender.command(opcode::GET_EXTENTS, &get_extents(listed, 1))?;
            let page = ExtentPage::read(&lender.buffer[..len])?;
            let total = page.total;
            if total >= total_before {
                give_up("CXL: the device lists an extent that was given back");
            }
            let Some(extent) = page.extents().next().filter(|_| listed < total) else {
                return self.check(lender, engine);
            };
            self.capacity.adopt(extent)?;
            let range = range_of(lender.plan, extent).ok_or(Obstacle::Addresses);
            match range.and_then(|range| self.add(range, engine).map(|()| range)) {
                Ok(range) => {
                    report(Outcome::Added(range));
                    listed += 1;
                }
                Err(obstacle) => {
                    report(Outcome::Refused(self.range, &obstacle));
                    self.give_back(extent, lender)?;
                    total_before = total;
                }
            }
        }
    }

    /// Compares what is accepted with the device's list, and with the engine. Ends the run if they
    /// differ.
    #[inline(never)]
    pub(super) fn check(
        &mut self,
        lender: &mut Lender<'_>,
        engine: &Engine,
    ) -> Result<(), DynamicError> {
        let (mut first, mut listed) = (0, 0);
        loop {
            let payload = get_extents(first, EXTENTS_AT_ONCE);
            let len = lender.command(opcode::GET_EXTENTS, &payload)?;
            let page = ExtentPage::read(&lender.buffer[..len])?;
            for extent in page.extents() {
                let is_accepted = self.capacity.accepted().iter().any(|one| {
                    extent.start >= one.start
                        && extent.start.saturating_add(extent.len) <= one.start + one.len
                });
                if !is_accepted {
                    give_up(format_args!(
                        "CXL: the device lists {extent:x?}, which is not accepted"
                    ));
                }
                // A device may list an extent twice.
                listed = u64::saturating_add(listed, extent.len);
                first += 1;
            }
            if first >= page.total || page.extents().next().is_none() {
                break;
            }
        }
        let accepted: u64 = self.capacity.accepted().iter().map(|extent| extent.len).sum();
        let mut present = 0;
        let mut rest = self.range;
        while !rest.is_empty() {
            let (run, state) = engine.hotplug.state_at(rest.start(), rest.end());
            if state != State::Absent {
                present += run.bytes().0;
            }
            rest = rest.split_at(run.end()).1;
        }
        if listed != accepted || present != accepted {
            give_up(format_args!(
                "CXL: {accepted} bytes are accepted, {listed} listed, {present} present"
            ));
        }
        Ok(())
    }
}
