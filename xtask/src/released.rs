//! Compares the engine's interface with that of the last version, so that a version that breaks code gets
//! a number that says so: see RELEASING.md.

use crate::{api::LIST, check::git, step::root, steps::Steps};
use std::{collections::BTreeSet, fs};

/// Fails if the interface breaks code and the version in the manifest does not say so.
pub(crate) fn check(steps: &mut Steps) {
    let part = "the interface, compared with that of the last version";
    let tags = git(&["tag", "--list", "v[0-9]*", "--merged", "HEAD", "--sort=-version:refname"]);
    let tags = match tags {
        Ok(tags) => tags,
        Err(error) => return steps.skip(format!("{part}: {error}")),
    };
    let Some(tag) = tags.lines().next() else {
        return steps.skip(format!("{part}: no version has a tag"));
    };
    let version = env!("CARGO_PKG_VERSION");
    if may_break_code(tag.trim_start_matches('v'), version) {
        return;
    }
    let old = git(&["show", &format!("{tag}:{LIST}")]);
    let new = fs::read_to_string(root().join(LIST)).map_err(|error| format!("{LIST}: {error}"));
    match old.and_then(|old| Ok(broken(&old, &new?))) {
        Ok(changes) => changes.into_iter().for_each(|change| {
            steps.fail(format!("{LIST}: since {tag}, {change}, but the version is {version}"));
        }),
        Err(error) => steps.fail(format!("{part}: {error}")),
    }
}

/// Returns the changes from one list of an interface to another after which code may not compile any more.
fn broken(old: &str, new: &str) -> Vec<String> {
    let [old, new] = [old, new]
        .map(|list| list.lines().filter(|line| !is_heading(line)).collect::<BTreeSet<&str>>());
    // A function of a trait that need not be implemented any more has lost its `;`.
    let is_gone = |line: &&&str| !new.contains(**line) && !new.contains(line.trim_end_matches(';'));
    let gone = old.iter().filter(is_gone).map(|line| format!("`{line}` is gone or has changed"));
    let is_demanded = |line: &&&str| {
        line.ends_with(';')
            && trait_of(line).is_some_and(|name| old.contains(&*format!("trait {name}")))
    };
    let demanded = new.difference(&old).filter(is_demanded);
    gone.chain(demanded.map(|line| format!("`{line}` must be implemented"))).collect()
}

/// Returns the path of the trait in the line of one of its functions.
fn trait_of(line: &str) -> Option<&str> {
    let (path, _) = line.split_once("fn ")?.1.split_once(['(', '<'])?;
    Some(path.rsplit_once("::")?.0)
}

/// Returns whether a line of a list says how many lines follow.
fn is_heading(line: &str) -> bool {
    line.starts_with(|first: char| first.is_ascii_digit())
}

/// Returns whether a version may break code that compiles with an older one, as cargo reads the numbers.
fn may_break_code(old: &str, new: &str) -> bool {
    // Versions are compatible if their numbers up to the first that is not 0 are the same.
    let compatible = |version: &str| {
        let numbers = version.split(['.', '-', '+']).map_while(|part| part.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        let zeros = numbers.iter().take_while(|&&number| number == 0).count();
        numbers.into_iter().take(zeros + 1).collect::<Vec<_>>()
    };
    compatible(new) > compatible(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "2 items\nstruct A\ntrait T\n1 functions\nfn A::a(&self)\n\
                       1 functions of traits\nfn T::t();\n";

    #[test]
    fn what_is_new_breaks_nothing() {
        let new = OLD
            .replace("2 items", "4 items\nstruct B\ntrait U")
            .replace("1 functions\n", "2 functions\nfn A::b()\n");
        let new = new + "fn T::u()\nfn U::t();\n";
        assert_eq!(broken(OLD, &new), [""; 0]);
        assert_eq!(broken(OLD, OLD), [""; 0]);
        assert_eq!(broken(OLD, &OLD.replace("T::t();", "T::t()")), [""; 0]);
    }

    #[test]
    fn what_is_gone_or_changed_or_demanded_breaks_code() {
        for (before, after, change) in [
            ("struct A\n", "", "`struct A` is gone or has changed"),
            ("fn A::a(&self)", "fn A::a(self)", "`fn A::a(&self)` is gone or has changed"),
            (
                "fn T::t();",
                "fn T::t();\nunsafe fn T::u();",
                "`unsafe fn T::u();` must be implemented",
            ),
        ] {
            assert_eq!(broken(OLD, &OLD.replace(before, after)), [change]);
        }
    }

    #[test]
    fn the_first_number_that_is_not_zero_says_that_code_may_break() {
        for (old, new) in
            [("0.1.0", "0.2.0"), ("0.9.3", "1.0.0"), ("1.4.0", "2.0.0-rc.1"), ("0.0.1", "0.0.2")]
        {
            assert!(may_break_code(old, new), "{old} {new}");
        }
        for (old, new) in
            [("0.1.0", "0.1.0"), ("0.1.0", "0.1.9"), ("1.0.0", "1.1.0"), ("1.2.3", "1.2.3")]
        {
            assert!(!may_break_code(old, new), "{old} {new}");
        }
    }
}
