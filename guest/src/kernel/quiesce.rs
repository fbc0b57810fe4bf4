//! Waits until the other CPUs have finished a step of their work or freed their frames.

use hotmem_guest::signal::Signal;

/// The request to the other CPUs to free all frames that they hold.
static RELEASE: Signal = Signal::new();
/// The request to the other CPUs to finish their current step of work.
static FINISH_STEP: Signal = Signal::new();

/// Waits until each other CPU has finished its current step of work.
pub(crate) fn finish_steps_of_other_cpus() {
    FINISH_STEP.request();
}

/// Waits until all other CPUs have freed all frames that they hold.
pub(crate) fn free_frames_of_other_cpus() {
    RELEASE.request();
}

/// Answers both requests. CPU `cpu` calls this between two steps of its work. `release` frees all
/// frames that the CPU holds.
pub(crate) fn answer(cpu: usize, release: impl FnOnce()) {
    FINISH_STEP.answer(cpu, || {});
    RELEASE.answer(cpu, release);
}
