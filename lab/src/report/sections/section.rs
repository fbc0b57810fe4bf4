//! The parts of a section of the report: texts, rows of its table and plots.

/// A section of the report.
pub(in crate::report) struct Section {
    /// Its name, which `--only` accepts.
    pub(in crate::report) id: &'static str,
    pub(in crate::report) title: &'static str,
    /// What the section answers, in two sentences.
    pub(in crate::report) question: &'static str,
    /// The figures that others have published for the same question: the authors of the peers, or the
    /// document that asks the question.
    pub(in crate::report) published: &'static str,
    /// What the rows measure, and the differences between Hotmem and its peers that affect the
    /// figures.
    pub(in crate::report) explanation: &'static str,
    /// What the figures do not show: the hardware and the loads that were not measured.
    pub(in crate::report) not_measured: &'static str,
    /// The steps of [`STEPS`](crate::report::plan::STEPS) whose records the section shows.
    pub(in crate::report) steps: &'static [&'static str],
    pub(in crate::report) rows: &'static [Row],
    pub(in crate::report) plots: &'static [Plot],
}

/// A pattern for rows of a table, which gives one row for each case that matches.
pub(in crate::report) struct Row {
    /// What is measured. Each `{}` is replaced by the text that a wildcard matched.
    pub(in crate::report) title: &'static str,
    /// The pattern of cases. `/` separates the parts of a case. A `*` matches a part or the rest of
    /// one, and a `#` a part that begins with a digit.
    pub(in crate::report) case: &'static str,
    pub(in crate::report) bench: &'static str,
    pub(in crate::report) metric: &'static str,
    /// The step whose records count; empty: any step.
    pub(in crate::report) step: &'static str,
    /// The subject with Hotmem.
    pub(in crate::report) subject: &'static str,
    /// The other subjects, each as its shown name and the subject.
    pub(in crate::report) peers: &'static [(&'static str, &'static str)],
    /// The subject that is the machine's limit; empty: none.
    pub(in crate::report) limit: &'static str,
    /// Whether more is better.
    pub(in crate::report) more_is_better: bool,
    /// Whether the figure is the largest of many measurements; no ratio is shown for it.
    pub(in crate::report) is_extreme: bool,
    /// README's table shows the case whose wildcards matched this text, too.
    pub(in crate::report) headline: Option<&'static str>,
}

impl Row {
    pub(super) const DEFAULT: Row = Row {
        title: "",
        case: "",
        bench: "",
        metric: "time",
        step: "",
        subject: "hotmem",
        peers: &[],
        limit: "",
        more_is_better: false,
        is_extreme: false,
        headline: None,
    };
}

/// A plot.
pub(in crate::report) struct Plot {
    pub(in crate::report) title: &'static str,
    pub(in crate::report) bench: &'static str,
    pub(in crate::report) metric: &'static str,
    pub(in crate::report) cases: Cases,
    /// The subjects, each as its shown name and the subject.
    pub(in crate::report) subjects: &'static [(&'static str, &'static str)],
    /// Whether the axis of values is logarithmic.
    pub(in crate::report) is_logarithmic: bool,
}

/// The cases that give the points of a plot.
pub(in crate::report) enum Cases {
    /// The cases of a pattern, each at the size that `*` matched, on a logarithmic axis.
    Sizes(&'static str),
    /// The cases of a pattern, each at the number that `*` matched.
    Numbers { case: &'static str, axis: &'static str, is_logarithmic: bool },
    /// The named cases, each at its number, on a logarithmic axis.
    Points { points: &'static [(&'static str, f64)], axis: &'static str },
    /// Cases with the names that the plot shows, one below the other.
    Named(&'static [(&'static str, &'static str)]),
}
