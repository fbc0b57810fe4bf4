//! Announces, withdraws, adds, onlines and removes memory with valid and invalid arguments, and
//! compares each result with the model.

use crate::machine::Machine;
use crate::model::{Block, Model, Region, SIZE};
use crate::model_request::ModelRequest;
use hotmem::{
    AddError, AddRequest, Announce, AnnounceError, Group, NodeId, OnlineType, PfnRange, RangeError,
    RangeErrorKind,
};
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::region_range;
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers, pfn, range};

/// The nodes of a machine. Boot memory is on node 0.
pub(crate) const NODES: [NodeId; 3] = [NodeId::ZERO, NodeId(257), NodeId(u32::MAX)];

impl<'f> Machine<'f> {
    pub(crate) fn change_range_state(&mut self) {
        if self.model.descriptor_policy.is_some() && self.model.rng.u8(..4) == 0 {
            return self.change_described_section();
        }
        match self.model.rng.u32(..24) {
            0..3 => self.announce(),
            3 => self.withdraw(),
            4..9 => self.add(),
            9 => self.finish_addition(),
            10..15 => self.online(),
            15..18 => self.remove(),
            18..22 => self.reconfigure(),
            _ => self.finish_removal(),
        }
    }

    fn announce(&mut self) {
        let longest = self.profile.max_region_blocks;
        let requested = self.model.random_blocks(longest);
        let may_align = longest >= SECTION / PAGEBLOCK;
        let requested = if may_align && self.model.rng.bool() {
            requested.align_inward(SECTION)
        } else {
            requested
        };
        self.announce_range(requested);
    }

    pub(crate) fn announce_range(&mut self, requested: PfnRange) {
        let rng = &mut self.model.rng;
        let node = NODES[rng.usize(..NODES.len())];
        let group = match rng.u8(..3) {
            0 => Group::None,
            1 => Group::Static,
            _ => Group::Dynamic { unit: PAGEBLOCK << rng.u32(..4) },
        };
        let nodes_vary = rng.bool();
        let announced = Announce { node, group, nodes_vary, ..requested.into() };
        let other = if nodes_vary { None } else { self.model.other_node_beside(requested, node) };
        let words = self.model.frames.counts().words;
        let answer = self.hotplug.announce(announced);
        let has_grown = self.model.frames.counts().words != words;
        self.model.trace(|| format!("announce {requested:?}: {answer:?}"));
        let added = self.model.count_new_metadata();
        let model = &mut self.model;
        match answer {
            Ok(id) => {
                assert!(!requested.is_empty() && requested.is_aligned(PAGEBLOCK));
                assert!(model.all_blocks_are(requested, |block| !block.is_announced));
                assert_eq!(other, None);
                let words_existed = model.words.record_region(model.regions.len());
                model.regions.push(Region { id, range: requested, node, group, nodes_vary });
                model.blocks_in(requested).iter_mut().for_each(|block| block.is_announced = true);
                model.check_words(words_existed, has_grown);
                assert_eq!(region_range(&self.hotplug, id), Some(requested));
                return;
            }
            Err(AnnounceError::Range(RangeError { range, kind: RangeErrorKind::Unaligned })) => {
                assert!(range == requested && (range.is_empty() || !range.is_aligned(PAGEBLOCK)));
            }
            Err(AnnounceError::Range(RangeError { range, kind: RangeErrorKind::Announced })) => {
                assert!(model.regions.iter().any(|region| region.range == range));
                assert!(range.overlaps(requested));
            }
            Err(AnnounceError::Range(RangeError { range, kind: RangeErrorKind::OtherNode })) => {
                assert_eq!(Some(range), other);
            }
            Err(AnnounceError::Range(error)) => panic!("{requested:?}: {error}"),
            Err(AnnounceError::NoMetadata(bytes)) => {
                assert!(!model.can_grant(&ModelRequest::frames(bytes.0.div_ceil(4096))));
            }
        }
        assert_eq!(added, 0);
    }

    fn withdraw(&mut self) {
        let model = &mut self.model;
        let index = model.rng.usize(..model.regions.len());
        let Region { id, range: region, .. } = model.regions[index];
        let answer = self.hotplug.withdraw(id);
        model.trace(|| format!("withdraw {region:?}: {answer:?}"));
        let expected =
            model.first_wrong(region, [|b| b.is_present, |b| b.device, |b| b.has_prepared_change]);
        let kinds = [RangeErrorKind::Present, RangeErrorKind::Device, RangeErrorKind::Held];
        let expected = expected.map(|(i, range)| RangeError { range, kind: kinds[i] });
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            model.regions.swap_remove(index);
            model.blocks_in(region).fill(Block::default());
            assert_eq!(region_range(&self.hotplug, id), None);
            assert_eq!(
                self.hotplug.withdraw(id),
                Err(RangeError { range: region, kind: RangeErrorKind::NotAnnounced })
            );
        }
    }

    fn add(&mut self) {
        let absent = |block: &Block| {
            block.is_announced && !block.is_present && !block.device && !block.has_prepared_change
        };
        let requested = match self.model.rng.u8(..10) {
            0 => Some(self.model.random_blocks(4)),
            _ => self.model.random_run(3 * SECTION / PAGEBLOCK, absent),
        };
        if let Some(requested) = requested {
            self.add_range(requested);
        }
    }

    pub(crate) fn add_range(&mut self, requested: PfnRange) {
        let rng = &mut self.model.rng;
        self.model.tables_needed = if rng.bool() { 0 } else { rng.u64(..4) };
        let device = rng.u8(..4) == 0;
        let requested_node = rng.bool().then(|| NODES[rng.usize(..NODES.len())]);
        let descriptors = if device { 0 } else { self.model.frames_for_descriptors(requested) };
        let needed = self.model.tables_needed + descriptors;
        let request = AddRequest { range: requested, node: requested_node, device };
        let words = self.model.frames.counts().words;
        let answer = with_kernel(&mut self.hotplug, &mut self.model, |hotplug, _| {
            hotplug.prepare_add(request)
        });
        let model = &mut self.model;
        let has_grown = model.frames.counts().words != words;
        let region = model.regions.iter().find(|region| region.range.covers(requested));
        let node = requested_node.or(region.map(|region| region.node)).unwrap_or_default();
        model.trace(|| format!("add {requested:?} on {node:?}: {answer:?}"));
        // The engine may have divided a pageblock, for which it may have allocated a bitmap frame.
        let added = model.count_new_metadata();
        let addition = match answer {
            Ok(addition) => addition,
            Err(error) => {
                assert!(!has_grown);
                match error {
                    AddError::NoTables { frames, .. } => {
                        assert_eq!(frames, needed);
                        assert!(!model.can_grant(&ModelRequest::frames(frames)));
                        assert_eq!(model.expected_add_error(requested, node), None);
                    }
                    AddError::NoMetadata(bytes) => {
                        let all_needed = bytes.0.div_ceil(4096) + needed;
                        assert!(!model.can_grant(&ModelRequest::frames(all_needed)));
                        assert_eq!(model.expected_add_error(requested, node), None);
                    }
                    error => assert_eq!(
                        (model.expected_add_error(requested, node), added),
                        (Some(error), 0)
                    ),
                }
                return;
            }
        };
        assert_eq!(model.expected_add_error(requested, node), None);
        let words_existed = model.words.record_addition(requested, node);
        model.known_nodes.insert(node);
        assert_eq!(addition.table_runs().map(PfnRange::frames).sum::<u64>(), needed);
        addition.table_runs().for_each(|run| model.record_tables(run));
        model.check_words(words_existed, has_grown);
        for block in model.blocks_in(requested) {
            (block.has_prepared_change, block.node) = (true, node);
        }
        self.additions.push((addition, requested, device));
        if self.model.rng.u8(..4) < self.profile.finished_at_once {
            self.finish_addition();
        }
    }

    /// Commits or abandons a random addition.
    pub(crate) fn finish_addition(&mut self) {
        if self.additions.is_empty() {
            return;
        }
        let model = &mut self.model;
        let (addition, requested, device) =
            self.additions.swap_remove(model.rng.usize(..self.additions.len()));
        let tables: Vec<u64> = addition.table_runs().flat_map(numbers).collect();
        let taken_before = model.table_frames_taken;
        let is_committed = model.rng.u8(..4) != 0;
        // Every second pageblock begins an addition that is zero.
        let is_zero = !device && model.rng.bool();
        let descriptors = if device { 0 } else { model.frames_for_descriptors(requested) };
        model.tables_needed = tables.len() as u64 - descriptors;
        model.trace(|| format!("added {requested:?}: {is_committed}, as device memory: {device}"));
        for block in model.blocks_in(requested) {
            block.has_prepared_change = false;
            block.is_new_zero = is_committed && is_zero;
            (block.is_present, block.device) = (is_committed && !device, is_committed && device);
        }
        if is_committed {
            let addition = if is_zero { addition.zeroed() } else { addition };
            with_kernel(&mut self.hotplug, model, |hotplug, _| hotplug.commit_add(addition));
        } else {
            drop(addition);
        }
        let taken_frames = model.table_frames_taken - taken_before;
        // The mapping took the first frames.
        let unused = &tables[taken_frames as usize..];
        unused.iter().for_each(|&frame| model.record_free(range(frame, 1)));
        model.count_new_metadata();
        if is_committed && !device {
            self.online_addition(requested);
            self.model.count_new_metadata();
        }
    }

    /// Puts memory that was just added online with the default online type, which a listener may
    /// veto.
    fn online_addition(&mut self, requested: PfnRange) {
        let kind = self.auto_online;
        assert!(self.model.all_blocks_are(requested, |block| !block.online));
        let policy_choice = self.movable_by_policy(requested);
        self.model.last_veto = None;
        let online = self.hotplug.online(requested, None, &mut self.model);
        let model = &mut self.model;
        if let Some(vetoed) = model.last_veto {
            assert!(
                matches!(online, Err(RangeError { range, kind: RangeErrorKind::Vetoed(_) }) if range == vetoed)
            );
            assert!(model.all_blocks_are(requested, |block| !block.online));
            return;
        }
        online.unwrap();
        if kind == OnlineType::Offline {
            assert!(model.all_blocks_are(requested, |block| !block.online));
            return;
        }
        let movable = match kind {
            OnlineType::Online => policy_choice,
            kind => vec![kind == OnlineType::Movable; policy_choice.len()],
        };
        assert!(model.all_blocks_are(requested, |block| block.online));
        assert_eq!(model.zones_in(requested), movable);
    }

    fn online(&mut self) {
        if let Some(requested) = self.model.random_offline() {
            self.online_range(requested);
        }
    }

    pub(crate) fn online_range(&mut self, requested: PfnRange) {
        use OnlineType::{AsBefore, Kernel, Movable, Offline, Online};
        let model = &mut self.model;
        let kinds = [Movable, Movable, Movable, Online, Kernel, AsBefore, Offline];
        let kind = kinds[model.rng.usize(..kinds.len())];
        let expected = model.expected_online_error(requested);
        let before = model.zones_in(requested);
        let policy_choice = expected.is_none().then(|| self.movable_by_policy(requested));
        let model = &mut self.model;
        model.last_veto = None;
        let answer = self.hotplug.online(requested, kind, model);
        model.trace(|| format!("online {requested:?} {kind:?}: {answer:?}"));
        assert_eq!(model.count_new_metadata(), 0);
        if let Err(RangeError { range, kind: RangeErrorKind::Vetoed(_) }) = answer {
            assert_eq!((expected, model.last_veto), (None, Some(range)));
            assert_eq!(model.zones_in(requested), before);
            return;
        }
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() && kind != Offline {
            let movable = match kind {
                AsBefore => before,
                Online => policy_choice.expect("the call was not expected to fail"),
                kind => vec![kind == Movable; before.len()],
            };
            assert_eq!(model.zones_in(requested), movable);
            assert!(model.all_blocks_are(requested, |block| block.online));
        }
    }
}

impl Model<'_> {
    /// Returns whether each pageblock of a range is movable.
    pub(crate) fn zones_in(&mut self, range: PfnRange) -> Vec<bool> {
        if range.end() > pfn(SIZE) {
            return vec![];
        }
        self.blocks_in(range).iter().map(|block| block.movable).collect()
    }

    /// Finds the first section with a pageblock for which a condition of `wrong` holds. Returns the
    /// index of the first such condition in that section, and the pageblock.
    pub(crate) fn first_wrong<const N: usize>(
        &self,
        range: PfnRange,
        wrong: [fn(&Block) -> bool; N],
    ) -> Option<(usize, PfnRange)> {
        range.chunks(SECTION).find_map(|section_part| {
            let blocks = || section_part.chunks(PAGEBLOCK).filter(|block| !block.is_empty());
            wrong.iter().enumerate().find_map(|(i, is_wrong)| {
                let wrong_block = blocks().find(|b| is_wrong(self.block_of(b.start().number())));
                wrong_block.map(|block| (i, block))
            })
        })
    }

    pub(crate) fn is_pageblocks(range: PfnRange) -> bool {
        !range.is_empty() && range.is_aligned(PAGEBLOCK)
    }

    pub(crate) fn in_one_region(&self, range: PfnRange) -> bool {
        self.regions.iter().any(|region| region.range.covers(range))
    }

    fn expected_add_error(&self, requested: PfnRange, node: NodeId) -> Option<AddError> {
        let refused = |range, kind| Some(AddError::Range(RangeError { range, kind }));
        if !Self::is_pageblocks(requested) {
            return refused(requested, RangeErrorKind::Unaligned);
        }
        if !self.in_one_region(requested) {
            return refused(requested, RangeErrorKind::NotAnnounced);
        }
        let wrong: [fn(&Block) -> bool; 3] =
            [|b| b.is_present, |b| b.device, |b| b.has_prepared_change];
        if let Some((i, block)) = self.first_wrong(requested, wrong) {
            let kinds = [RangeErrorKind::Present, RangeErrorKind::Device, RangeErrorKind::Held];
            return refused(block, kinds[i]);
        }
        if let Some(block) = self.descriptors_being_removed(requested) {
            return refused(block, RangeErrorKind::Held);
        }
        refused(self.first_on_other_node(requested, node)?, RangeErrorKind::OtherNode)
    }

    /// Returns the first pageblock in the sections of `requested` that another node has, or that is
    /// being added to another node.
    fn first_on_other_node(&self, requested: PfnRange, node: NodeId) -> Option<PfnRange> {
        let mut blocks = requested.align_outward(SECTION).chunks(PAGEBLOCK);
        blocks.find(|block| {
            let block = self.block_of(block.start().number());
            block.is_in_use() && block.node != node
        })
    }

    /// Returns what another node than `node` has in the sections that `requested` shares with other
    /// memory: a pageblock, or a part of a region if the section has no memory.
    fn other_node_beside(&self, requested: PfnRange, node: NodeId) -> Option<PfnRange> {
        if !Self::is_pageblocks(requested) || requested.end() > pfn(SIZE) {
            return None;
        }
        let sections = requested.align_outward(SECTION);
        let below = sections.split_at(requested.start()).0;
        let above = sections.split_at(requested.end()).1;
        let block_in_use = |part: &PfnRange| {
            let mut blocks = part.align_outward(SECTION).chunks(PAGEBLOCK);
            blocks.find(|block| self.block_of(block.start().number()).is_in_use())
        };
        let parts = || [below, above].into_iter().filter(|part| !part.is_empty());
        let mut in_use = parts().filter_map(|part| block_in_use(&part));
        in_use.find(|block| self.block_of(block.start().number()).node != node).or_else(|| {
            let region_in = |part: PfnRange| {
                let others = self.regions.iter();
                let others = others.filter(|region| region.node != node && !region.nodes_vary);
                let parts = others.map(|region| region.range.intersection(part));
                parts.filter(|part| !part.is_empty()).min_by_key(|part| part.start())
            };
            parts().filter(|part| block_in_use(part).is_none()).find_map(region_in)
        })
    }

    fn expected_online_error(&self, requested: PfnRange) -> Option<RangeError> {
        if !Self::is_pageblocks(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::Unaligned });
        }
        if !self.in_one_region(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::NotPresent });
        }
        let wrong: [fn(&Block) -> bool; 3] =
            [|b| !b.is_present, |b| b.online, |b| b.has_prepared_change];
        if let Some((i, range)) = self.first_wrong(requested, wrong) {
            let kinds = [RangeErrorKind::NotPresent, RangeErrorKind::Online, RangeErrorKind::Held];
            return Some(RangeError { range, kind: kinds[i] });
        }
        None
    }

    /// Returns a range that is invalid for nearly every call.
    pub(crate) fn random_bad_range(&mut self) -> PfnRange {
        let start = self.rng.u64(..SIZE);
        match self.rng.u8(..4) {
            0 => range(start, 0),
            1 => range(start, self.rng.u64(1..2 * PAGEBLOCK)),
            2 => range(SIZE + start / PAGEBLOCK * PAGEBLOCK, PAGEBLOCK),
            _ => range(hotmem_testkit::PFN_LIMIT - PAGEBLOCK, PAGEBLOCK),
        }
    }
}
