//! The guest's events.

use serde::Deserialize;

/// An event in the guest. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// The kernel runs and takes events.
    Ready {
        /// Boot memory, without the LMBs that can be removed.
        boot_memory: u64,
        /// LMBs in the table.
        lmbs: u32,
        /// The size of an LMB.
        lmb_size: u64,
        /// LMBs that are assigned and can be removed.
        assigned: u64,
        /// Memory that is online.
        online: u64,
    },
    /// The host has sent a request.
    Asked {
        /// `add` or `remove`.
        change: String,
        /// `count`, `index` or `count-indexed`.
        by: String,
        /// The first connector; 0 by count.
        first: u32,
        /// The number of LMBs.
        count: u32,
    },
    /// A request has ended.
    Done(Done),
    /// An event could not be understood.
    Garbled {
        /// The reason.
        why: String,
    },
    /// An event was not about memory.
    Ignored,
    /// The guest filled memory with patterns.
    Touched {
        /// The size.
        bytes: u64,
        /// The time that it took, in nanoseconds.
        ns: u64,
    },
    /// Patterns were checked and were intact.
    Verified {
        /// Their size.
        bytes: u64,
    },
    /// Free memory was reported to the host.
    Reported {
        /// The size.
        bytes: u64,
        /// The number of requests that reported it.
        requests: u64,
    },
    /// An event of a newer guest.
    #[serde(other)]
    Unknown,
}

/// The end of a request.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Done {
    /// `add` or `remove`.
    pub change: String,
    /// `count`, `index` or `count-indexed`.
    pub by: String,
    /// The first connector; 0 by count.
    pub first: u32,
    /// The number of LMBs that the host requested.
    pub count: u32,
    /// The number of LMBs that were added or removed; 0 if the request was refused.
    #[serde(default)]
    pub lmbs: u32,
    /// The number of contiguous ranges that they form.
    #[serde(default)]
    pub ranges: u32,
    /// LMBs that a request by count skipped.
    #[serde(default)]
    pub skipped: u32,
    /// LMBs on another node than their own.
    #[serde(default)]
    pub misplaced: u32,
    /// The reason of a refusal.
    pub why: Option<String>,
    /// LMBs that a refused request did not restore.
    #[serde(default)]
    pub unrestored: u32,
    /// LMBs that a refused request has lost.
    #[serde(default)]
    pub lost: u32,
    /// The guest's time since the event, in nanoseconds.
    pub ns: u64,
    /// LMBs that are assigned and can be removed.
    pub assigned: u64,
    /// Memory that is online.
    pub online: u64,
    /// Memory that is free.
    pub free: u64,
    /// The online memory of each of the first nodes.
    pub nodes: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_carried_out_and_refused_requests_are_parsed() {
        let line = r#"{"event":"done","change":"add","by":"count","first":0,"count":2,"lmbs":2,"ranges":1,"skipped":4,"misplaced":0,"ns":22,"assigned":4,"online":5,"free":6,"nodes":[5,0]}"#;
        let Event::Done(done) = serde_json::from_str(line).unwrap() else { panic!() };
        assert_eq!((done.lmbs, done.skipped, done.why, &done.nodes[..]), (2, 4, None, &[5, 0][..]));
        let line = r#"{"event":"done","change":"remove","by":"count-indexed","first":7,"count":2,"why":"pinned","unrestored":1,"lost":0,"ns":22,"assigned":4,"online":5,"free":6,"nodes":[]}"#;
        let Event::Done(done) = serde_json::from_str(line).unwrap() else { panic!() };
        assert_eq!((done.lmbs, done.unrestored, done.why.as_deref()), (0, 1, Some("pinned")));
        let new = serde_json::from_str::<Event>(r#"{"event":"tomorrow"}"#).unwrap();
        assert_eq!(new, Event::Unknown);
    }
}
