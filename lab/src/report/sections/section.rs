//! The parts of a section: texts, rows of its table and plots.

/// A section of the report.
pub(in crate::report) struct Section {
    /// Its name, which `--only` accepts.
    pub(in crate::report) id: &'static str,
    pub(in crate::report) title: &'static str,
    /// The question that it answers, in two sentences.
    pub(in crate::report) question: &'static str,
    /// The figures that the document or the peer reports.
    pub(in crate::report) reported: &'static str,
    /// The differences between Hotmem and its peers that affect the figures.
    pub(in crate::report) differs: &'static str,
    /// The parts that have never run on hardware.
    pub(in crate::report) hardware: &'static str,
    /// The steps of the plan whose records it shows.
    pub(in crate::report) steps: &'static [&'static str],
    pub(in crate::report) rows: &'static [Row],
    pub(in crate::report) plots: &'static [Plot],
}

/// A pattern for rows of a table, which gives one row for each case that matches.
pub(in crate::report) struct Row {
    /// What is measured. Each `{}` is replaced by the text that a wildcard matched.
    pub(in crate::report) what: &'static str,
    /// The pattern of cases. A `*` matches a part of a case or the rest of a part, and a `#` a part
    /// that begins with a digit.
    pub(in crate::report) case: &'static str,
    pub(in crate::report) bench: &'static str,
    pub(in crate::report) metric: &'static str,
    /// The step whose records count, if several steps measure the case.
    pub(in crate::report) step: &'static str,
    /// The subject with Hotmem.
    pub(in crate::report) ours: &'static str,
    /// The names of other subjects as they are shown, and the subjects.
    pub(in crate::report) peers: &'static [(&'static str, &'static str)],
    /// The subject that is the machine's limit.
    pub(in crate::report) limit: &'static str,
    /// Whether more is better.
    pub(in crate::report) more_is_better: bool,
    /// Whether the figure is the largest of many, of which no ratio is given.
    pub(in crate::report) is_extreme: bool,
    /// The text that wildcards must match for README's table; `-` if the row is not in it.
    pub(in crate::report) headline: &'static str,
}

impl Row {
    pub(super) const NONE: Row = Row {
        what: "",
        case: "",
        bench: "",
        metric: "time",
        step: "",
        ours: "hotmem",
        peers: &[],
        limit: "",
        more_is_better: false,
        is_extreme: false,
        headline: "-",
    };
}

/// A plot.
pub(in crate::report) struct Plot {
    pub(in crate::report) title: &'static str,
    pub(in crate::report) bench: &'static str,
    pub(in crate::report) metric: &'static str,
    pub(in crate::report) cases: Cases,
    /// The names of the subjects as they are shown, and the subjects.
    pub(in crate::report) subjects: &'static [(&'static str, &'static str)],
    /// Whether the axis of values is logarithmic.
    pub(in crate::report) log: bool,
}

/// The cases that give the points of a plot.
pub(in crate::report) enum Cases {
    /// The cases of a pattern, each at the size that `*` matched, on a logarithmic axis.
    Sizes(&'static str),
    /// The cases of a pattern, each at the number that `*` matched.
    Numbers { case: &'static str, axis: &'static str, log: bool },
    /// Named cases, each at its number, on a logarithmic axis.
    Points { points: &'static [(&'static str, f64)], axis: &'static str },
    /// Named cases without an order.
    Named(&'static [(&'static str, &'static str)]),
}
