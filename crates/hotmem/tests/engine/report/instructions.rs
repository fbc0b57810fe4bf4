//! Tests that a step takes as many instructions on a machine with four times the memory.

use super::step_cost::{all_frames, with_large_instance};
use super::*;
use crate::instruction_count;
use hotmem_testkit::env_number;

/// The environment variable with the number of sections for the process under valgrind.
const SECTIONS_VARIABLE: &str = "HOTMEM_REPORT_SECTIONS";
/// The number of sections in 1 TiB.
const SECTIONS_PER_TIB: u64 = 1 << 13;
/// The number of steps of each kind. They read at most 512 sections, fewer than a machine has.
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

/// Returns the average number of instructions of a step on a machine with this many sections.
fn instructions_per_step(sections: u64) -> f64 {
    let test = "report::instructions::a_step_costs_the_same_with_four_times_the_memory";
    let variable = (SECTIONS_VARIABLE, &*sections.to_string());
    let count = instruction_count::instructions(test, "counted_steps", variable);
    count / f64::from(2 * STEPS)
}

#[test]
fn a_step_costs_the_same_with_four_times_the_memory() {
    if let Ok(sections) = std::env::var(SECTIONS_VARIABLE) {
        return count_and_exit(sections.parse().unwrap());
    }
    if !instruction_count::can_count() {
        return;
    }
    // valgrind takes five seconds for each TiB. On small machines, where sections are small, steps read
    // more of them, and reading them takes little time.
    let is_whole = env_number("HOTMEM_DEEP").is_some() || cfg!(hotmem_geometry = "small");
    let sections = if is_whole { SECTIONS_PER_TIB } else { SECTIONS_PER_TIB / 4 };
    let (little, much) = (instructions_per_step(sections), instructions_per_step(4 * sections));
    println!("{little:.0} instructions a step with {sections} sections, {much:.0} with four times");
    assert!(little > 1000.0, "{little:.0} instructions are too few for a step");
    let percent = (much - little).abs() / little * 100.0;
    assert!(percent < TOLERANCE_PERCENT, "{little:.0} a step with {sections}, {much:.0} with more");
}
