//! What a section has: texts, rows of its table, plots.

/// A section of the report.
pub(in crate::report) struct Section {
    /// By which `--only` finds it.
    pub(in crate::report) id: &'static str,
    pub(in crate::report) title: &'static str,
    /// The question, in two sentences.
    pub(in crate::report) question: &'static str,
    /// What the document or the peer reports of itself.
    pub(in crate::report) reported: &'static str,
    /// What differs between the subject and its peers.
    pub(in crate::report) differs: &'static str,
    /// What has never run on hardware.
    pub(in crate::report) hardware: &'static str,
    /// The steps whose records it shows.
    pub(in crate::report) steps: &'static [&'static str],
    pub(in crate::report) rows: &'static [Row],
    pub(in crate::report) plots: &'static [Plot],
}

/// A row of a table, or several: one for each case that matches.
pub(in crate::report) struct Row {
    /// What is measured; `{}` stands for what each wildcard matched.
    pub(in crate::report) what: &'static str,
    /// The case; each `*` matches one part of it or the rest of one, and each `#` a part that begins
    /// with a digit.
    pub(in crate::report) case: &'static str,
    pub(in crate::report) bench: &'static str,
    pub(in crate::report) metric: &'static str,
    /// The step, for a case that several steps measure.
    pub(in crate::report) step: &'static str,
    /// The subject that is Hotmem.
    pub(in crate::report) ours: &'static str,
    /// Other subjects, by the name that is shown.
    pub(in crate::report) peers: &'static [(&'static str, &'static str)],
    /// The subject that is the machine's limit.
    pub(in crate::report) limit: &'static str,
    /// Whether more is better.
    pub(in crate::report) more_is_better: bool,
    /// Whether the figure is the largest of many, so that a ratio would say nothing.
    pub(in crate::report) is_extreme: bool,
    /// What wildcards must match for README's table; `-` if the row is not there.
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
    /// The subjects and the names that are shown.
    pub(in crate::report) subjects: &'static [(&'static str, &'static str)],
    /// Whether the axis of values is logarithmic.
    pub(in crate::report) log: bool,
}

/// Where the points of a plot come from.
pub(in crate::report) enum Cases {
    /// The size that `*` matched, on a logarithmic axis.
    Sizes(&'static str),
    /// The number that `*` matched.
    Numbers { case: &'static str, axis: &'static str, log: bool },
    /// Named cases, each at its number, on a logarithmic axis.
    Points { points: &'static [(&'static str, f64)], axis: &'static str },
    /// Named cases without an order.
    Named(&'static [(&'static str, &'static str)]),
}
