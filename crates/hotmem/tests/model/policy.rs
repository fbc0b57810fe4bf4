//! Computes the policy's choice of a zone, pageblock by pageblock.

use crate::machine::Machine;
use crate::model::{Block, Model, Region};
use hotmem::{Group, NodeId, OnlineType, PfnRange, Policy, Zone, ZonePart};
use hotmem_testkit::{PAGEBLOCK, numbers};

impl Machine<'_> {
    pub(crate) fn change_policy(&mut self) {
        use OnlineType::{Kernel, Movable, Offline, Online};
        let rng = &mut self.model.rng;
        self.policy = match rng.u8(..3) {
            0 => Policy::ContigZones { movable_node: rng.bool() },
            1 => Policy::AUTO_MOVABLE,
            _ => Policy::AutoMovable { ratio_percent: rng.u32(..500), per_node: rng.bool() },
        };
        self.hotplug.settings.policy = self.policy;
        let kinds = [Offline, Offline, Online, Kernel, Movable];
        self.auto_online = kinds[rng.usize(..kinds.len())];
        self.hotplug.settings.auto_online = self.auto_online;
    }

    /// Changes whether boot memory counts as complete.
    pub(crate) fn change_boot_complete(&mut self) {
        let model = &mut self.model;
        model.boot_complete = model.rng.u8(..4) != 0;
        self.hotplug.settings.boot_complete = model.boot_complete;
    }

    /// Returns for each pageblock of `requested` whether it must become movable by the policy.
    /// `requested` is offline and in one region.
    pub(crate) fn movable_by_policy(&self, requested: PfnRange) -> Vec<bool> {
        let model = &self.model;
        let region = model.regions.iter().position(|region| region.range.covers(requested));
        let region = region.expect("`requested` is in one region");
        let mut answer = vec![];
        let (mut decided_kernel, mut decided_movable) = (0, 0);
        let mut kernel_part = PfnRange::EMPTY;
        for (node, run) in model.node_runs(requested) {
            match self.policy {
                Policy::ContigZones { movable_node } => {
                    let low = self.hotplug.zone(node, ZonePart::Low).spanned.overlaps(run);
                    let within = |zone| self.hotplug.zone(node, zone).spanned.overlaps(run);
                    let movable = match (low || within(Zone::Kernel), within(Zone::Movable)) {
                        (false, true) => true,
                        (true, false) => false,
                        _ => movable_node,
                    };
                    answer.extend(run.chunks(PAGEBLOCK).map(|_| movable));
                }
                Policy::AutoMovable { ratio_percent, per_node } => {
                    let ratio = u64::from(ratio_percent);
                    let mut balance = Balance {
                        model,
                        region,
                        node,
                        ratio,
                        per_node,
                        decided_kernel,
                        decided_movable,
                        kernel_part,
                    };
                    answer.extend(balance.decide(run));
                    decided_kernel = balance.decided_kernel;
                    decided_movable = balance.decided_movable;
                    kernel_part = balance.kernel_part;
                }
            }
        }
        answer
    }
}

impl Model<'_> {
    /// Divides a range of present memory into runs on one node each.
    fn node_runs(&self, range: PfnRange) -> Vec<(NodeId, PfnRange)> {
        let mut runs: Vec<(NodeId, PfnRange)> = vec![];
        for block in range.chunks(PAGEBLOCK) {
            let node = self.node_of(block.start().number()).expect("the range is present");
            match runs.last_mut() {
                Some((last, run)) if *last == node => {
                    *run = PfnRange::new(run.start(), block.end())
                        .expect("pageblocks are visited in ascending order");
                }
                _ => runs.push((node, block)),
            }
        }
        runs
    }
}

/// The amounts of movable and kernel memory that a policy compares.
struct Balance<'a, 'f> {
    model: &'a Model<'f>,
    region: usize,
    node: NodeId,
    ratio: u64,
    per_node: bool,
    /// The numbers of frames for which the zone is decided already, but which are not online yet.
    decided_kernel: u64,
    decided_movable: u64,
    /// The last part for which kernel memory is decided.
    kernel_part: PfnRange,
}

impl Balance<'_, '_> {
    fn decide(&mut self, requested: PfnRange) -> Vec<bool> {
        let Region { range: all, group, .. } = self.model.regions[self.region];
        let mut answer = vec![];
        let unit = match group {
            Group::None => PAGEBLOCK,
            Group::Static => u64::MAX >> 1,
            Group::Dynamic { unit } => unit,
        };
        let parts: Vec<_> = match group {
            Group::Static => vec![requested],
            _ => requested.chunks(unit).collect(),
        };
        for part in parts {
            let movable = match group {
                Group::None => self.fits(part.frames()),
                Group::Static => {
                    let (kernel, movable) = self.count_online(self.region, None);
                    let (kernel, movable) =
                        (kernel + self.decided_kernel, movable + self.decided_movable);
                    kernel == 0 && self.fits(all.frames() - movable)
                }
                Group::Dynamic { unit } => {
                    let unit = part.align_outward(unit).intersection(all);
                    let is_kernel_memory = |frame: u64| {
                        let block = self.model.block_of(frame);
                        block.online && !block.movable
                    };
                    !numbers(unit).any(is_kernel_memory)
                        && !self.kernel_part.overlaps(unit)
                        && self.fits(part.frames())
                }
            };
            *(if movable { &mut self.decided_movable } else { &mut self.decided_kernel }) +=
                part.frames();
            if !movable {
                self.kernel_part = part;
            }
            answer.extend(part.chunks(PAGEBLOCK).map(|_| movable));
        }
        answer
    }

    /// Returns the numbers of kernel and of movable frames that are online in a region. If `node`
    /// is given, only frames of this node count.
    fn count_online(&self, region: usize, node: Option<NodeId>) -> (u64, u64) {
        let range = self.model.regions[region].range;
        let mut online = (0, 0);
        for block in range.chunks(PAGEBLOCK) {
            let state = self.model.block_of(block.start().number());
            if node.is_some_and(|node| state.node != node) {
                continue;
            }
            match (state.online, state.movable) {
                (true, false) => online.0 += block.frames(),
                (true, true) => online.1 += block.frames(),
                _ => {}
            }
        }
        online
    }

    /// Returns whether the ratio allows `more` movable frames.
    fn fits(&self, more: u64) -> bool {
        let everywhere = self.fits_on(None, more);
        everywhere && (!self.per_node || self.fits_on(Some(self.node), more))
    }

    fn fits_on(&self, node: Option<NodeId>, more: u64) -> bool {
        let on_node = |block: &&Block| node.is_none_or(|node| block.node == node);
        let movable = self.model.blocks.iter().filter(|block| block.online && block.movable);
        let movable =
            movable.filter(on_node).count() as u64 * PAGEBLOCK + self.decided_movable + more;
        // In hundredths of a frame, as the ratio is in per cent.
        let (mut movable_backed_by_groups, mut boot_kernel) = (0, 0);
        for (number, region) in self.model.regions.iter().enumerate() {
            if node.is_some_and(|node| region.node != node) {
                continue;
            }
            let (mut kernel, mut movable) = self.count_online(number, node);
            if self.model.block_of(region.range.start().number()).is_boot {
                boot_kernel += kernel;
            }
            if number == self.region {
                kernel += self.decided_kernel;
                movable += self.decided_movable + more;
            }
            if matches!(region.group, Group::Dynamic { .. }) {
                movable_backed_by_groups += (kernel * self.ratio).min(movable * 100);
            }
        }
        movable * 100 - movable_backed_by_groups.min(movable * 100) <= boot_kernel * self.ratio
    }
}
