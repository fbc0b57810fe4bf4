//! The points of a plot: finds the records of its cases, and their positions on the first axis.

use super::{
    axes::{bytes, value_label},
    rows::Lookup,
    sections::{Cases, Plot},
};
use crate::{bench::record::Record, size};

/// The points of one subject in a plot.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    /// The records, each with its position on the first axis.
    pub(super) points: Vec<(f64, &'a Record)>,
}

/// Returns the series that have points.
pub(super) fn series<'a>(plot: &'a Plot, lookup: &Lookup<'a>) -> Vec<Series<'a>> {
    let key = (plot.bench, plot.metric);
    let all = plot.subjects.iter().map(|&(name, subject)| {
        let by_wildcard = |case: &str, position: &dyn Fn(&str) -> Option<f64>| {
            let found = lookup.matching(key, subject, case).into_iter();
            found.filter_map(|(matched, record)| Some((position(&matched)?, record))).collect()
        };
        let at_position = |case: &str, position: f64| {
            let found = lookup.matching(key, subject, case);
            found.first().map(|&(_, record)| (position, record))
        };
        let mut points: Vec<_> = match &plot.cases {
            #[expect(clippy::cast_precision_loss, reason = "the position in a plot")]
            Cases::Sizes(case) => {
                by_wildcard(case, &|matched| size::parse(matched).ok().map(|size| size.0 as f64))
            }
            Cases::Numbers { case, .. } => by_wildcard(case, &last_number),
            Cases::Points { points, .. } => {
                points.iter().filter_map(|&(case, number)| at_position(case, number)).collect()
            }
            Cases::Named(cases) => (0_u8..)
                .zip(*cases)
                .filter_map(|(nth, (case, _))| at_position(case, f64::from(nth)))
                .collect(),
        };
        // A logarithmic axis has no position for zero.
        points.retain(|(position, record)| {
            record.is_measured()
                && (!plot.is_logarithmic || record.min > 0.0)
                && (*position > 0.0 || !plot.has_logarithmic_positions())
        });
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name, points }
    });
    all.filter(|series| !series.points.is_empty()).collect()
}

/// Returns the number at the start of the last part of `matched`, the text that the wildcards of a
/// pattern matched: 16 for `a/16threads`.
fn last_number(matched: &str) -> Option<f64> {
    let last = matched.rsplit('/').next()?;
    let digits: String = last.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

impl Plot {
    /// Returns whether the first axis is logarithmic.
    pub(super) fn has_logarithmic_positions(&self) -> bool {
        match self.cases {
            Cases::Sizes(_) | Cases::Points { .. } => true,
            Cases::Numbers { is_logarithmic, .. } => is_logarithmic,
            Cases::Named(_) => false,
        }
    }

    /// Returns the label of the first axis.
    pub(super) fn axis(&self) -> &str {
        match &self.cases {
            Cases::Sizes(_) => "size",
            Cases::Numbers { axis, .. } | Cases::Points { axis, .. } => axis,
            Cases::Named(_) => "",
        }
    }

    /// Returns the name of a position on the first axis.
    pub(super) fn position_name(&self, position: f64) -> String {
        match &self.cases {
            Cases::Sizes(_) => bytes(position),
            Cases::Numbers { .. } | Cases::Points { .. } => value_label("", position),
            Cases::Named(cases) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "the position of one of a few cases"
                )]
                let nth = position.round().max(0.0) as usize;
                let is_case = (position - position.round()).abs() < 0.01;
                cases.get(nth).filter(|_| is_case).map_or(String::new(), |&(_, name)| name.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sections::SECTIONS, *};

    #[test]
    fn positions_between_cases_have_no_name() {
        let mut plots = SECTIONS.iter().flat_map(|section| section.plots);
        let named = plots.find(|plot| matches!(plot.cases, Cases::Named(_))).unwrap();
        assert_eq!((named.position_name(0.0).is_empty(), &*named.position_name(0.5)), (false, ""));
    }
}
