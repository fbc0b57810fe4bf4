//! Brings the other CPUs to a known point of their work.

use super::signal::Signal;

/// Asks the other CPUs to free all frames that they hold.
static RELEASE: Signal = Signal::new();
/// Asks the other CPUs to finish their current step of work.
static PASS: Signal = Signal::new();

/// Waits until each other CPU has finished its current step of work.
pub(crate) fn pass() {
    PASS.ask();
}

/// Waits until all other CPUs have freed the frames that they hold, which may lie anywhere.
pub(crate) fn release_all() {
    RELEASE.ask();
}

/// Answers both requests between two steps of a CPU's work; `release` frees its frames.
pub(crate) fn answer(cpu: usize, release: impl FnOnce()) {
    PASS.answer(cpu, || {});
    RELEASE.answer(cpu, release);
}
