//! Runs the engine with one faulty step, to check that a test notices.
//!
//! `HOTMEM_MUTANT` says which step, when a test starts. PLACE is `FILE [TYPE::]FUNCTION`:
//! - `relax PLACE`: every ordering in this function is Relaxed, and its fences do nothing;
//! - `tear PLACE`: each of its read-modify-writes becomes a load and a store;
//! - `skip PLACE`: its writes do nothing, but report success;
//! - `blind PLACE`: its loads return 0;
//! - `late PLACE past PLACE`: the writes of the first function are delayed until the second one has
//!   written something;
//! - anything else: the statement behind `mutant!` of this name.

use super::Ordering;
use core::ops::RangeInclusive;
use core::panic::Location;
use std::string::{String, ToString};
use std::sync::LazyLock;
use std::{format, fs};

enum Mutant {
    None,
    Named(String),
    At(Lines, Wrong),
    Late { lines: Lines, past: Lines },
}

/// The fault of all operations of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    Relaxed,
    Torn,
    Skipped,
    Blind,
    Late,
}

/// The lines of a function.
struct Lines {
    file: String,
    lines: RangeInclusive<usize>,
}

static MUTANT: LazyLock<Mutant> = LazyLock::new(|| {
    let Ok(mutant) = std::env::var("HOTMEM_MUTANT") else { return Mutant::None };
    let at = |place, wrong| Mutant::At(Lines::find(place), wrong);
    match mutant.split_once(' ') {
        Some(("relax", place)) => at(place, Wrong::Relaxed),
        Some(("tear", place)) => at(place, Wrong::Torn),
        Some(("skip", place)) => at(place, Wrong::Skipped),
        Some(("blind", place)) => at(place, Wrong::Blind),
        Some(("late", places)) => {
            let (late, past) = places.split_once(" past ").expect("two places");
            Mutant::Late { lines: Lines::find(late), past: Lines::find(past) }
        }
        _ => Mutant::Named(mutant),
    }
});

impl Lines {
    /// Finds the function that `FILE [TYPE::]FUNCTION` names. Its end is found by rustfmt's
    /// indentation.
    fn find(place: &str) -> Lines {
        let (file, function) = place.split_once(' ').expect("a file and a function");
        let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).expect("a source file of the engine");
        let (in_type, name) = function.split_once("::").unwrap_or(("", function));
        let mut right_type = in_type.is_empty();
        let mut lines = text.lines().enumerate();
        let head = lines.by_ref().find(|(_, line)| {
            if line.starts_with("impl") && !in_type.is_empty() {
                right_type = line.contains(in_type);
            }
            right_type
                && (line.contains(&format!("fn {name}(")) || line.contains(&format!("fn {name}<")))
        });
        let (first, head) = head.unwrap_or_else(|| panic!("no function {function} in {file}"));
        let close = format!("{}}}", " ".repeat(head.len() - head.trim_start().len()));
        let (last, _) = lines.find(|(_, line)| *line == close).expect("the end of the function");
        Lines { file: file.to_string(), lines: first + 1..=last + 1 }
    }

    #[track_caller]
    fn have_caller(&self) -> bool {
        let caller = Location::caller();
        self.lines.contains(&(caller.line() as usize))
            && caller
                .file()
                .strip_suffix(self.file.as_str())
                .is_some_and(|dir| dir.ends_with("src/"))
    }
}

/// Returns the fault of the caller's operation, if it has one.
#[track_caller]
pub(super) fn wrong() -> Option<Wrong> {
    match &*MUTANT {
        Mutant::At(lines, wrong) if lines.have_caller() => Some(*wrong),
        Mutant::Late { lines, .. } if lines.have_caller() => Some(Wrong::Late),
        _ => None,
    }
}

/// Returns the ordering for the caller's operation.
#[track_caller]
pub(super) fn weakened(order: Ordering) -> Ordering {
    if wrong() == Some(Wrong::Relaxed) { Ordering::Relaxed } else { order }
}

/// Returns whether delayed writes are made after this write of the caller.
#[track_caller]
pub(super) fn is_passed() -> bool {
    matches!(&*MUTANT, Mutant::Late { past, .. } if past.have_caller())
}

/// Returns whether the engine runs with this mutant.
pub(crate) fn is_mutant(name: &str) -> bool {
    matches!(&*MUTANT, Mutant::Named(mutant) if mutant == name)
}
