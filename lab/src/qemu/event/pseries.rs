//! The end of a request of the pseries guest.

use serde::Deserialize;

/// The end of a request.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct RequestEnd {
    /// `add` or `remove`.
    pub change: String,
    /// `count`, `index` or `count-indexed`.
    pub by: String,
    /// The DRC index of the first LMB, or 0 for a request by count.
    pub first: u32,
    /// The number of LMBs that the host requested.
    pub count: u32,
    /// The number of LMBs that were added or removed, or 0 if the request failed.
    #[serde(default)]
    pub lmbs: u32,
    /// The number of contiguous ranges of these LMBs.
    #[serde(default)]
    pub ranges: u32,
    /// The number of LMBs without memory that a request by count skipped.
    #[serde(default)]
    pub skipped: u32,
    /// The number of LMBs that were added to another node than their own.
    #[serde(default)]
    pub misplaced: u32,
    /// The reason of a failure.
    #[serde(rename = "why")]
    pub reason: Option<String>,
    /// The number of LMBs that a failed request did not restore.
    #[serde(default)]
    pub unrestored: u32,
    /// The number of LMBs that a failed request has lost.
    #[serde(default)]
    pub lost: u32,
    /// The time in the guest from the firmware's event to the end of the request, in nanoseconds.
    pub ns: u64,
    /// The number of the table's LMBs that are assigned.
    pub assigned: u64,
    /// The online memory.
    pub online: u64,
    /// The free memory.
    pub free: u64,
    /// The online memory of each node, from node 0 on.
    pub nodes: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use crate::qemu::Event;

    #[test]
    fn ends_of_successful_and_failed_requests_are_parsed() {
        let line = r#"{"event":"done","change":"add","by":"count","first":0,"count":2,"lmbs":2,"ranges":1,"skipped":4,"misplaced":0,"ns":22,"assigned":4,"online":5,"free":6,"nodes":[5,0]}"#;
        let Event::Done(end) = serde_json::from_str(line).unwrap() else { panic!() };
        assert_eq!((end.lmbs, end.skipped, end.reason, &end.nodes[..]), (2, 4, None, &[5, 0][..]));
        let line = r#"{"event":"done","change":"remove","by":"count-indexed","first":7,"count":2,"why":"pinned","unrestored":1,"lost":0,"ns":22,"assigned":4,"online":5,"free":6,"nodes":[]}"#;
        let Event::Done(end) = serde_json::from_str(line).unwrap() else { panic!() };
        assert_eq!((end.lmbs, end.unrestored, end.reason.as_deref()), (0, 1, Some("pinned")));
        let unknown = serde_json::from_str::<Event>(r#"{"event":"tomorrow"}"#).unwrap();
        assert_eq!(unknown, Event::Unknown);
    }
}
