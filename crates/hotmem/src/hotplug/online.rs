//! Puts memory online: gives present and mapped memory to the allocator.
//!
//! This changes only words, and does not write to the memory itself, with two exceptions. If the
//! memory has poisoned frames, one of its frames may hold the frame bitmaps of its section. If the
//! kernel promises what free memory [contains](crate::Contents), the memory is filled.

use super::policy::Planned;
use super::{Hotplug, OnlineType};
use crate::addr::PfnRange;
use crate::frames::descriptor_pageblocks;
use crate::hooks::Hooks;
use crate::mapping::Map;
use crate::outlined::Outlined;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::{Ordering, mutant};
use crate::words::{NodeSet, SectionPart, Zone};

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Puts all of `range` online for `kind`, or none of it. `None` stands for the type in [the
    /// settings](super::Settings). A driver passes the type that the request names, otherwise its
    /// own type, and `None` if there is neither.
    ///
    /// Memory that was [added as zero](crate::Addition::zeroed) is known to be zero from now on, if
    /// it was not online since.
    ///
    /// Poisoned frames of `range` stay quarantined: the pageblocks that have some come online
    /// divided, and only their other frames become free.
    ///
    /// Cost: O(sections). At most 48 bytes are written for each section (128 MiB), which is 0.00004
    /// % of it.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn online(
        &mut self,
        range: PfnRange,
        kind: impl Into<Option<OnlineType>>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), RangeError> {
        self.check_offline(range)?;
        let kind = kind.into().unwrap_or(self.settings.auto_online);
        if kind == OnlineType::Offline {
            return Ok(());
        }
        self.ask_to_go_online(range, kind, hooks)?;
        self.bring_online(range, kind, hooks);
        Ok(())
    }

    /// Asks the kernel whether `range` may come online.
    pub(super) fn ask_to_go_online(
        &self,
        range: PfnRange,
        kind: OnlineType,
        hooks: &mut dyn Hooks,
    ) -> Result<(), RangeError> {
        for (run, zone) in self.partition(range, kind) {
            if let Err(veto) = hooks.going_online(run, zone) {
                let agreed = range.split_at(run.start()).0;
                if !agreed.is_empty() {
                    hooks.online_cancelled(agreed);
                }
                return Err(RangeErrorKind::Vetoed(veto).at(run));
            }
        }
        Ok(())
    }

    /// Puts `range` online, except for its poisoned frames. `range` is present and offline. The
    /// kernel cannot veto this call, and the call cannot fail.
    pub(super) fn bring_online(
        &mut self,
        range: PfnRange,
        kind: OnlineType,
        hooks: &mut dyn Hooks,
    ) {
        let mut new_nodes = NodeSet::default();
        for SectionPart { section, .. } in self.section_parts(range) {
            let node = section.node(self.words());
            if !self.is_populated(node) {
                new_nodes.insert(node);
            }
        }
        let call = self.frames.call();
        for (run, zone) in self.partition(range, kind) {
            for SectionPart { section, blocks } in self.section_parts(run) {
                call.set_zone(section, blocks, zone);
                section.online.fetch_or(blocks, Ordering::Relaxed);
                let zeroed = section.take_zeroed(blocks);
                let descriptor_blocks = blocks & descriptor_pageblocks(section);
                for block in section.blocks(descriptor_blocks) {
                    // Release: a later isolation of this pageblock finds it online.
                    block.state().release();
                }
                call.fill_blocks(SectionPart { section, blocks: blocks & !descriptor_blocks });
                let free = call.divide_around_poison(section, blocks & !descriptor_blocks);
                #[cfg(not(loom))]
                let free = match zone {
                    Zone::Kernel => call.fill_reserves_from_blocks(section, free),
                    Zone::Movable => free,
                };
                mutant!("memory that comes online with poison in it is marked as zero" => {
                    section.mark_zeroed(zeroed.among(blocks));
                });
                if free != 0 {
                    section.mark_zeroed(zeroed.among(free));
                    // Release: publishes the changes that this loop made to the words.
                    call.publish_blocks(section, free);
                }
            }
        }
        drop(call);
        self.frames.call().clear_low_memory_hints(range);
        self.record_online(range);
        for node in new_nodes {
            hooks.node_appeared(self.words().node_of_index(node));
        }
        hooks.onlined(range);
    }

    /// Divides `range` into runs, and chooses the zone of each. The choice changes no counts, so a
    /// second call returns the same runs and zones.
    fn partition(
        &self,
        range: PfnRange,
        kind: OnlineType,
    ) -> impl Iterator<Item = (PfnRange, Zone)> + use<'_, P, M> {
        let mut remaining = range;
        let mut planned = Planned::nothing();
        Outlined(core::iter::from_fn(move || {
            if remaining.is_empty() {
                return None;
            }
            let (zone, run) = match kind {
                OnlineType::Movable => (Zone::Movable, remaining),
                OnlineType::Kernel | OnlineType::Offline => (Zone::Kernel, remaining),
                OnlineType::AsBefore => self.zone_run(remaining),
                OnlineType::Online => self.choose(remaining, planned),
            };
            planned.add(run, zone);
            remaining = remaining.split_at(run.end()).1;
            Some((run, zone))
        }))
    }
}
