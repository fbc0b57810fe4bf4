//! Records the live view as an animated SVG, for a page that shows no terminal.

use ratatui::{
    buffer::{Buffer, Cell},
    style::{Color, Modifier},
};
use std::{fmt, time::Duration};

/// The size of a cell in pixels.
const CELL: (f64, f64) = (8.0, 17.0);
const MARGIN: f64 = 12.0;
/// The time for which the last drawing stays before the animation begins again.
const PAUSE: Duration = Duration::from_secs(4);
const BACKGROUND: &str = "#161b22";
const FOREGROUND: &str = "#e6edf3";

/// The drawings of a view, as lines that stay for a while.
#[derive(Default)]
pub struct Recording {
    /// For each line of the view, the drawings of it that differ from the one before.
    lines: Vec<Vec<(Duration, Vec<Span>)>>,
    width: u16,
    end: Duration,
}

/// Neighbouring cells with the same colours, all of which are text, or all of which are parts of a bar.
#[derive(Clone, PartialEq, Debug)]
struct Span {
    start: u16,
    is_bar: bool,
    text: String,
    foreground: Color,
    background: Color,
}

impl Recording {
    /// Adds the drawing that is shown from `now` on. Times do not decrease.
    pub(super) fn add(&mut self, now: Duration, drawing: &Buffer) {
        let area = drawing.area();
        (self.width, self.end) = (area.width, now);
        self.lines.resize(area.height.into(), Vec::new());
        for (y, line) in (area.y..).zip(&mut self.lines) {
            let spans = spans((0..area.width).map(|x| &drawing[(area.x + x, y)]));
            if line.last().is_none_or(|(_, last)| *last != spans) {
                line.push((now, spans));
            }
        }
    }
}

/// Returns the cells of a line as spans, without blank cells.
fn spans<'a>(cells: impl Iterator<Item = &'a Cell>) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (x, cell) in (0..).zip(cells) {
        let is_reversed = cell.modifier.contains(Modifier::REVERSED);
        let (foreground, background) =
            if is_reversed { (cell.bg, cell.fg) } else { (cell.fg, cell.bg) };
        let text = cell.symbol().to_owned();
        let is_bar = text.chars().any(|symbol| filled_share(symbol).is_some());
        let span = Span { start: x, is_bar, text, foreground, background };
        match spans.last_mut() {
            Some(last) if last.looks_like(&span) => last.text.push_str(&span.text),
            _ => spans.push(span),
        }
    }
    spans.retain(|span| span.background != Color::Reset || !span.text.trim().is_empty());
    spans
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f64::from(self.width) * CELL.0 + 2.0 * MARGIN;
        let height = self.lines.len() as f64 * CELL.1 + 2.0 * MARGIN;
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="monospace" font-size="13">"#
        )?;
        writeln!(f, r#"<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>"#)?;
        for (y, line) in self.lines.iter().enumerate() {
            let ends = line.iter().skip(1).map(|&(start, _)| Some(start)).chain([None]);
            for ((start, spans), end) in line.iter().zip(ends) {
                if !spans.is_empty() {
                    f.write_str(if end.is_some() { r#"<g opacity="0">"# } else { "<g>" })?;
                    self.write_visibility(f, *start, end)?;
                    spans.iter().try_for_each(|span| span.write(f, y))?;
                    f.write_str("</g>\n")?;
                }
            }
        }
        f.write_str("</svg>\n")
    }
}

impl Recording {
    /// Shows the element from `start` to `end`, or to the end of the animation. Viewers without animations
    /// show what the animation shows at its end.
    fn write_visibility(
        &self,
        f: &mut fmt::Formatter<'_>,
        start: Duration,
        end: Option<Duration>,
    ) -> fmt::Result {
        let duration = (self.end + PAUSE).as_secs_f64();
        let share = |time: Duration| time.as_secs_f64() / duration;
        let (values, times) = match end {
            Some(end) => ("0;1;0", format!("0;{:.4};{:.4}", share(start), share(end))),
            None => ("0;1", format!("0;{:.4}", share(start))),
        };
        write!(
            f,
            r#"<animate attributeName="opacity" calcMode="discrete" dur="{duration:.2}s" repeatCount="indefinite" values="{values}" keyTimes="{times}"/>"#
        )
    }
}

impl Span {
    fn looks_like(&self, other: &Span) -> bool {
        (self.is_bar, self.foreground, self.background)
            == (other.is_bar, other.foreground, other.background)
    }

    /// Draws the span in line `y`: its background, bars, and text.
    fn write(&self, f: &mut fmt::Formatter<'_>, y: usize) -> fmt::Result {
        let (x, top) = (MARGIN + f64::from(self.start) * CELL.0, MARGIN + y as f64 * CELL.1);
        let cells = self.text.chars().count() as f64;
        if self.background != Color::Reset {
            write_rectangle(f, x, top, cells, colour(self.background))?;
        }
        if self.is_bar {
            let bar = self.text.chars().filter_map(filled_share).sum();
            return write_rectangle(f, x, top, bar, colour(self.foreground));
        }
        let text = self.text.trim_end().replace('&', "&amp;").replace('<', "&lt;");
        let (baseline, colour) = (top + CELL.1 * 0.75, colour(self.foreground));
        write!(
            f,
            r#"<text x="{x}" y="{baseline}" fill="{colour}" xml:space="preserve">{text}</text>"#
        )
    }
}

fn write_rectangle(
    f: &mut fmt::Formatter<'_>,
    x: f64,
    top: f64,
    cells: f64,
    colour: &str,
) -> fmt::Result {
    let (width, height) = (cells * CELL.0, CELL.1 - 3.0);
    write!(f, r#"<rect x="{x}" y="{top}" width="{width:.2}" height="{height}" fill="{colour}"/>"#)
}

/// Returns the share of its cell that a character of a bar fills, from the left.
fn filled_share(symbol: char) -> Option<f64> {
    let eighths = u32::from('\u{2590}').checked_sub(u32::from(symbol))?;
    (1..=8).contains(&eighths).then(|| f64::from(eighths) / 8.0)
}

/// Returns the colour of the terminal as SVG has it.
const fn colour(colour: Color) -> &'static str {
    match colour {
        Color::DarkGray => "#6e7681",
        Color::Blue => "#388bfd",
        Color::Cyan => "#39c5cf",
        Color::Yellow => "#d29922",
        Color::Magenta => "#bc8cff",
        Color::Black => BACKGROUND,
        _ => FOREGROUND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_characters_of_bars_fill_shares_of_their_cells() {
        assert_eq!(
            [' ', '▏', '▌', '█', '▐'].map(filled_share),
            [None, Some(0.125), Some(0.5), Some(1.0), None]
        );
    }

    #[test]
    fn a_line_is_written_once_for_as_long_as_it_stays() {
        let mut recording = Recording::default();
        for (ms, lines) in [(0, ["a<b", "x"]), (500, ["a<b", "y"]), (1000, ["a<b", "y"])] {
            recording.add(Duration::from_millis(ms), &Buffer::with_lines(lines));
        }
        let svg = recording.to_string();
        assert_eq!((svg.matches("a&lt;b").count(), svg.matches("<text").count()), (1, 3), "{svg}");
        for times in [r#"values="0;1;0" keyTimes="0;0.0000;0.1000""#, r#"keyTimes="0;0.1000""#] {
            assert!(svg.contains(times), "no {times} in {svg}");
        }
    }
}
