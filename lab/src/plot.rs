//! Draws a value over time in the terminal and as SVG.

use anyhow::{Context, Result, anyhow};
use plotters::prelude::{
    AreaSeries, ChartBuilder, Color, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, WHITE,
};
use std::path::Path;
use textplots::{Chart, LabelBuilder, LabelFormat, Plot, Shape};

/// The points, ordered by time: seconds and the measured value.
pub type Series = Vec<(f64, f64)>;

/// The size of the plot in the terminal, in dots. A character has 2 × 4 dots.
const TERMINAL_DOTS: (u32, u32) = (140, 48);
/// The size of the SVG in pixels.
const PIXELS: (u32, u32) = (900, 420);
const LINE: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);

/// Returns the plot for a terminal, in braille characters, or an empty string if all times or all
/// values are zero.
#[must_use]
pub fn text(series: &Series, unit: &str) -> String {
    let Some((last_time, max)) = extent(series) else { return String::new() };
    #[expect(clippy::cast_possible_truncation, reason = "the plot has some hundred dots")]
    let points: Vec<_> = series.iter().map(|&(x, y)| (x as f32, y as f32)).collect();
    #[expect(clippy::cast_possible_truncation, reason = "the plot has some hundred dots")]
    let (last_time, max) = (last_time as f32, max as f32);
    let shape = Shape::Steps(&points);
    let mut chart =
        Chart::new_with_y_range(TERMINAL_DOTS.0, TERMINAL_DOTS.1, 0.0, last_time, 0.0, max);
    let unit = unit.to_owned();
    let chart = chart
        .lineplot(&shape)
        .x_label_format(LabelFormat::Custom(Box::new(|x| format!("{x:.1} s"))))
        .y_label_format(LabelFormat::Custom(Box::new(move |y| format!("{y:.2} {unit}"))));
    chart.axis();
    chart.figures();
    chart.to_string()
}

/// Writes the plot as SVG.
///
/// # Errors
/// The file cannot be written, or all times or all values are zero.
pub fn svg(series: &Series, title: &str, unit: &str, path: &Path) -> Result<()> {
    let (last_time, max) =
        extent(series).context("all times or all values of the plot are zero")?;
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::new(path, PIXELS).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 20).into_font())
            .margin(16)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..last_time, 0.0..max * 1.05)?;
        chart.configure_mesh().light_line_style(WHITE).x_desc("s").y_desc(unit).draw()?;
        let line = AreaSeries::new(series.iter().copied(), 0.0, LINE.mix(0.2));
        chart.draw_series(line.border_style(LINE))?;
        area.present()?;
        Ok(())
    };
    draw()
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("writing {}", path.display()))
}

/// Returns the last time and the highest value, or `None` if either is zero.
fn extent(series: &Series) -> Option<(f64, f64)> {
    let last_time = series.last()?.0;
    let max = series.iter().map(|&(_, y)| y).fold(0.0, f64::max);
    (last_time > 0.0 && max > 0.0).then_some((last_time, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Series {
        (0..100).map(|n| (f64::from(n) / 10.0, if n < 50 { f64::from(n) } else { 3.0 })).collect()
    }

    #[test]
    fn the_plot_for_a_terminal_has_labels_and_lines() {
        let text = text(&example(), "GiB");
        for part in ["9.9 s", "49.00 GiB"] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
        assert!(text.lines().count() > 10, "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        assert_eq!(super::text(&Vec::new(), "GiB"), "");
    }

    #[test]
    fn the_written_file_is_an_svg_with_the_title() {
        let path = std::env::temp_dir().join(format!("hotmem-plot-{}.svg", std::process::id()));
        svg(&example(), "resident", "GiB", &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.starts_with("<svg") && text.contains("resident"), "{text}");
        assert!(svg(&Vec::new(), "", "", &path).is_err());
    }
}
