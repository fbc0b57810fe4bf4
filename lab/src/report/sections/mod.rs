//! The sections of the report. Each has a question, peers, rows of a table and plots, and says how
//! Hotmem and its peers differ.

mod allocator;
mod contiguity;
mod descriptors;
mod fragmentation;
mod lmbs;
mod plug;
mod ports;
mod reporting;
mod section;
mod tails;
mod teardown;

pub(in crate::report) use section::{Cases, Plot, Row, Section};

/// All sections, in the order of the report.
pub(in crate::report) const SECTIONS: &[Section] = &[
    plug::SECTION,
    contiguity::SECTION,
    descriptors::SECTION,
    lmbs::SECTION,
    reporting::SECTION,
    teardown::SECTION,
    allocator::FRAMES,
    tails::SECTION,
    fragmentation::SECTION,
    allocator::HEAP,
    ports::SECTION,
];

#[cfg(test)]
mod tests {
    use super::{super::plan::STEPS, *};
    use std::collections::BTreeSet;

    #[test]
    fn each_step_has_a_section_and_each_section_has_all_texts() {
        let named: BTreeSet<_> = SECTIONS.iter().flat_map(|section| section.steps).collect();
        let steps: BTreeSet<_> = STEPS.iter().map(|step| &step.name).collect();
        assert_eq!(named, steps);
        for section in SECTIONS {
            let Section { id, question, published, explanation, not_measured, rows, plots, .. } =
                section;
            let sentences = 1 + question.matches(". ").count() + question.matches("? ").count();
            assert_eq!(sentences, 2, "{id}: {question}");
            for text in [published, explanation, not_measured] {
                assert!(text.len() > 20 && text.ends_with('.'), "{id}: {text}");
            }
            assert!(!rows.is_empty() && !plots.is_empty(), "{id}");
        }
    }

    #[test]
    fn a_row_has_braces_exactly_if_its_case_has_a_wildcard() {
        for row in SECTIONS.iter().flat_map(|section| section.rows) {
            let (star, brace) = (row.case.contains(['*', '#']), row.title.contains("{}"));
            assert_eq!(star, brace, "{}", row.title);
        }
    }
}
