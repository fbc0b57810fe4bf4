//! Tests that a step takes as many instructions on a machine of 4 TiB as on one of 1 TiB.

use super::step_cost::{all_frames, with_large_instance};
use super::*;
use crate::instruction_count;

/// The environment variable with the number of sections for the process under valgrind.
const SECTIONS_VARIABLE: &str = "HOTMEM_REPORT_SECTIONS";
/// The number of sections in 1 TiB.
const SECTIONS_PER_TIB: u64 = 1 << 13;
/// The number of steps of each kind.
const STEPS: u32 = 8;
/// The difference that the test tolerates.
const TOLERANCE_PERCENT: f64 = 2.0;

/// Makes steps of a reporter. valgrind counts the instructions of this function only.
#[inline(never)]
fn counted_steps(reporter: &mut Reporter<'_, &WakeupCount>) {
    for _ in 0..STEPS {
        let step = reporter.step(ms(1000));
        assert!(matches!(step, Step::Working | Step::Idle), "{step:?}");
    }
}

/// Counts steps over `sections` sections that must all be kept free, and over the same sections
/// when all are pinned. Ends the process then, because the validation of so much memory takes long
/// under valgrind.
fn count_and_exit(sections: u64) {
    with_large_instance(sections, |frames, hotplug| {
        let all = all_frames(sections);
        let settings = ReporterSettings { keep_free: all.bytes(), ..ReporterSettings::EAGER };
        counted_steps(&mut Reporter::new(frames, settings, Contents::Undefined).unwrap());
        hotplug.pin(all, |_| {}).unwrap();
        counted_steps(&mut eager_reporter(frames));
        std::process::exit(0);
    });
}

/// Returns the average number of instructions of a step on a machine of this many TiB.
fn instructions_per_step(tib: u64) -> f64 {
    let sections = (tib * SECTIONS_PER_TIB).to_string();
    let test = "report::instructions::a_step_costs_the_same_on_1_tib_and_on_4";
    let count =
        instruction_count::instructions(test, "counted_steps", (SECTIONS_VARIABLE, &sections));
    count / f64::from(2 * STEPS)
}

#[test]
fn a_step_costs_the_same_on_1_tib_and_on_4() {
    if let Ok(sections) = std::env::var(SECTIONS_VARIABLE) {
        return count_and_exit(sections.parse().unwrap());
    }
    if !instruction_count::can_count() {
        return;
    }
    let (one, four) = (instructions_per_step(1), instructions_per_step(4));
    println!("{one:.0} instructions a step with 1 TiB, {four:.0} with 4 TiB");
    assert!(one > 1000.0, "{one:.0} instructions are too few for a step");
    let percent = (four - one).abs() / one * 100.0;
    assert!(percent < TOLERANCE_PERCENT, "{one:.0} a step with 1 TiB, {four:.0} with 4 TiB");
}
