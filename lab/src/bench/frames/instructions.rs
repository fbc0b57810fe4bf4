//! Counts the instructions of an operation.

use super::case::Case;
use super::program::program;
use crate::bench::callgrind;
use anyhow::{Result, ensure};

/// The instructions of an operation.
#[derive(Clone, Copy)]
pub(super) struct Instructions {
    pub(super) mean: f64,
    /// Those of the operation that executes most, if each was counted.
    pub(super) most: Option<f64>,
}

/// Counts the instructions of a case.
pub(super) fn count(case: &Case) -> Result<Instructions> {
    let operations = case.counted_operations();
    let program = program(case.subject)?;
    let arguments = [case.arguments(operations), vec!["--counts-instructions".into()]].concat();
    if !case.counts_each_operation() {
        let total = callgrind::count_requested(&program, &arguments)?;
        return Ok(Instructions { mean: total / operations as f64, most: None });
    }
    let counts = callgrind::count_parts(&program, &arguments)?;
    ensure!(counts.len() as u64 == operations, "valgrind counted {} operations", counts.len());
    let mean = counts.iter().sum::<f64>() / operations as f64;
    Ok(Instructions { mean, most: counts.into_iter().reduce(f64::max) })
}
