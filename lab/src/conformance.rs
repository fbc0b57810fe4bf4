//! The host's part of a check of a VMM's device by the reference guest (`hotmem.check`): carries out what
//! the guest's points want of the host, and collects their results.

use crate::patience;
use crate::qemu::{Error, Vm};
use hotmem::Bytes;
use serde_json::json;
use std::collections::BTreeMap;

/// How the points of a device have ended, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results(BTreeMap<String, Outcome>);

/// How a point has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device does what the point requires.
    Passed,
    /// The device does not do so, with the guest's explanation.
    Failed(String),
    /// The point was not checked, for this reason.
    Skipped(String),
}

/// What a point wants of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// A requested size of the memory device, in bytes.
    RequestedSize(u64),
    /// A size of the balloon, in pages of 4096 bytes.
    BalloonPages(u64),
}

impl Results {
    /// Runs the points of a guest of `boot_memory`, which was started with `hotmem.check`. What the VMM
    /// refuses is not carried out, so that the guest skips the points that need it.
    ///
    /// # Errors
    /// The guest ends or hangs before its last point, or gives up.
    pub fn collect(vm: &mut Vm, boot_memory: Bytes) -> Result<Results, Error> {
        let mut results = Results::default();
        let mut last_failed = None;
        loop {
            let (line, _) = vm.wait_for_line("point", patience(), |line| Some(line.to_owned()))?;
            if let Some(reason) = line.strip_prefix("Bail out! ") {
                return Err(Error::BailOut(reason.to_owned()));
            }
            if line.starts_with("hotmem: ") {
                return Ok(results);
            }
            if let Some(wish) = Wish::parse(&line) {
                match wish.carry_out(vm, boot_memory) {
                    Ok(()) | Err(Error::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            } else if let Some((name, outcome)) = parse_point(&line) {
                last_failed = matches!(outcome, Outcome::Failed(_)).then(|| name.clone());
                results.0.insert(name, outcome);
            } else if let Some(message) = line.trim_start().strip_prefix("message: ")
                && let Some(name) = last_failed.take()
            {
                results.0.insert(name, Outcome::Failed(message.to_owned()));
            }
        }
    }

    /// Returns how many points have passed, have failed, and were skipped.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        let count =
            |is: fn(&Outcome) -> bool| self.0.values().filter(|outcome| is(outcome)).count();
        [
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        ]
    }

    /// Returns what differs from a list of expected failures, which has a name and a reason in each line:
    /// a point that fails and is not in the list, or does not fail and is in it. Empty lines and those that
    /// begin with `#` have no meaning.
    #[must_use]
    pub fn differences(&self, expected: &str) -> Vec<String> {
        let lines = expected.lines().filter(|line| !line.starts_with('#'));
        let expected: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
        let unexpected = self.0.iter().filter_map(|(name, outcome)| match outcome {
            Outcome::Failed(message) if !expected.contains(&&**name) => {
                Some(format!("{name} fails: {message}"))
            }
            _ => None,
        });
        let fails = |name: &str| matches!(self.0.get(name), Some(Outcome::Failed(_)));
        let passed = expected.iter().filter(|name| !fails(name));
        unexpected.chain(passed.map(|name| format!("{name} does not fail"))).collect()
    }
}

impl Wish {
    fn parse(line: &str) -> Option<Wish> {
        let (wish, value) = line.strip_prefix("# host: ")?.split_once(' ')?;
        let value = value.parse().ok()?;
        match wish {
            "requested-size" => Some(Wish::RequestedSize(value)),
            "balloon-pages" => Some(Wish::BalloonPages(value)),
            _ => None,
        }
    }

    fn carry_out(self, vm: &mut Vm, boot_memory: Bytes) -> Result<(), Error> {
        match self {
            Wish::RequestedSize(bytes) => vm.request(Bytes(bytes)),
            Wish::BalloonPages(pages) => {
                // QEMU's command has the size that the guest keeps.
                let kept = pages.checked_mul(4096).and_then(|size| boot_memory.0.checked_sub(size));
                let kept = kept.ok_or_else(|| Error::Refused {
                    command: "balloon".into(),
                    reason: format!("{pages} pages are more than {boot_memory}"),
                })?;
                vm.execute("balloon", &json!({ "value": kept })).map(drop)
            }
        }
    }
}

/// Returns the name of a point and how it has ended, if the line says so.
fn parse_point(line: &str) -> Option<(String, Outcome)> {
    let (is_ok, rest) = match line.strip_prefix("not ") {
        Some(rest) => (false, rest),
        None => (true, line),
    };
    let (_, point) = rest.strip_prefix("ok ")?.split_once(" - ")?;
    let point = point.split_once(" # TODO ").map_or(point, |(name, _)| name);
    let (name, reason) = match point.split_once(" # SKIP ") {
        Some((name, reason)) => (name, Some(reason)),
        None => (point, None),
    };
    // The guest's own points, such as that of its boot, are not about the device.
    let is_of_device = name.contains('/');
    let outcome = match (is_ok, reason) {
        (true, None) => Outcome::Passed,
        (true, Some(reason)) => Outcome::Skipped(reason.to_owned()),
        (false, _) => Outcome::Failed(String::new()),
    };
    is_of_device.then(|| (name.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_wishes_of_the_report_are_parsed() {
        let point = |name: &str, outcome| Some((name.to_owned(), outcome));
        assert_eq!(parse_point("ok 2 - mem/a"), point("mem/a", Outcome::Passed));
        assert_eq!(parse_point("not ok 3 - mem/b"), point("mem/b", Outcome::Failed(String::new())));
        let known = parse_point("not ok 4 - mem/c # TODO a known failure");
        assert_eq!(known, point("mem/c", Outcome::Failed(String::new())));
        let skipped = Outcome::Skipped("no host".to_owned());
        assert_eq!(parse_point("ok 4 - mem/c # SKIP no host"), point("mem/c", skipped));
        assert_eq!(parse_point("ok 1 - boot"), None);
        assert_eq!(parse_point("1..4"), None);
        assert_eq!(Wish::parse("# host: requested-size 4096"), Some(Wish::RequestedSize(4096)));
        assert_eq!(Wish::parse("# host: balloon-pages 7"), Some(Wish::BalloonPages(7)));
        assert_eq!(Wish::parse("# host: balloon-pages -7"), None);
    }

    #[test]
    fn the_differences_are_what_fails_unexpectedly_and_what_does_not_fail() {
        let failed = || Outcome::Failed("a reason".to_owned());
        let results = [("a/1", failed()), ("a/2", failed()), ("a/3", Outcome::Passed)];
        let results = Results(results.map(|(name, outcome)| (name.to_owned(), outcome)).into());
        assert_eq!(results.counts(), [1, 2, 0]);
        assert_eq!(results.differences("# a/9\na/1 known\n\na/2 known"), [""; 0]);
        let found = ["a/2 fails: a reason", "a/3 does not fail", "a/4 does not fail"];
        assert_eq!(results.differences("a/1 known\na/3 known\na/4 known"), found);
    }
}
