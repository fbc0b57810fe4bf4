//! Writes log messages (feature `log`): a line for each request at level info, and a line for each
//! LMB at level debug.

#[cfg(feature = "log")]
mod lines {
    use crate::description::LmbCount;
    use crate::description::{Change, Request};
    use crate::outcome::{Failure, FinalState, RefusedLmb, Summary};
    use crate::property::{DrcIndex, LmbSize};
    use crate::table::Table;
    use core::{fmt, ops::Range};
    use hotmem::Bytes;

    /// A DRC index, if there is one.
    struct Index(Option<DrcIndex>);

    impl fmt::Display for Index {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Some(index) => write!(f, "{index}"),
                None => f.write_str("none"),
            }
        }
    }

    impl fmt::LowerHex for Index {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Some(DrcIndex(index)) => fmt::LowerHex::fmt(&index, f),
                None => f.write_str("none"),
            }
        }
    }

    fn past_tense(change: Change) -> &'static str {
        match change {
            Change::Add => "hot-added",
            Change::Remove => "hot-removed",
        }
    }

    pub(crate) fn log_request(request: Request, size: LmbSize, result: &Result<Summary, Failure>) {
        let past_tense = past_tense(request.change);
        match result {
            Ok(summary) => {
                let Summary { lmbs, ranges, skipped, misplaced, .. } = summary;
                let all = Bytes(u64::from(*lmbs) * size.bytes().0);
                log::info!(
                    "{} ({all}) {past_tense} in {ranges} range{}, {skipped} skipped, \
                     {misplaced} on another node than theirs",
                    LmbCount(*lmbs),
                    if *ranges == 1 { "" } else { "s" }
                );
            }
            Err(failure) => log::info!("could not {request}: {failure}"),
        }
    }

    pub(crate) fn log_refused(refused: &RefusedLmb) {
        let RefusedLmb { connector, range, final_state, error } = refused;
        let connector = Index(*connector);
        let address = range.start();
        match final_state {
            FinalState::AsItWas => {
                log::debug!("drc index {connector}, memory at {address}: {error}")
            }
            FinalState::Unrestored => {
                log::warn!("drc index {connector}, memory at {address} is not restored: {error}");
            }
            FinalState::Lost => {
                log::warn!("drc index {connector}, memory at {address} is lost: {error}");
            }
        }
    }

    pub(crate) fn log_each_lmb(table: &Table<'_>, span: Range<u32>, change: Change) {
        if !log::log_enabled!(log::Level::Debug) {
            return;
        }
        let past_tense = past_tense(change);
        let mut from = span.start;
        while let Some(position) = table.next_in(from..span.end, |group| group.taken) {
            let lmb = table.lmb(position);
            let index = Index(lmb.drc_index);
            let node = lmb.node.map_or(-1, |node| i64::from(node.0));
            log::debug!(
                "memory at {} (drc index {index:x}, node {node}) was {past_tense}",
                lmb.range.start()
            );
            from = position + 1;
        }
    }
}

#[cfg(not(feature = "log"))]
mod lines {
    use crate::description::{Change, Request};
    use crate::outcome::{Failure, RefusedLmb, Summary};
    use crate::property::LmbSize;
    use crate::table::Table;
    use core::ops::Range;

    pub(crate) fn log_refused(_: &RefusedLmb) {}

    pub(crate) fn log_request(_: Request, _: LmbSize, _: &Result<Summary, Failure>) {}

    pub(crate) fn log_each_lmb(_: &Table<'_>, _: Range<u32>, _: Change) {}
}

pub(crate) use lines::{log_each_lmb, log_refused, log_request};
