//! Draws the plots of the report as SVG within the page, with the page's colours.

use super::{
    axes::{bytes, extent, log_axis, positions_axis, value_label},
    rows::Lookup,
    sections::{Cases, Plot},
};
use crate::{bench::record::Record, size};
use anyhow::{Result, anyhow};
use plotters::{
    coord::{
        ranged1d::{AsRangedCoord, ValueFormatter},
        types::RangedCoordf64,
    },
    prelude::{
        BLACK, ChartBuilder, Circle, Color, Cross, DrawingArea, IntoDrawingArea, PathElement,
        RGBColor, Ranged, SVGBackend, TriangleMarker,
    },
    style::{IntoFont, ShapeStyle},
};
use std::ops::Range;

/// The size of a plot. On a phone, the text of the plot is as large as the text of the page. On wider
/// screens it is somewhat larger.
const PIXELS: (u32, u32) = (520, 340);
const FONT: (&str, i32) = ("sans-serif", 14);
/// A placeholder for the colour of grid lines until the page's colours are inserted.
const GRID: RGBColor = RGBColor(1, 1, 1);
/// The number of colours that the page has for series.
pub(super) const COLOURS: usize = 4;

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
        let number = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        };
        let by_wildcard = |case: &str, number: &dyn Fn(&str) -> Option<f64>| {
            let found = lookup.matching(key, subject, case).into_iter();
            found.filter_map(|(star, record)| Some((number(&star)?, record))).collect()
        };
        let named = |case: &str, at: f64| {
            let found = lookup.matching(key, subject, case);
            found.first().map(|&(_, record)| (at, record))
        };
        let mut points: Vec<_> = match &plot.cases {
            #[expect(clippy::cast_precision_loss, reason = "the position in a plot")]
            Cases::Sizes(case) => {
                by_wildcard(case, &|star| size::parse(star).ok().map(|size| size.0 as f64))
            }
            Cases::Numbers { case, .. } => {
                by_wildcard(case, &|star| number(star.rsplit('/').next().unwrap_or(star)))
            }
            Cases::Points { points, .. } => {
                points.iter().filter_map(|&(case, at)| named(case, at)).collect()
            }
            Cases::Named(cases) => (0_u8..)
                .zip(*cases)
                .filter_map(|(nth, (case, _))| named(case, f64::from(nth)))
                .collect(),
        };
        // A logarithmic axis has no position for zero.
        points.retain(|(at, record)| {
            record.is_measured()
                && (!plot.is_logarithmic || record.min > 0.0)
                && (*at > 0.0 || !plot.is_log_in_x())
        });
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name, points }
    });
    all.filter(|series| !series.points.is_empty()).collect()
}

impl Plot {
    fn is_log_in_x(&self) -> bool {
        match self.cases {
            Cases::Sizes(_) | Cases::Points { .. } => true,
            Cases::Numbers { is_logarithmic, .. } => is_logarithmic,
            Cases::Named(_) => false,
        }
    }

    /// Returns the label of the first axis.
    fn axis(&self) -> &str {
        match &self.cases {
            Cases::Sizes(_) => "size",
            Cases::Numbers { axis, .. } | Cases::Points { axis, .. } => axis,
            Cases::Named(_) => "",
        }
    }

    /// Returns the name of a position on the first axis.
    pub(super) fn position_name(&self, at: f64) -> String {
        match &self.cases {
            Cases::Sizes(_) => bytes(at),
            Cases::Numbers { .. } | Cases::Points { .. } => value_label("", at),
            Cases::Named(cases) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "the position of one of a few cases"
                )]
                let nth = at.round().max(0.0) as usize;
                let is_case = (at - at.round()).abs() < 0.01;
                cases.get(nth).filter(|_| is_case).map_or(String::new(), |&(_, name)| name.into())
            }
        }
    }
}

/// Draws the plot. Returns `None` if there are no points, or all have the same position on the
/// first axis.
///
/// # Errors
/// The library cannot draw the plot.
pub(super) fn svg(plot: &Plot, series: &[Series<'_>]) -> Result<Option<String>> {
    let points = series.iter().flat_map(|series| &series.points);
    let (x, y) = (extent(points.clone().map(|&(at, _)| (at, at))), {
        extent(points.clone().map(|(_, record)| (record.min, record.max)))
    });
    let (Some(x), Some(y)) = (x, y) else { return Ok(None) };
    let is_single = match plot.cases {
        Cases::Named(_) => points.count() < 2,
        _ => x.start == x.end,
    };
    if is_single {
        return Ok(None);
    }
    let positions = || series.iter().flat_map(|series| series.points.iter().map(|&(at, _)| at));
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, PIXELS).into_drawing_area();
        let from_zero = |range: &Range<f64>| 0.0..range.end * 1.08;
        let padded = |range: &Range<f64>| (range.start / 1.3)..(range.end * 1.3);
        let drawn = match (&plot.cases, plot.is_logarithmic) {
            (Cases::Named(cases), log) => {
                // The first case is at the top.
                let positions = f64::from(u32::try_from(cases.len()).unwrap_or(1));
                let y_positions = (positions - 0.5)..-0.5;
                if log {
                    draw_named(plot, series, &area, log_axis(&padded(&y), 4.0), y_positions)
                } else {
                    draw_named(plot, series, &area, from_zero(&y), y_positions)
                }
            }
            (_, log) => match (plot.is_log_in_x(), log) {
                (true, true) => {
                    let x = positions_axis(&padded(&x), positions());
                    draw(plot, series, &area, x, log_axis(&padded(&y), 6.0))
                }
                (true, false) => draw(
                    plot,
                    series,
                    &area,
                    positions_axis(&padded(&x), positions()),
                    from_zero(&y),
                ),
                (false, true) => {
                    draw(plot, series, &area, from_zero(&x), log_axis(&padded(&y), 6.0))
                }
                (false, false) => draw(plot, series, &area, from_zero(&x), from_zero(&y)),
            },
        };
        drawn.map_err(|error| anyhow!("{}: {error}", plot.title))?;
    }
    Ok(Some(for_the_page(&text, plot.title)))
}

/// Marks points with a shape that distinguishes the series without colours.
macro_rules! mark {
    ($chart:ident, $nth:expr, $points:expr, $style:ident) => {
        match $nth % 3 {
            0 => $chart.draw_series($points.map(|at| Circle::new(at, 4, $style)))?,
            1 => $chart.draw_series($points.map(|at| TriangleMarker::new(at, 6, $style)))?,
            _ => $chart.draw_series($points.map(|at| Cross::new(at, 4, $style)))?,
        }
    };
}

type DrawResult = Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn style(nth: usize) -> ShapeStyle {
    ShapeStyle { color: series_colour(nth).to_rgba(), filled: true, stroke_width: 2 }
}

/// Returns the unit of all values.
fn unit<'a>(series: &'a [Series<'_>]) -> &'a str {
    let first = series.first().and_then(|series| series.points.first());
    first.map_or("", |(_, record)| &record.unit)
}

/// Draws lines with a whisker from the least to the greatest value at each point.
fn draw<X, Y>(plot: &Plot, series: &[Series<'_>], area: &Area<'_>, x: X, y: Y) -> DrawResult
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let unit = unit(series);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .label_style(FONT.into_font().color(&BLACK))
        .x_labels(6)
        .y_labels(7)
        .x_desc(plot.axis())
        .x_label_formatter(&|&at| plot.position_name(at))
        .y_label_formatter(&|&value| value_label(unit, value))
        .draw()?;
    for (nth, Series { points, .. }) in series.iter().enumerate() {
        let style = style(nth);
        chart.draw_series([PathElement::new(
            points.iter().map(|(at, record)| (*at, record.median)).collect::<Vec<_>>(),
            style,
        )])?;
        chart.draw_series(points.iter().map(|(at, record)| {
            PathElement::new(vec![(*at, record.min), (*at, record.max)], style)
        }))?;
        let at = |&(at, record): &(f64, &Record)| (at, record.median);
        mark!(chart, nth, points.iter().map(at), style);
    }
    area.present()?;
    Ok(())
}

/// Draws a row of dots for each case, with a whisker from the least to the greatest value.
fn draw_named<X>(
    plot: &Plot,
    series: &[Series<'_>],
    area: &Area<'_>,
    x: X,
    y: Range<f64>,
) -> DrawResult
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let y: RangedCoordf64 = y.into();
    let unit = unit(series);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(30)
        .y_label_area_size(150)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .label_style(FONT.into_font().color(&BLACK))
        .x_labels(5)
        .y_labels(12)
        .x_label_formatter(&|&value| value_label(unit, value))
        .y_label_formatter(&|&at| plot.position_name(at))
        .draw()?;
    let many = series.len() as f64;
    for (nth, Series { points, .. }) in series.iter().enumerate() {
        let style = style(nth);
        // The series of a case lie one below the other.
        let shift = (nth as f64 - (many - 1.0) / 2.0) * 0.16;
        chart.draw_series(points.iter().map(|(at, record)| {
            PathElement::new(vec![(record.min, at + shift), (record.max, at + shift)], style)
        }))?;
        let at = |&(at, record): &(f64, &Record)| (record.median, at + shift);
        mark!(chart, nth, points.iter().map(at), style);
    }
    area.present()?;
    Ok(())
}

/// Returns a placeholder for the colour of a series until the page's colours are inserted.
fn series_colour(nth: usize) -> RGBColor {
    RGBColor(2, 2, u8::try_from(nth % COLOURS).unwrap_or(0))
}

/// Turns the library's SVG into one for the page, with a title, the page's colours and a flexible
/// width.
fn for_the_page(svg: &str, title: &str) -> String {
    let mut text = svg.replace("#000000", "currentColor");
    let mut colour = |placeholder: RGBColor, name: &str| {
        let RGBColor(r, g, b) = placeholder;
        let hex = format!("#{r:02X}{g:02X}{b:02X}");
        for property in ["stroke", "fill"] {
            let style = format!("style=\"{property}:var(--{name})\"");
            text = text.replace(&format!("{property}=\"{hex}\""), &style);
        }
    };
    colour(GRID, "grid");
    for nth in 0..COLOURS {
        colour(series_colour(nth), &format!("s{nth}"));
    }
    let begin = text.find("<svg").unwrap_or(0);
    let inside = text[begin..].split_once('>').map_or("", |(_, inside)| inside);
    let (width, height) = PIXELS;
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">{}",
        inside.trim_start()
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            file::{BenchRun, tests::records},
            sections::SECTIONS,
        },
        *,
    };

    fn empty_step() -> BenchRun {
        BenchRun {
            step: "by hand".into(),
            command: String::new(),
            visits: 1,
            seconds: 0.0,
            records: vec![],
        }
    }

    const PLUG: &str = "online_movable/plug";

    fn draw_series(values: &[(&str, &str, f64)], nth: usize) -> Option<String> {
        let records = records(values);
        let none = empty_step();
        let lookup = Lookup::new(&records, &none);
        let plot = &SECTIONS[0].plots[nth];
        svg(plot, &series(plot, &lookup)).unwrap()
    }

    /// Returns the points of the first line that is drawn.
    fn first_line(svg: &str) -> Vec<(f64, f64)> {
        let line = svg.split("<polyline").find(|line| line.contains("--s0")).unwrap();
        let points = line.split_once("points=\"").unwrap().1.split_once('"').unwrap().0;
        let point = |text: &str| {
            let (x, y) = text.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        points.split_whitespace().map(point).collect()
    }

    #[test]
    fn equal_ratios_are_equal_distances_on_logarithmic_axes() {
        let case = |size: u32| format!("{size}G/{PLUG}");
        let cases = [case(4), case(16), case(64)];
        let values: Vec<_> = cases
            .iter()
            .zip([0.01, 0.1, 1.0])
            .map(|(case, value)| (&**case, "hotmem-64B", value))
            .collect();
        let svg = draw_series(&values, 0).unwrap();
        let [a, b, c] = first_line(&svg)[..] else { panic!("{svg}") };
        assert!(((b.0 - a.0) - (c.0 - b.0)).abs() <= 1.5, "{a:?} {b:?} {c:?}");
        assert!(((a.1 - b.1) - (b.1 - c.1)).abs() <= 1.5, "{a:?} {b:?} {c:?}");
        assert!(a.0 < b.0 && a.1 > b.1, "to the right and upwards");
        for label in ["16 GiB", "100 ms", "1 s"] {
            assert!(svg.contains(label), "no `{label}` in {svg}");
        }
    }

    #[test]
    fn a_plot_refers_to_no_external_file_and_has_the_colours_of_the_page() {
        let (a, b) = (format!("4G/{PLUG}"), format!("16G/{PLUG}"));
        let svg = draw_series(&[(&a, "hotmem-64B", 0.1), (&b, "linux", 4.0)], 0).unwrap();
        assert!(!svg.contains("http") && !svg.contains("#0"), "{svg}");
        for part in ["--s0", "--s1", "--grid", "currentColor", "aria-label=\"Plug, by size\""] {
            assert!(svg.contains(part), "no `{part}` in {svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn a_plot_needs_two_points() {
        assert!(draw_series(&[], 0).is_none());
        assert!(draw_series(&[(&format!("4G/{PLUG}"), "linux", 4.0)], 0).is_none());
        // The subject says that Linux did not finish. Its value is the time limit and not a
        // measurement, so it is no point.
        let not_done = (&*format!("16G/{PLUG}"), "linux (not done)", 60.0);
        assert!(draw_series(&[(&format!("4G/{PLUG}"), "linux", 4.0), not_done], 0).is_none());
    }

    #[test]
    fn only_positions_of_cases_have_names() {
        let mut plots = SECTIONS.iter().flat_map(|section| section.plots);
        let named = plots.find(|plot| matches!(plot.cases, Cases::Named(_))).unwrap();
        assert_eq!((named.position_name(0.0).is_empty(), &*named.position_name(0.5)), (false, ""));
    }
}
