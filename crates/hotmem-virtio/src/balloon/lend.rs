//! Allocates memory to give to the host, and frees what the host has given back.

use super::frame_list::FrameList;
use hotmem::{AllocError, AllocRequest, LentMemory, Pfn, PfnRange, Platform};
use hotmem_invariant::OrRecordViolation;

/// Frees all that is lent, except for the frames of `kept`.
pub(super) fn free_all_but<P: Platform>(lender: &mut LentMemory<'_, P>, kept: PfnRange) {
    let mut end = Pfn::LIMIT;
    while let Some(run) =
        PfnRange::new(Pfn::ZERO, end).and_then(|below| lender.highest_in(below, u64::MAX))
    {
        let (below, rest) = run.split_at(kept.start());
        let above = rest.split_at(kept.end()).1;
        for part in [below, above].into_iter().filter(|part| !part.is_empty()) {
            lender.free(part).or_record_violation();
        }
        end = run.start();
    }
}

/// Allocates movable memory to give to the host, if there is some. While memory is being removed (the
/// first range of `avoid`), allocates kernel memory first, because movable memory may be removed next.
///
/// A request can name only frames below a limit. The bound also makes the search begin at the lowest
/// memory, which is used most, so that the host gets this memory, and the guest keeps memory that it
/// may never have touched.
pub(super) fn lend<P: Platform>(
    lender: &mut LentMemory<'_, P>,
    request: AllocRequest,
    avoid: &[PfnRange],
) -> Result<PfnRange, AllocError> {
    let request = request.within(..FrameList::FRAME_LIMIT);
    if avoid.first().is_some_and(|to_remove| !to_remove.is_empty())
        && let Ok(range) = lender.allocate(request, avoid)
    {
        return Ok(range);
    }
    lender.allocate(request.movable(), avoid)
}
