//! The sections of the report. Each bench describes its own.

use crate::bench;
pub(super) use crate::bench::section::{Cases, Plot, Requirement, Row, Section, Step};

/// All sections, in the order of the report.
pub(super) const SECTIONS: &[Section] = &[
    bench::vm::section::SECTION,
    bench::contiguity::section::SECTION,
    bench::dimms::section::SECTION,
    bench::cxl::section::SECTION,
    bench::memmap::section::SECTION,
    bench::dlpar::section::SECTION,
    bench::reporting::section::SECTION,
    bench::zeroing::section::SECTION,
    bench::teardown::section::SECTION,
    bench::frames::section::SECTION,
    bench::tails::section::SECTION,
    bench::fragmentation::section::SECTION,
    bench::heap::section::SECTION,
    bench::ports::section::SECTION,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_section_has_all_texts() {
        for section in SECTIONS {
            let Section { id, question, published, explanation, not_measured, rows, plots, .. } =
                section;
            let sentences = 1 + question.matches(". ").count() + question.matches("? ").count();
            assert_eq!(sentences, 2, "{id}: {question}");
            for text in [published, explanation, not_measured] {
                assert!(text.len() > 20 && text.ends_with('.'), "{id}: {text}");
            }
            assert!(!section.steps.is_empty() && !rows.is_empty() && !plots.is_empty(), "{id}");
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
