//! Makes one step of the engine faulty, to check that a test notices it.
//!
//! The environment variable `HOTMEM_MUTANT` names the mutant: the step, and its fault. In the
//! following list, PLACE is `FILE [TYPE::]FUNCTION`:
//! - `relax PLACE`: all orderings in this function are Relaxed, and its fences do nothing;
//! - `tear PLACE`: each read-modify-write of this function becomes a load and a store;
//! - `skip PLACE`: the writes of this function do nothing, but report success;
//! - `blind PLACE`: the loads of this function return 0;
//! - `late PLACE past PLACE`: the writes of the first function are delayed until the second
//!   function has made a write;
//! - any other text: the statement of the `mutant!` that has this name is executed.

use super::Ordering;
use core::ops::RangeInclusive;
use core::panic::Location;
use std::string::{String, ToString};
use std::sync::LazyLock;
use std::{format, fs};

enum Mutant {
    None,
    Named(String),
    Function(FunctionLines, Fault),
    Late { lines: FunctionLines, past: FunctionLines },
}

/// The fault of all operations of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Relaxed,
    Torn,
    Skipped,
    Blind,
    Late,
}

/// The lines of a function.
struct FunctionLines {
    file: String,
    lines: RangeInclusive<usize>,
}

static MUTANT: LazyLock<Mutant> = LazyLock::new(|| {
    let Ok(mutant) = std::env::var("HOTMEM_MUTANT") else { return Mutant::None };
    let function_mutant = |place, fault| Mutant::Function(FunctionLines::find(place), fault);
    match mutant.split_once(' ') {
        Some(("relax", place)) => function_mutant(place, Fault::Relaxed),
        Some(("tear", place)) => function_mutant(place, Fault::Torn),
        Some(("skip", place)) => function_mutant(place, Fault::Skipped),
        Some(("blind", place)) => function_mutant(place, Fault::Blind),
        Some(("late", places)) => {
            let (late, past) =
                places.split_once(" past ").expect("`late` is followed by `PLACE past PLACE`");
            Mutant::Late { lines: FunctionLines::find(late), past: FunctionLines::find(past) }
        }
        _ => Mutant::Named(mutant),
    }
});

impl FunctionLines {
    /// Finds the lines of the function that `FILE [TYPE::]FUNCTION` names. The function ends at a
    /// closing brace with the same indentation as the line with `fn`.
    fn find(place: &str) -> FunctionLines {
        let (file, function) = place.split_once(' ').expect("PLACE is `FILE [TYPE::]FUNCTION`");
        let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).expect("FILE is a source file below src/");
        let (type_name, name) = function.split_once("::").unwrap_or(("", function));
        let mut is_in_type = type_name.is_empty();
        let mut lines = text.lines().enumerate();
        let fn_line = lines.by_ref().find(|(_, line)| {
            if line.starts_with("impl") && !type_name.is_empty() {
                is_in_type = line.contains(type_name);
            }
            is_in_type
                && (line.contains(&format!("fn {name}(")) || line.contains(&format!("fn {name}<")))
        });
        let (first, fn_line) =
            fn_line.unwrap_or_else(|| panic!("{file} has no function {function}"));
        let closing_line = format!("{}}}", " ".repeat(fn_line.len() - fn_line.trim_start().len()));
        let (last, _) = lines
            .find(|(_, line)| *line == closing_line)
            .expect("the function ends with a brace of its own indentation");
        FunctionLines { file: file.to_string(), lines: first + 1..=last + 1 }
    }

    #[track_caller]
    fn contain_caller(&self) -> bool {
        let caller = Location::caller();
        self.lines.contains(&(caller.line() as usize))
            && caller
                .file()
                .strip_suffix(self.file.as_str())
                .is_some_and(|dir| dir.ends_with("src/"))
    }
}

/// Returns the fault of the caller's operation, if the mutant makes this operation faulty.
#[track_caller]
pub(super) fn fault() -> Option<Fault> {
    match &*MUTANT {
        Mutant::Function(lines, fault) if lines.contain_caller() => Some(*fault),
        Mutant::Late { lines, .. } if lines.contain_caller() => Some(Fault::Late),
        _ => None,
    }
}

/// Returns the ordering that the caller's operation uses instead of `order`.
#[track_caller]
pub(super) fn weakened(order: Ordering) -> Ordering {
    if fault() == Some(Fault::Relaxed) { Ordering::Relaxed } else { order }
}

/// Returns whether the caller is the second function of a `late` mutant: its write ends the delay.
#[track_caller]
pub(super) fn ends_delay() -> bool {
    matches!(&*MUTANT, Mutant::Late { past, .. } if past.contain_caller())
}

/// Returns whether the mutant with this name is active.
pub(crate) fn is_mutant(name: &str) -> bool {
    matches!(&*MUTANT, Mutant::Named(mutant) if mutant == name)
}
