//! The longest call of each kind.

use crate::bench::frames::cpu_time;
use std::{collections::BTreeMap, time::Duration};

/// The longest call of each kind, by CPU time.
#[derive(Default)]
pub(super) struct Calls(BTreeMap<String, Duration>);

impl Calls {
    /// Makes a call, and measures it.
    pub(super) fn time<T>(&mut self, call: &str, budget: Option<u64>, f: impl FnOnce() -> T) -> T {
        let started = cpu_time();
        let result = f();
        self.note(call, budget, cpu_time().saturating_sub(started));
        result
    }

    /// Records the time of a call.
    fn note(&mut self, call: &str, budget: Option<u64>, took: Duration) {
        let name = budget.map_or(call.into(), |budget| format!("{call}/{budget}-pageblocks"));
        let longest = self.0.entry(name).or_default();
        *longest = took.max(*longest);
    }

    /// Iterates over the longest call of each kind: `unplug/64-pageblocks`, `report`.
    pub(super) fn longest(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.0.iter().map(|(call, &longest)| (call.as_str(), longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_each_kind_is_kept() {
        let mut calls = Calls::default();
        for nanoseconds in [5, 9, 7] {
            calls.note("unplug", Some(64), Duration::from_nanos(nanoseconds));
            calls.note("unplug", Some(512), Duration::from_nanos(2 * nanoseconds));
        }
        assert_eq!(calls.time("report", None, || 7), 7);
        let kinds: Vec<_> = calls.longest().map(|(call, _)| call).collect();
        assert_eq!(kinds, ["report", "unplug/512-pageblocks", "unplug/64-pageblocks"]);
        let longest: Vec<_> = calls.longest().map(|(_, longest)| longest.as_nanos()).collect();
        assert_eq!(longest[1..], [18, 9]);
    }
}
