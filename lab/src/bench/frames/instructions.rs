//! Counts the instructions of an operation.

use super::access_pattern::AccessPattern;
use super::case::Case;
use crate::bench::callgrind;
use anyhow::Result;

/// Returns the instructions of an operation. Runs the case with two numbers of operations, and
/// divides the difference of the counts by the number of additional operations.
pub(super) fn per_operation(case: &Case) -> Result<f64> {
    // A count has no noise, so fewer operations than for times are enough. Bulk traffic needs more
    // of them than the other patterns, because its rounds are long.
    let shift = if case.access == AccessPattern::Bulk { 2 } else { 6 };
    let operations = case.operations() >> shift;
    // Under valgrind a process has too few addresses to reserve those of the plugged memory.
    let count = |operations| {
        callgrind::count(&[case.arguments(operations), vec!["--unbacked".into()]].concat())
    };
    let (fewer, more) = (count(operations)?, count(2 * operations)?);
    Ok((more - fewer) / operations as f64)
}
