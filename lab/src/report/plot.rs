//! Draws the plots of the report as SVG within the page, with the page's colours.

use super::{
    axes::{extent, log_axis, positions_axis, value_label},
    sections::{Cases, Plot},
    series::Series,
};
use crate::bench::record::Record;
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

/// Draws the plot. Returns `None` if there are no points, or all have the same position on the
/// first axis.
///
/// # Errors
/// The library cannot draw the plot.
pub(super) fn svg(plot: &Plot, series: &[Series<'_>]) -> Result<Option<String>> {
    let points = series.iter().flat_map(|series| &series.points);
    let x = extent(points.clone().map(|&(position, _)| (position, position)));
    let y = extent(points.clone().map(|(_, record)| (record.min, record.max)));
    let (Some(x), Some(y)) = (x, y) else { return Ok(None) };
    let is_single = match plot.cases {
        Cases::Named(_) => points.count() < 2,
        _ => x.start == x.end,
    };
    if is_single {
        return Ok(None);
    }
    let positions =
        series.iter().flat_map(|series| series.points.iter().map(|&(position, _)| position));
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, PIXELS).into_drawing_area();
        let from_zero = |range: &Range<f64>| 0.0..range.end * 1.08;
        let padded = |range: &Range<f64>| (range.start / 1.3)..(range.end * 1.3);
        let drawn = match (&plot.cases, plot.is_logarithmic) {
            (Cases::Named(cases), log) => {
                // The first case is at the top.
                let rows = f64::from(u32::try_from(cases.len()).unwrap_or(1));
                let y_positions = (rows - 0.5)..-0.5;
                if log {
                    draw_named(plot, series, &area, log_axis(&padded(&y), 4.0), y_positions)
                } else {
                    draw_named(plot, series, &area, from_zero(&y), y_positions)
                }
            }
            (_, log) => match (plot.has_logarithmic_positions(), log) {
                (true, true) => {
                    let x = positions_axis(&padded(&x), positions);
                    draw(plot, series, &area, x, log_axis(&padded(&y), 6.0))
                }
                (true, false) => {
                    draw(plot, series, &area, positions_axis(&padded(&x), positions), from_zero(&y))
                }
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
            0 => $chart.draw_series($points.map(|point| Circle::new(point, 4, $style)))?,
            1 => $chart.draw_series($points.map(|point| TriangleMarker::new(point, 6, $style)))?,
            _ => $chart.draw_series($points.map(|point| Cross::new(point, 4, $style)))?,
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
        .x_label_formatter(&|&position| plot.position_name(position))
        .y_label_formatter(&|&value| value_label(unit, value))
        .draw()?;
    for (nth, Series { points, .. }) in series.iter().enumerate() {
        let style = style(nth);
        chart.draw_series([PathElement::new(
            points.iter().map(|(x, record)| (*x, record.median)).collect::<Vec<_>>(),
            style,
        )])?;
        chart.draw_series(points.iter().map(|(x, record)| {
            PathElement::new(vec![(*x, record.min), (*x, record.max)], style)
        }))?;
        let median = |&(x, record): &(f64, &Record)| (x, record.median);
        mark!(chart, nth, points.iter().map(median), style);
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
        .y_label_formatter(&|&position| plot.position_name(position))
        .draw()?;
    let series_count = series.len() as f64;
    for (nth, Series { points, .. }) in series.iter().enumerate() {
        let style = style(nth);
        // The series of a case lie one below the other.
        let shift = (nth as f64 - (series_count - 1.0) / 2.0) * 0.16;
        chart.draw_series(points.iter().map(|(row, record)| {
            PathElement::new(vec![(record.min, row + shift), (record.max, row + shift)], style)
        }))?;
        let median = |&(row, record): &(f64, &Record)| (record.median, row + shift);
        mark!(chart, nth, points.iter().map(median), style);
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
            file::tests::records,
            rows::{Lookup, tests::no_external_figures},
            sections::SECTIONS,
            series::series,
        },
        *,
    };

    const PLUG: &str = "online_movable/plug";

    /// Draws the plot of plug times from cases, subjects and seconds.
    fn plug_plot(values: &[(&str, &str, f64)]) -> Option<String> {
        let records = records(values);
        let external = no_external_figures();
        let lookup = Lookup::new(&records, &external);
        let plot = &SECTIONS[0].plots[0];
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
        let svg = plug_plot(&values).unwrap();
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
        let svg = plug_plot(&[(&a, "hotmem-64B", 0.1), (&b, "linux", 4.0)]).unwrap();
        assert!(!svg.contains("http") && !svg.contains("#0"), "{svg}");
        for part in ["--s0", "--s1", "--grid", "currentColor", "aria-label=\"Plug, by size\""] {
            assert!(svg.contains(part), "no `{part}` in {svg}");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn a_plot_needs_two_points() {
        assert!(plug_plot(&[]).is_none());
        assert!(plug_plot(&[(&format!("4G/{PLUG}"), "linux", 4.0)]).is_none());
        // The subject says that Linux did not finish. Its value is the time limit and not a
        // measurement, so it is no point.
        let not_done = (&*format!("16G/{PLUG}"), "linux (not done)", 60.0);
        assert!(plug_plot(&[(&format!("4G/{PLUG}"), "linux", 4.0), not_done]).is_none());
    }
}
