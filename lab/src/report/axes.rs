//! Logarithmic axes of plots, and labels.

use crate::table;
use plotters::{
    coord::combinators::{LogCoord, WithKeyPoints},
    prelude::{BindKeyPoints, IntoLogRange},
};
use std::ops::Range;

pub(super) type LogAxis = WithKeyPoints<LogCoord<f64>>;

/// Returns a logarithmic axis with labels at 1, 2 and 5 times powers of ten. If these are more than
/// `max_labels`, the labels are at 1 and 3 times powers of ten, or at some powers of ten.
pub(super) fn log_axis(range: &Range<f64>, max_labels: f64) -> LogAxis {
    let decades = (range.end / range.start).log10();
    let steps: &[f64] = if decades * 3.0 <= max_labels {
        &[1.0, 2.0, 5.0]
    } else if decades * 2.0 <= max_labels {
        &[1.0, 3.0]
    } else {
        &[1.0]
    };
    #[expect(clippy::cast_possible_truncation, reason = "a float's powers of ten fit in an `i32`")]
    let (first, last, interval) = (
        range.start.log10().floor() as i32,
        range.end.log10().ceil() as i32,
        (decades / max_labels).ceil().max(1.0) as usize,
    );
    let powers =
        (first..=last).filter(|power| (power.unsigned_abs() as usize).is_multiple_of(interval));
    let labels = powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    let labels = labels.filter(|label| range.contains(label)).collect();
    range.clone().log_scale().with_key_points(labels)
}

/// Returns a logarithmic axis with labels at the positions, at most six of them.
pub(super) fn positions_axis(range: &Range<f64>, positions: impl Iterator<Item = f64>) -> LogAxis {
    let mut positions: Vec<_> = positions.collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    let interval = positions.len().div_ceil(6).max(1);
    let positions = positions.into_iter().step_by(interval).collect();
    range.clone().log_scale().with_key_points(positions)
}

/// Returns the range that covers all pairs of a low and a high value.
pub(super) fn extent(values: impl Iterator<Item = (f64, f64)>) -> Option<Range<f64>> {
    values.fold(None, |range: Option<Range<f64>>, (low, high)| {
        let range = range.unwrap_or(low..high);
        Some(range.start.min(low)..range.end.max(high))
    })
}

/// Formats a value in a readable unit.
pub(super) fn value_label(unit: &str, value: f64) -> String {
    match unit {
        "s" => table::seconds(value),
        "ns" => table::seconds(value * 1e-9),
        "MiB" => bytes(value * f64::from(1 << 20)),
        _ if value >= 1e6 => format!("{} million", table::figures(value / 1e6)),
        _ => table::figures(value),
    }
}

/// Formats a number of bytes in the largest unit of which there is at least one.
pub(super) fn bytes(value: f64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let in_unit = |shift: u32| value / 2_f64.powi(shift.try_into().unwrap_or(0));
    let unit = units.into_iter().find(|&(shift, _)| in_unit(shift) >= 1.0);
    unit.map_or_else(
        || format!("{value:.0} B"),
        |(shift, name)| format!("{} {name}", table::figures(in_unit(shift))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(range: Range<f64>) -> Vec<f64> {
        log_axis(&range, 6.0).bold_points().to_vec()
    }

    #[test]
    fn a_logarithmic_axis_has_a_few_labels_at_round_values() {
        assert_eq!(labels(0.9..60.0), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(labels(0.9..200.0), [1.0, 3.0, 10.0, 30.0, 100.0]);
        assert_eq!(labels(1.0..2e5), [1.0, 10.0, 100.0, 1000.0, 1e4, 1e5]);
        assert!((3..=7).contains(&labels(1.0..1e15).len()));
    }

    #[test]
    fn sizes_have_the_unit_that_fits() {
        assert_eq!([bytes(512.0), bytes(2_f64.powi(42))], ["512 B", "4 TiB"]);
    }

    #[test]
    fn the_extent_covers_all_spreads() {
        assert_eq!(extent([(2.0, 3.0), (1.0, 2.5)].into_iter()), Some(1.0..3.0));
        assert_eq!(extent(std::iter::empty()), None);
    }
}
