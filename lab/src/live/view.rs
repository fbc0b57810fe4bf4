//! Draws the state of a guest's memory: a bar for each size, and the latest events.

use super::state::State;
use crate::size::about;
use hotmem::Bytes;
use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Color, Style},
    text::{Line, Span},
    widgets::{Gauge, Paragraph},
};
use std::time::Duration;

/// The number of lines: a bar for each of five sizes, and events below them.
pub(super) const HEIGHT: u16 = 12;
const BARS: u16 = 5;

/// Draws `state` as it is `now`.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, step: &str, now: Duration) {
    let [title, bars, events, rest] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(BARS),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let heading = format!("guest of {}, {:.1} s: {step}", about(state.boot), now.as_secs_f64());
    frame.render_widget(Paragraph::new(heading), title);
    let most = state.most();
    let sizes = [
        ("requested", state.boot + state.requested, Color::DarkGray),
        ("plugged", state.boot + state.plugged, Color::Blue),
        ("online", state.online, Color::Cyan),
        ("used", state.used, Color::Yellow),
        ("on the host", state.resident, Color::Magenta),
    ];
    let lines = Layout::vertical([Constraint::Length(1); BARS as usize]).split(bars);
    for ((name, size, colour), &line) in sizes.into_iter().zip(lines.iter()) {
        let columns = Layout::horizontal([Constraint::Length(13), Constraint::Min(10)]);
        let [label, bar] = columns.areas(line);
        frame.render_widget(Paragraph::new(name), label);
        let gauge = Gauge::default()
            .gauge_style(Style::default().fg(colour))
            .use_unicode(true)
            .label(about(size))
            .ratio(share(size, most));
        frame.render_widget(gauge, bar);
    }
    let shown = state.events.iter().take(events.height.into()).map(|(at, line)| {
        let time = format!("{:>8.3} s  ", at.as_secs_f64());
        Line::from(vec![Span::styled(time, Style::default().fg(Color::DarkGray)), line.into()])
    });
    frame.render_widget(Paragraph::new(shown.collect::<Vec<_>>()), events);
    // Setting its position shows the cursor, so that it stays visible if the program is
    // interrupted.
    frame.set_cursor_position((rest.x, rest.y));
}

#[expect(clippy::cast_precision_loss, reason = "the length of a bar")]
fn share(size: Bytes, most: Bytes) -> f64 {
    (size.0 as f64 / most.0.max(1) as f64).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::Seen;
    use ratatui::{Terminal, backend::TestBackend};

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let now = Duration::from_millis(1500);
        terminal.draw(|frame| draw(frame, state, "plug 1GiB", now)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn all_sizes_and_the_latest_events_are_shown() {
        let mut state = State { boot: Bytes::mib(128), ..State::default() };
        state.see(Duration::from_millis(250), &Seen::Requested(Bytes::gib(1)));
        state.see(Duration::from_millis(260), &Seen::Plugged(Bytes::gib(1)));
        state.resident = Bytes::mib(64);
        let text = drawn(&state, 70, HEIGHT);
        for part in [
            "guest of 128.0 MiB, 1.5 s: plug 1GiB",
            "requested",
            "1.1 GiB",
            "on the host",
            "64.0 MiB",
            "0.250 s  the device is asked for 1.0 GiB",
            "█",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
    }

    #[test]
    fn drawing_to_a_small_terminal_works() {
        for (width, height) in [(1, 1), (12, 3), (200, 4)] {
            drawn(&State::default(), width, height);
        }
        assert_eq!(share(Bytes(3), Bytes::ZERO), 1.0);
    }
}
