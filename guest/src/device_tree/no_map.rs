//! Takes memory out of the RAM that must not be mapped.
//!
//! A processor may read memory that is mapped as RAM without being told to, so the kernel maps no part of
//! such memory (Devicetree Specification 0.4, 3.5.4, `no-map`).

use super::error::TreeError;
use super::node::{MAX_RANGES, Range, Ranges};
use crate::fixed_list::FixedList;

/// The size of a page of the direct map. A page is mapped as a whole.
const PAGE: u64 = 2 << 20;

/// Returns the pages of the direct map that `range` touches, as far as their end is an address.
pub(super) fn pages_touched_by(range: Range) -> Range {
    let start = range.start & !(PAGE - 1);
    let end = (range.start + range.len).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    Range { start, len: end - start }
}

/// Returns the parts of `ram` that lie outside all `holes`.
pub(super) fn cut<'t>(ram: &Ranges, holes: &[Range]) -> Result<Ranges, TreeError<'t>> {
    let mut parts = *ram;
    for hole in holes {
        let (hole_start, hole_end) = (hole.start, hole.start + hole.len);
        let mut rest = FixedList::<Range, MAX_RANGES>::empty(Range::EMPTY);
        for part in parts.iter() {
            let (start, end) = (part.start, part.start + part.len);
            let below = (start, end.min(hole_start));
            let above = (start.max(hole_end), end);
            for (start, end) in [below, above] {
                if start < end {
                    let pushed = rest.push(Range { start, len: end - start });
                    pushed.map_err(|full| TreeError::too_many("ranges of RAM", full))?;
                }
            }
        }
        parts = rest;
    }
    Ok(parts)
}
