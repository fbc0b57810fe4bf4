//! The plan of a report: the steps of the standard and of the quick set, in the order in which they run.

use super::{
    file::{BenchRun, Missing},
    sections::{Requirement, SECTIONS, Step},
};
use crate::{bench, linux::Linux, pseries::LinuxGuest, qemu::image, xen};

/// The order in which steps run. The second visits follow in the same order.
const ORDER: [&str; 36] = [
    "frames",
    "tails",
    "fragmentation",
    "heap",
    "memmap",
    "teardown-native",
    "dlpar",
    "dlpar-all",
    "dlpar-million",
    "give-back",
    "zeroing",
    "vm",
    "vm-cold",
    "vm-sizes",
    "vm-used",
    "vm-aarch64",
    "teardown-xen",
    "packing",
    "packing-aarch64",
    "contiguity",
    "contiguity-large",
    "contiguity-pc",
    "page-fault",
    "zeroing-guest",
    "nvdimm",
    "dimms",
    "cxl",
    "vm-instructions",
    "vm-aarch64-instructions",
    "vm-riscv64-instructions",
    "nvdimm-instructions",
    "memmap-instructions",
    "frames-instructions",
    "frames-counts",
    "ports",
    "dlpar-pseries",
];

/// Returns all steps, in the order in which they run.
pub(super) fn steps() -> impl Iterator<Item = &'static Step> {
    let named = |name: &str| {
        let mut steps = SECTIONS.iter().flat_map(|section| section.steps);
        steps.find(|step| step.name == name)
    };
    ORDER.into_iter().filter_map(named)
}

/// Returns whether a step counts the instructions of this process, which do not depend on the machine.
pub(super) fn is_count(name: &str) -> bool {
    steps().any(|step| step.name == name && step.requirement == Requirement::Valgrind)
}

/// One run of a step on this machine.
pub(super) struct PlannedRun {
    pub(super) step: &'static str,
    /// The number of the visit, from 1.
    pub(super) visit: u32,
    /// The command line after `hotmem`; empty if it cannot be run.
    pub(super) command: String,
    /// The seconds that the run takes on the machine of [`Step::seconds`].
    pub(super) seconds: u32,
    /// The subjects that this machine cannot measure.
    pub(super) missing: Option<Missing>,
}

impl PlannedRun {
    /// Returns whether `bench_run` includes this visit.
    pub(super) fn is_in(&self, bench_run: &BenchRun) -> bool {
        bench_run.visits >= self.visit
    }
}

/// Returns the steps of a set for which `wants` is true, with the subjects that are missing on this
/// machine.
pub(super) fn plan(quick: bool, wants: impl Fn(&Step) -> bool) -> Vec<PlannedRun> {
    let set = usize::from(quick);
    let wanted = || steps().filter(|step| wants(step) && !step.lines[set].is_empty());
    let visits = wanted().map(|step| step.visits[set]).max().unwrap_or(0);
    let visit = |visit| {
        let visited = wanted().filter(move |step| step.visits[set] >= visit);
        visited.map(move |step| PlannedRun { visit, ..on_this_machine(step, set) })
    };
    (1..=visits).flat_map(visit).collect()
}

/// Returns the first run of a step, without the subjects that are missing on this machine.
fn on_this_machine(step: &Step, set: usize) -> PlannedRun {
    let line = step.lines[set];
    let missing = |subject: &str, reason: String| {
        Some(Missing { step: step.name.into(), subject: subject.into(), reason })
    };
    let (line, missing) = match step.requirement {
        Requirement::Nothing => (line.to_owned(), None),
        Requirement::Guest(architecture) => match image::find_for(architecture, None) {
            Ok(_) => (line.to_owned(), None),
            Err(error) => (String::new(), missing("hotmem", format!("{error}"))),
        },
        Requirement::GuestAndLinux(architecture, drivers) => {
            match Linux::find(architecture, drivers) {
                Ok(_) => (line.to_owned(), None),
                Err(error) => (without_linux(line), missing("linux", format!("{error}"))),
            }
        }
        Requirement::Xen => match xen::Machine::find(None) {
            Ok(_) => (line.to_owned(), None),
            Err(error) => (String::new(), missing("all of Xen", format!("{error:#}"))),
        },
        Requirement::Pseries => match (image::find_pseries(None), LinuxGuest::find()) {
            (Err(error), _) => (String::new(), missing("hotmem", format!("{error}"))),
            (Ok(_), Ok(Some(_))) => (line.to_owned(), None),
            (Ok(_), Ok(None)) => {
                (line.to_owned(), missing("linux", "its packages are not unpacked".into()))
            }
            (Ok(_), Err(error)) => (line.to_owned(), missing("linux", format!("{error:#}"))),
        },
        Requirement::Ports => {
            let (line, names) = without_ports(line, &bench::unbuilt_ports());
            let reason = || "not built: cargo xtask ports build".into();
            (line, if names.is_empty() { None } else { missing(&names, reason()) })
        }
        Requirement::Valgrind if bench::can_count_instructions() => (line.to_owned(), None),
        Requirement::Valgrind => {
            (String::new(), missing("instructions", "valgrind is not installed".into()))
        }
    };
    let command = if line.is_empty() { line } else { format!("bench {line}") };
    PlannedRun { step: step.name, visit: 1, command, seconds: step.seconds[set], missing }
}

/// Returns the command without Linux among its guests.
fn without_linux(line: &str) -> String {
    without_name(line, "linux")
}

/// Returns the command without these kernels, and their names; the command is empty if no kernel is
/// left.
fn without_ports(line: &str, unbuilt: &[String]) -> (String, String) {
    let built = unbuilt.iter().fold(line.to_owned(), |line, port| without_name(&line, port));
    // A kernel that is alone in its list is not removed from it.
    let is_empty = unbuilt.iter().any(|port| built.split(' ').any(|word| word == port));
    (if is_empty { String::new() } else { built }, unbuilt.join(", "))
}

/// Removes a name from a list of several.
fn without_name(line: &str, name: &str) -> String {
    line.replace(&format!(",{name}"), "").replace(&format!("{name},"), "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_sets_take_less_time_than_documented() {
        let seconds = |set: usize| steps().map(move |step| step.seconds[set] * step.visits[set]);
        let total = |set| seconds(set).sum::<u32>();
        assert!(total(0) < 85 * 60, "standard: {} s", total(0));
        assert!(total(1) < 5 * 60, "quick: {} s", total(1));
        let names: BTreeSet<_> = ORDER.into_iter().collect();
        let described = SECTIONS.iter().flat_map(|section| section.steps).map(|step| step.name);
        let described: Vec<_> = described.collect();
        assert_eq!((names.len(), described.len()), (ORDER.len(), ORDER.len()));
        assert_eq!(names, described.into_iter().collect(), "each step has a section and a place");
    }

    #[test]
    fn ports_that_are_not_built_are_left_out_of_the_command() {
        let line = "ports --kernels arceos,ostd,c-kernel --runs 1";
        let without = |ports: &[&str]| {
            without_ports(line, &ports.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(without(&[]), (line.into(), String::new()));
        let only_ostd = "ports --kernels ostd --runs 1".to_owned();
        assert_eq!(without(&["arceos", "c-kernel"]), (only_ostd, "arceos, c-kernel".into()));
        assert_eq!(without(&["arceos", "ostd", "c-kernel"]).0, "");
    }

    #[test]
    fn all_commands_can_be_parsed() {
        for step in steps() {
            for line in step.lines.into_iter().filter(|line| !line.is_empty()) {
                bench::check(line).unwrap_or_else(|error| panic!("{line}: {error}"));
                let alone = without_linux(line);
                bench::check(&alone).unwrap_or_else(|error| panic!("{alone}: {error}"));
                assert!(!alone.contains("linux"), "{alone}");
            }
        }
    }

    #[test]
    fn only_steps_under_valgrind_count_instructions() {
        assert!(is_count("frames-instructions"));
        assert!(["frames", "vm-instructions", "vm", "no step"].iter().all(|name| !is_count(name)));
    }
}
