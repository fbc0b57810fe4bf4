//! Draws the state of a guest's memory: a bar for each amount of memory, and the latest events
//! below the bars.

use super::state::State;
use crate::size::approximate;
use hotmem::Bytes;
use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Color, Style},
    text::{Line, Span},
    widgets::{Gauge, Paragraph},
};
use std::time::Duration;

/// The number of lines of the view: the title, a line for each bar, the events, and an empty line.
pub(super) const HEIGHT: u16 = 12;
/// The number of bars, one for each size.
const BARS: u16 = 5;

/// Draws `state`. `step` says what the guest is doing, and `now` is the time since QEMU's start.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, step: &str, now: Duration) {
    let [title, bars, events, last_line] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(BARS),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let heading =
        format!("guest of {}, {:.1} s: {step}", approximate(state.boot_memory), now.as_secs_f64());
    frame.render_widget(Paragraph::new(heading), title);
    let largest_size = state.largest_size();
    let sizes = [
        ("requested", state.boot_memory + state.requested_size, Color::DarkGray),
        ("plugged", state.boot_memory + state.plugged, Color::Blue),
        ("online", state.online, Color::Cyan),
        ("used", state.used_memory, Color::Yellow),
        ("on the host", state.resident_memory, Color::Magenta),
    ];
    let lines = Layout::vertical([Constraint::Length(1); BARS as usize]).split(bars);
    for ((name, size, colour), &line) in sizes.into_iter().zip(lines.iter()) {
        let columns = Layout::horizontal([Constraint::Length(13), Constraint::Min(10)]);
        let [label, bar] = columns.areas(line);
        frame.render_widget(Paragraph::new(name), label);
        let gauge = Gauge::default()
            .gauge_style(Style::default().fg(colour))
            .use_unicode(true)
            .label(approximate(size))
            .ratio(share(size, largest_size));
        frame.render_widget(gauge, bar);
    }
    let shown = state.events.iter().take(events.height.into()).map(|(time, line)| {
        let time = format!("{:>8.3} s  ", time.as_secs_f64());
        Line::from(vec![Span::styled(time, Style::default().fg(Color::DarkGray)), line.into()])
    });
    frame.render_widget(Paragraph::new(shown.collect::<Vec<_>>()), events);
    // Setting the position makes the cursor visible, so that the terminal has a visible cursor if
    // the program is interrupted.
    frame.set_cursor_position((last_line.x, last_line.y));
}

#[expect(clippy::cast_precision_loss, reason = "the length of a bar")]
fn share(size: Bytes, largest_size: Bytes) -> f64 {
    (size.0 as f64 / largest_size.0.max(1) as f64).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::Observation;
    use ratatui::{Terminal, backend::TestBackend};

    fn draw_to_text(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let now = Duration::from_millis(1500);
        terminal.draw(|frame| draw(frame, state, "plug 1GiB", now)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_view_has_all_sizes_and_the_latest_events() {
        let mut state = State { boot_memory: Bytes::mib(128), ..State::default() };
        state.record(Duration::from_millis(250), &Observation::Requested(Bytes::gib(1)));
        state.record(Duration::from_millis(260), &Observation::Plugged(Bytes::gib(1)));
        state.resident_memory = Bytes::mib(64);
        let text = draw_to_text(&state, 70, HEIGHT);
        for part in [
            "guest of 128M, 1.5 s: plug 1GiB",
            "requested",
            "1.1G",
            "on the host",
            "64M",
            "0.250 s  the host requests 1G of the device",
            "█",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
    }

    #[test]
    fn drawing_to_a_small_terminal_does_not_panic() {
        for (width, height) in [(1, 1), (12, 3), (200, 4)] {
            draw_to_text(&State::default(), width, height);
        }
        assert_eq!(share(Bytes(3), Bytes::ZERO), 1.0);
    }
}
