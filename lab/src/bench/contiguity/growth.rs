//! Computes how time and probes grow with the size of the memory.

use super::steps::STEPS;
use crate::{
    bench::{
        record::{Metric, Record, Sample},
        subject::Subject,
    },
    guest::Policy,
    size,
};
use hotmem::Bytes;

pub(super) const TIME: Metric = ("time", "s");
pub(super) const PROBES: Metric = ("probes", "count");
/// The exponent of the growth of time.
pub(super) const TIME_GROWTH: Metric = ("growth_exponent", "count");
/// The metrics that grow with the size of the memory. For each, the second metric is the exponent
/// of its growth.
const EXPONENTS: [(Metric, Metric); 2] =
    [(TIME, TIME_GROWTH), (PROBES, ("probes_growth_exponent", "count"))];

/// Adds the exponents by which time and probes grow with the size. An exponent is the slope of
/// the line through the logarithms of the medians: 1 means linear growth, and 2 quadratic growth.
/// The policy `offline` has no exponents of probes, because memory that stays offline needs no
/// probes.
pub(super) fn add_growth(sample: &mut Sample, sizes: &[Bytes], policies: &[Policy]) {
    let records = sample.records();
    let cases = policies.iter().flat_map(|policy| STEPS.map(|step| format!("{policy}/{step}")));
    for (case, subject) in cases.flat_map(|case| {
        [Subject::Baseline, Subject::Hotmem].map(|subject| (case.clone(), subject.name()))
    }) {
        for (metric, exponent) in EXPONENTS {
            let points = sizes.iter().filter_map(|&size| {
                let case = format!("{}/{case}", size::short(size));
                let is_match =
                    |r: &&Record| r.case == case && r.subject == subject && r.has_metric(metric);
                #[allow(clippy::cast_precision_loss, reason = "only its logarithm is used")]
                let point = |r: &Record| ((size.0 as f64).ln(), r.median.ln());
                records.iter().find(is_match).filter(|r| r.median > 0.0).map(point)
            });
            let points: Vec<_> = points.collect();
            if points.len() >= 2 {
                sample.add(&case, subject, exponent, slope(&points));
            }
        }
    }
}

/// Fits a line to the points by least squares, and returns its slope.
pub(super) fn slope(points: &[(f64, f64)]) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "there are few points")]
    let n = points.len() as f64;
    let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let variance: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    covariance / variance
}
