//! The standard and the quick set of benches.

use super::file::{BenchRun, Missing};
use crate::{
    bench,
    linux::{Drivers, Linux},
    pseries::LinuxGuest,
    qemu::image,
    xen,
};

/// A step of the report: a bench, with its arguments in each set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Its name, which `--only` accepts.
    pub(super) name: &'static str,
    /// The command line after `hotmem bench` in the standard set.
    standard: &'static str,
    /// The command line in the quick set; empty if the set does not have this step.
    quick: &'static str,
    /// The seconds that the commands of the standard and the quick set took on a machine with 2
    /// CPUs. They estimate the remaining time.
    seconds: [u32; 2],
    /// How often it runs in the standard set.
    visits: u32,
    requirement: Requirement,
}

/// The programs that a step needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Requirement {
    /// The step needs only this process.
    Nothing,
    /// The reference guest under QEMU.
    Guest,
    /// The reference guest under QEMU, and Linux, which is left out if it is missing.
    GuestAndLinux(Drivers),
    /// Xen.
    Xen,
    /// QEMU's pseries machine with its guest, and Linux, which is left out if it is missing.
    Pseries,
    /// valgrind, which counts instructions.
    Valgrind,
    /// Other kernels with Hotmem, each of which is left out if it was not built.
    Ports,
}

/// Returns whether a step counts the instructions of this process, which do not depend on the machine.
pub(super) fn is_count(name: &str) -> bool {
    STEPS.iter().any(|step| step.name == name && step.requirement == Requirement::Valgrind)
}

const fn step(name: &'static str, requirement: Requirement) -> Step {
    Step { name, standard: "", quick: "", seconds: [0; 2], visits: 1, requirement }
}

impl Step {
    const fn standard(self, standard: &'static str, seconds: u32) -> Step {
        Step { standard, seconds: [seconds, self.seconds[1]], ..self }
    }

    const fn quick(self, quick: &'static str, seconds: u32) -> Step {
        Step { quick, seconds: [self.seconds[0], seconds], ..self }
    }

    /// Lets the step run a second time, after all steps of the standard set. The load of a machine
    /// changes within minutes, and only the spread of two visits includes that change.
    const fn twice(self) -> Step {
        Step { visits: 2, ..self }
    }

    const fn visits(&self, set: usize) -> u32 {
        if set == 0 { self.visits } else { 1 }
    }
}

/// All steps, in the order in which they run; the second visits follow in the same order.
pub(super) const STEPS: &[Step] = &[
    step("frames", Requirement::Nothing)
        .standard(
            "frames --sizes 16G --accesses pair,bulk,random,remote-free,interrupts,mixed --runs 3 \
             --no-instructions",
            40,
        )
        .twice()
        .quick("frames --sizes 16G --accesses pair --orders 0 --runs 3 --no-instructions", 10),
    step("tails", Requirement::Nothing)
        .standard("tails --size 16G --runs 3", 26)
        .twice()
        .quick("tails --size 16G --operations 200000 --beside nothing,all --runs 1", 5),
    step("fragmentation", Requirement::Nothing)
        .standard("fragmentation --size 4G --operations 2000000 --runs 3", 12)
        .quick("fragmentation --size 4G --operations 100000 --runs 1", 5),
    step("heap", Requirement::Nothing)
        .standard("heap --sizes 64,1024 --runs 5", 14)
        .twice()
        .quick("heap --sizes 64 --runs 5", 10),
    step("memmap", Requirement::Nothing)
        .standard("memmap --size 100G --rebinds 15 --first-binds 1", 120)
        .twice()
        .quick("memmap --size 20G --rebinds 5 --first-binds 1", 15),
    step("teardown-native", Requirement::Nothing)
        .standard("teardown --cases native", 5)
        .quick("teardown --cases native --runs 3", 5),
    step("dlpar", Requirement::Nothing)
        .standard("dlpar --cases 4096 --before-runs 2", 5)
        .twice()
        .quick("dlpar --cases 4096 --runs 3", 5),
    step("dlpar-all", Requirement::Nothing).standard("dlpar --cases 126000 --runs 3", 43).twice(),
    step("dlpar-million", Requirement::Nothing).standard("dlpar --cases 1000000 --runs 3", 4),
    step("give-back", Requirement::Nothing)
        .standard("reporting --cases give_back --give-back 1G,2G,4G --runs 3", 30)
        .quick("reporting --cases give_back --give-back 1G,2G --runs 3", 10),
    step("vm", Requirement::GuestAndLinux(Drivers::Virtio))
        .standard("vm --guests hotmem-64B,linux,hotmem --sizes 4G,16G,64G --touch 0 --runs 3", 220)
        .quick("vm --guests hotmem-64B,linux --sizes 2G,4G --touch 0 --runs 2", 50),
    step("vm-cold", Requirement::GuestAndLinux(Drivers::Virtio))
        .standard("vm --guests hotmem-64B,linux --sizes 16G --touch 0 --warm-up 0 --runs 2", 27),
    step("vm-sizes", Requirement::Guest)
        .standard("vm --sizes 256G,512G,4T --touch 0 --warm-up 2G --runs 3", 12)
        .quick("vm --sizes 16G,64G,4T --touch 0 --warm-up 2G --runs 3", 10),
    step("vm-used", Requirement::Guest).standard("vm --sizes 64G --touch 1G --warm-up 2G --runs 3", 42),
    step("teardown-xen", Requirement::Xen)
        .standard(
            "teardown --cases xen-munmap/xpti-on,xen-migrate/xpti-on,xen-exit/xpti-on --runs 1",
            95,
        )
        .quick("teardown --cases xen-munmap/xpti-on --batches 32 --runs 1 --writes 0", 35),
    step("packing", Requirement::GuestAndLinux(Drivers::Virtio))
        .standard(
            "packing --guests linux,hotmem-64B,hotmem --host 1900M --guest 1G --touch 600M..700M",
            450,
        )
        .quick(
            "packing --guests linux,hotmem-64B --host 1G --guest 512M --touch 200M..300M \
             --max-guests 3",
            60,
        ),
    step("contiguity", Requirement::Nothing)
        .standard(
            "contiguity --sizes 64G,128G,256G --only-sizes --policies online_movable --runs 2",
            24,
        )
        .twice()
        .quick(
            "contiguity --sizes 16G,32G,64G --before-up-to 64G --policies online_movable --runs 3",
            10,
        ),
    step("contiguity-large", Requirement::Nothing)
        .standard(
            "contiguity --sizes 64G,512G,4T,64T --only-sizes --policies online_movable --runs 1",
            45,
        )
        .twice(),
    step("contiguity-pc", Requirement::Nothing)
        .standard("contiguity --sizes 64G --before-up-to 256G --policies online --runs 1", 22),
    step("page-fault", Requirement::Guest).standard(
        "reporting --cases page_fault --threads 1,2 --rounds 1,16 --bursts 2 --runs 3 --boots 3 \
         --no-instructions",
        400,
    ),
    step("nvdimm", Requirement::GuestAndLinux(Drivers::Nvdimm))
        .standard("nvdimm --guests hotmem,linux --rebinds 2 --measures time", 30)
        .twice(),
    step("vm-instructions", Requirement::GuestAndLinux(Drivers::Virtio))
        .standard("vm --guests hotmem-64B,linux --sizes 16G --touch 0 --runs 1 --icount", 34),
    step("nvdimm-instructions", Requirement::GuestAndLinux(Drivers::Nvdimm)).standard(
        "nvdimm --guests hotmem,linux --measures instructions --counted-rebinds 1",
        200,
    ),
    step("memmap-instructions", Requirement::Valgrind)
        .standard("memmap --rebinds 0 --first-binds 0 --instructions", 60),
    step("frames-instructions", Requirement::Valgrind)
        .standard(
            "frames --sizes 16G,64T --accesses pair,random,remote-free --orders 0 --threads 1 --runs 1 \
             --subjects hotmem,bitmap-allocator",
            51,
        )
        .quick(
            "frames --sizes 16G --accesses pair --orders 0 --threads 1 --runs 1 \
             --subjects hotmem,bitmap-allocator",
            15,
        ),
    step("ports", Requirement::Ports)
        .standard("ports --kernels arceos,ostd,c-kernel --sizes 4G --runs 3", 95)
        .quick("ports --kernels arceos,ostd,c-kernel --sizes 1G --runs 1", 25),
    step("dlpar-pseries", Requirement::Pseries).standard("dlpar --cases pseries --runs 1", 50),
];

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
    let line = |step: &Step| [step.standard, step.quick][set];
    let wanted = || STEPS.iter().filter(|step| wants(step) && !line(step).is_empty());
    let visits = wanted().map(|step| step.visits(set)).max().unwrap_or(0);
    let visit = |visit| {
        let visited = wanted().filter(move |step| step.visits(set) >= visit);
        visited.map(move |step| PlannedRun { visit, ..step.on_this_machine(line(step), set) })
    };
    (1..=visits).flat_map(visit).collect()
}

impl Step {
    fn on_this_machine(&self, line: &str, set: usize) -> PlannedRun {
        let missing = |subject: &str, reason: String| {
            Some(Missing { step: self.name.into(), subject: subject.into(), reason })
        };
        let (line, missing) = match self.requirement {
            Requirement::Nothing => (line.to_owned(), None),
            Requirement::Guest => match image::find(None) {
                Ok(_) => (line.to_owned(), None),
                Err(error) => (String::new(), missing("hotmem", format!("{error}"))),
            },
            Requirement::GuestAndLinux(drivers) => match Linux::find(drivers) {
                Ok(_) => (line.to_owned(), None),
                Err(error) => (without_linux(line), missing("linux", format!("{error}"))),
            },
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
        PlannedRun { step: self.name, visit: 1, command, seconds: self.seconds[set], missing }
    }
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
        let seconds =
            |set: usize| STEPS.iter().map(move |step| step.seconds[set] * step.visits(set));
        let total = |set| seconds(set).sum::<u32>();
        assert!(total(0) < 50 * 60, "standard: {} s", total(0));
        assert!(total(1) < 5 * 60, "quick: {} s", total(1));
        let names: BTreeSet<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
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
        for step in STEPS {
            for line in [step.standard, step.quick].into_iter().filter(|line| !line.is_empty()) {
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
