//! Shows progress on standard error, if it is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Returns a spinner on standard error. If standard error is not a terminal, nothing is drawn.
#[must_use]
pub fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// Returns a progress bar of `steps` steps on standard error. If standard error is not a terminal,
/// nothing is drawn.
#[must_use]
pub fn bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style)
}
