//! Checks that the header lists each error code that a function returns.

use std::collections::BTreeMap;
use std::sync::OnceLock;

const HEADER: &str = include_str!("../../include/hotmem.h");

/// Calls a function of the interface, and returns its result. Fails if the result is an error code that
/// the comment of the function does not list.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let result = $function($($argument),*);
        $crate::documented::check(stringify!($function), i64::from(result));
        result
    }};
}
pub(crate) use call;

/// Fails if the result of a function is an error code that its comment in the header does not list.
pub(crate) fn check(function: &str, result: i64) {
    static LISTED: OnceLock<BTreeMap<&str, Vec<i64>>> = OnceLock::new();
    let listed = &LISTED.get_or_init(listed_codes)[function];
    assert!(
        result >= 0 || listed.contains(&result),
        "{function} returned {result}, not {listed:?}"
    );
}

/// Returns the error codes that the comment of each function lists after `# Errors`.
fn listed_codes() -> BTreeMap<&'static str, Vec<i64>> {
    let mut listed = BTreeMap::<&str, Vec<i64>>::new();
    let mut errors = String::new();
    let mut in_errors = false;
    for line in HEADER.lines() {
        if let Some(comment) = line.strip_prefix("//") {
            in_errors = comment.trim() == "# Errors" || in_errors && comment.trim() != "# Safety";
            errors.extend(in_errors.then_some(comment));
            continue;
        }
        if let Some(function) = declared_function(line) {
            let words = errors.split(|c: char| !c.is_alphanumeric() && c != '_');
            // A definition at the end of the header does not replace the declaration.
            listed.entry(function).or_insert_with(|| words.filter_map(code).collect());
        }
        errors.clear();
        in_errors = false;
    }
    listed
}

/// Returns the name of the function that begins on a line.
fn declared_function(line: &str) -> Option<&str> {
    let (before, _) = line.split_once('(')?;
    let name = before.rsplit([' ', '*']).next()?;
    (before.starts_with(|c: char| c.is_alphabetic()) && name.starts_with("hotmem_")).then_some(name)
}

/// Returns the value of the error code with this name.
fn code(name: &str) -> Option<i64> {
    let definition = format!("#define {name} -");
    let value = HEADER.lines().find_map(|line| line.strip_prefix(&definition))?;
    value.parse::<i64>().ok().map(|value| -value)
}

#[test]
fn the_lists_of_all_functions_that_return_errors_are_found() {
    let listed = listed_codes();
    assert_eq!(listed["hotmem_version"], [0; 0]);
    assert_eq!(listed["hotmem_get_counts"], [-14, -22]);
    let returns_code = |line: &&str| line.starts_with("int32_t ") || line.starts_with("int64_t ");
    let functions = HEADER.lines().filter(returns_code);
    for function in functions.filter_map(declared_function) {
        assert!(!listed[function].is_empty(), "{function} lists no error");
    }
}
