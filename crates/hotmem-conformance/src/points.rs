//! Lists the points of the suite.
//!
//! | file | contents |
//! |---|---|
//! | `any_device.rs` | the points of any device |
//! | `memory.rs` | the points of memory devices |
//! | `balloon.rs` | the points of balloons |

mod any_device;
mod balloon;
mod memory;

use crate::point::{Check, Point, Requirement};
pub use balloon::BALLOON_POINTS;
pub use memory::MEMORY_POINTS;

const fn must(
    name: &'static str,
    section: &'static str,
    statement: &'static str,
    check: Check,
) -> Point {
    Point { name, section, requirement: Requirement::Must, statement, pci: None, check }
}

const fn convention(
    name: &'static str,
    section: &'static str,
    statement: &'static str,
    check: Check,
) -> Point {
    Point { name, section, requirement: Requirement::Convention, statement, pci: None, check }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_readme_says_how_many_points_there_are() {
        let points = MEMORY_POINTS.iter().chain(BALLOON_POINTS);
        let names: BTreeSet<&str> = points.map(|point| point.name).collect();
        let readme = include_str!("../README.md").replace('\n', " ");
        assert!(readme.contains(&format!("It has {} points,", names.len())), "{}", names.len());
    }

    #[test]
    fn a_point_of_the_registers_names_a_section_of_its_transport() {
        for point in MEMORY_POINTS.iter().chain(BALLOON_POINTS) {
            assert!(!point.section.starts_with("4.1."), "{point:?}");
            assert!(!point.over_pci().section.starts_with("4.2."), "{point:?}");
        }
    }

    #[test]
    fn a_statement_is_one_sentence() {
        for point in MEMORY_POINTS.iter().chain(BALLOON_POINTS) {
            assert!(point.statement.ends_with('.'), "{}", point.name);
            assert_eq!(point.statement.matches(". ").count(), 0, "{}", point.name);
        }
    }
}
