//! The description of a bench in the report: its commands, its texts, the rows of its table and its
//! plots.

use super::record::Metric;
use crate::linux::Drivers;
use crate::qemu::Architecture;

/// A section of the report, which shows the records of one bench or two.
pub(crate) struct Section {
    /// Its name, which `--only` accepts.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// What the section answers, in two sentences.
    pub(crate) question: &'static str,
    /// The figures that others have published for the same question: the authors of the peers, or the
    /// document that asks the question.
    pub(crate) published: &'static str,
    /// What the rows measure, and the differences between Hotmem and its peers that affect the
    /// figures.
    pub(crate) explanation: &'static str,
    /// What the figures do not show: the hardware and the loads that were not measured.
    pub(crate) not_measured: &'static str,
    /// The steps whose records the section shows.
    pub(crate) steps: &'static [Step],
    pub(crate) rows: &'static [Row],
    pub(crate) plots: &'static [Plot],
}

/// A step of the report: a bench, with its arguments in each set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// Its name, which `--only` accepts.
    pub(crate) name: &'static str,
    /// The command lines after `hotmem bench` in the standard and in the quick set. A line is empty
    /// if the set does not have this step.
    pub(crate) lines: [&'static str; 2],
    /// The seconds that the commands of both sets took on a machine with 2 CPUs. They estimate the
    /// remaining time.
    pub(crate) seconds: [u32; 2],
    /// How often it runs in each set.
    pub(crate) visits: [u32; 2],
    pub(crate) requirement: Requirement,
}

/// The programs that a step needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requirement {
    /// The step needs only this process.
    Nothing,
    /// The reference guest under QEMU.
    Guest(Architecture),
    /// The reference guest under QEMU, and Linux, which is left out if it is missing.
    GuestAndLinux(Architecture, Drivers),
    /// Xen.
    Xen,
    /// QEMU's pseries machine with its guest, and Linux, which is left out if it is missing.
    Pseries,
    /// valgrind, which counts instructions.
    Valgrind,
    /// Other kernels with Hotmem, each of which is left out if it was not built.
    Ports,
}

/// Returns a step that needs only this process, and that neither set has.
pub(crate) const fn step(name: &'static str) -> Step {
    let requirement = Requirement::Nothing;
    Step { name, lines: [""; 2], seconds: [0; 2], visits: [1; 2], requirement }
}

impl Step {
    pub(crate) const fn needs(self, requirement: Requirement) -> Step {
        Step { requirement, ..self }
    }

    /// Sets the command line in the standard set, and its time.
    pub(crate) const fn standard(self, line: &'static str, seconds: u32) -> Step {
        Step { lines: [line, self.lines[1]], seconds: [seconds, self.seconds[1]], ..self }
    }

    /// Sets the command line in the quick set, and its time.
    pub(crate) const fn quick(self, line: &'static str, seconds: u32) -> Step {
        Step { lines: [self.lines[0], line], seconds: [self.seconds[0], seconds], ..self }
    }

    /// Lets the step run a second time, after all steps of the standard set. The load of a machine
    /// changes within minutes, and only the spread of two visits includes that change.
    pub(crate) const fn twice(self) -> Step {
        Step { visits: [2, 1], ..self }
    }
}

/// A pattern for rows of a table, which gives one row for each case that matches.
pub(crate) struct Row {
    /// What is measured. Each `{}` is replaced by the text that a wildcard matched.
    pub(crate) title: &'static str,
    /// The pattern of cases. `/` separates the parts of a case. A `*` matches a part or the rest of
    /// one, and a `#` a part that begins with a digit.
    pub(crate) case: &'static str,
    pub(crate) bench: &'static str,
    pub(crate) metric: &'static str,
    /// The step whose records count; empty: any step.
    pub(crate) step: &'static str,
    /// The subject with Hotmem.
    pub(crate) subject: &'static str,
    /// The other subjects, each as its shown name and the subject.
    pub(crate) peers: &'static [(&'static str, &'static str)],
    /// The subject that is the machine's limit; empty: none.
    pub(crate) limit: &'static str,
    /// Whether more is better.
    pub(crate) more_is_better: bool,
    /// Whether the figure is the largest of many measurements; no ratio is shown for it.
    pub(crate) is_extreme: bool,
    /// README's table shows the case whose wildcards matched this text, too.
    pub(crate) headline: Option<&'static str>,
}

impl Row {
    /// Returns a pattern without cases for a metric of a bench.
    pub(crate) const fn new(bench: &'static str, metric: Metric) -> Row {
        Row {
            title: "",
            case: "",
            bench,
            metric: metric.0,
            step: "",
            subject: "hotmem",
            peers: &[],
            limit: "",
            more_is_better: false,
            is_extreme: false,
            headline: None,
        }
    }

    /// Sets the pattern of cases, and what is measured.
    pub(crate) const fn of(self, case: &'static str, title: &'static str) -> Row {
        Row { case, title, ..self }
    }

    pub(crate) const fn in_step(self, step: &'static str) -> Row {
        Row { step, ..self }
    }

    pub(crate) const fn subject(self, subject: &'static str) -> Row {
        Row { subject, ..self }
    }

    pub(crate) const fn peers(self, peers: &'static [(&'static str, &'static str)]) -> Row {
        Row { peers, ..self }
    }

    pub(crate) const fn limit(self, limit: &'static str) -> Row {
        Row { limit, ..self }
    }

    pub(crate) const fn more_is_better(self) -> Row {
        Row { more_is_better: true, ..self }
    }

    pub(crate) const fn extreme(self) -> Row {
        Row { is_extreme: true, ..self }
    }

    pub(crate) const fn headline(self, matched: &'static str) -> Row {
        Row { headline: Some(matched), ..self }
    }
}

/// A plot.
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    pub(crate) bench: &'static str,
    pub(crate) metric: &'static str,
    /// The subjects, each as its shown name and the subject.
    pub(crate) subjects: &'static [(&'static str, &'static str)],
    pub(crate) cases: Cases,
    /// Whether the axis of values is logarithmic.
    pub(crate) is_logarithmic: bool,
}

/// The cases that give the points of a plot.
#[derive(Clone, Copy)]
pub(crate) enum Cases {
    /// The cases of a pattern, each at the size that `*` matched, on a logarithmic axis.
    Sizes(&'static str),
    /// The cases of a pattern, each at the number that `*` matched.
    Numbers { case: &'static str, axis: &'static str, is_logarithmic: bool },
    /// The named cases, each at its number, on a logarithmic axis.
    Points { points: &'static [(&'static str, f64)], axis: &'static str },
    /// Cases with the names that the plot shows, one below the other.
    Named(&'static [(&'static str, &'static str)]),
}

impl Plot {
    /// Returns a plot of a metric of a bench. Its axis of values is logarithmic.
    pub(crate) const fn new(
        title: &'static str,
        (bench, metric): (&'static str, Metric),
        subjects: &'static [(&'static str, &'static str)],
        cases: Cases,
    ) -> Plot {
        Plot { title, bench, metric: metric.0, subjects, cases, is_logarithmic: true }
    }

    /// Makes the axis of values linear.
    pub(crate) const fn linear(self) -> Plot {
        Plot { is_logarithmic: false, ..self }
    }
}
