//! Keeps the CPU time of the longest call of each kind.

use crate::bench::frames::cpu_time;
use std::{collections::BTreeMap, time::Duration};

/// The CPU time of the longest call of each kind.
#[derive(Default)]
pub(super) struct LongestCalls(BTreeMap<String, Duration>);

impl LongestCalls {
    /// Calls `f`, records the CPU time of the call under the name `call`, and returns the result.
    pub(super) fn time<T>(&mut self, call: &str, budget: Option<u64>, f: impl FnOnce() -> T) -> T {
        let started = cpu_time();
        let result = f();
        self.record(call, budget, cpu_time().saturating_sub(started));
        result
    }

    /// Records the time of a call, if no call of this name and budget took longer.
    fn record(&mut self, call: &str, budget: Option<u64>, time: Duration) {
        let name = budget.map_or(call.into(), |budget| format!("{call}/{budget}-pageblocks"));
        let longest = self.0.entry(name).or_default();
        *longest = time.max(*longest);
    }

    /// Iterates over the kinds of calls, such as `unplug/64-pageblocks` and `report`, each with the
    /// time of its longest call.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.0.iter().map(|(call, &longest)| (call.as_str(), longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_call_of_each_kind_is_kept() {
        let mut calls = LongestCalls::default();
        for nanoseconds in [5, 9, 7] {
            calls.record("unplug", Some(64), Duration::from_nanos(nanoseconds));
            calls.record("unplug", Some(512), Duration::from_nanos(2 * nanoseconds));
        }
        assert_eq!(calls.time("report", None, || 7), 7);
        let kinds: Vec<_> = calls.iter().map(|(call, _)| call).collect();
        assert_eq!(kinds, ["report", "unplug/512-pageblocks", "unplug/64-pageblocks"]);
        let longest: Vec<_> = calls.iter().map(|(_, longest)| longest.as_nanos()).collect();
        assert_eq!(longest[1..], [18, 9]);
    }
}
