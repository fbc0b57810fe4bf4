//! Boots a machine and makes random operations on it.

use crate::descriptors::DescriptorPolicy;
use crate::long_requests::LongRequest;
use crate::model::{BOOT_SECTIONS, CHECK_EVERY_OPERATION, Model, Region, SIZE};
use crate::profile::Profile;
use crate::remove::PendingRemoval;
use crate::report::Reporting;
use crate::tokens::Token;
use fastrand::Rng;
use hotmem::{
    Addition, BootMap, BootRange, Bytes, Frames, Group, Hotplug, NodeId, OnlineType, Pfn, PfnRange,
    Policy,
};
use hotmem_testkit::forwarding::ForwardingMapping;
use hotmem_testkit::{Cpus, Memory, SECTION, env_number};

/// The machine under test and the model of it.
pub(crate) struct Machine<'f> {
    pub hotplug: Hotplug<'f, Cpus, ForwardingMapping<Model<'f>>>,
    pub model: Model<'f>,
    pub requests: Vec<LongRequest<'f>>,
    pub tokens: Vec<Token<'f>>,
    pub removals: Vec<PendingRemoval<'f>>,
    /// The prepared additions, their ranges, and whether they are of device memory.
    pub additions: Vec<(Addition<'f, Cpus>, PfnRange, bool)>,
    pub reporting: Reporting<'f>,
    pub policy: Policy,
    pub profile: Profile,
    pub auto_online: OnlineType,
    /// Whether operations allocate more often than they free.
    pub is_filling: bool,
}

impl Machine<'_> {
    /// Boots a machine with a random memory map, makes `operations` operations on it, and removes
    /// its memory. Returns false if the memory map has too little memory to boot.
    pub(crate) fn run(seed: u64, operations: u64) -> bool {
        Cpus::run_on(0);
        let mut rng = Rng::with_seed(seed);
        let memory = Memory::new(SIZE);
        let frames = Frames::new(Cpus);
        let Some(mut machine) = Machine::boot(&frames, &memory, &mut rng, Profile::of(seed)) else {
            return false;
        };
        machine.model.is_traced = env_number("HOTMEM_TRACE").is_some();
        let mut progress = ReplayHint { seed, operation: 0, is_done: false };
        for operation in 0..operations {
            progress.operation = operation;
            machine.step(operation);
        }
        machine.find_everything();
        if CHECK_EVERY_OPERATION {
            machine.remove_all_memory();
        }
        progress.is_done = true;
        true
    }

    fn step(&mut self, operation: u64) {
        let check_interval = if CHECK_EVERY_OPERATION { 1 } else { 100 };
        let model = &mut self.model;
        if model.rng.u32(..100) < 10 {
            Cpus::run_on(model.rng.usize(..3));
        }
        if operation.is_multiple_of(300) {
            self.is_filling = model.rng.bool();
            model.veto_percent = if model.rng.u8(..4) == 0 { 20 } else { 0 };
            model.retry_percent = if model.rng.u8(..4) == 0 { 30 } else { 0 };
            self.change_policy();
            self.change_boot_complete();
        }
        let poisoning = 960..960 + self.profile.poisonings;
        match self.model.rng.u32(..1000) {
            0..480 => self.allocate_or_free(),
            480..570 => self.bad_free(),
            570..740 => self.change_range_state(),
            740..850 => self.request(),
            850..900 => self.isolate(),
            900..960 => self.report(),
            choice if poisoning.contains(&choice) => self.poison(),
            _ => self.bad_request(),
        }
        if operation % 10_000 == 9_999 {
            self.find_everything();
        }
        if operation.is_multiple_of(check_interval) {
            self.check();
        }
        if operation.is_multiple_of(check_interval * 50) {
            self.check_memory_blocks();
            self.check_scans();
            self.validate();
        }
    }

    fn boot<'f>(
        frames: &'f Frames<Cpus>,
        memory: &'f Memory,
        rng: &mut Rng,
        profile: Profile,
    ) -> Option<Machine<'f>> {
        let bytes = (BOOT_SECTIONS * SECTION) << 12;
        let mut random_range =
            |longest: u64| BootRange { start: rng.u64(..bytes), len: Bytes(rng.u64(..longest)) };
        let mut ram: Vec<_> = (0..4).map(|_| random_range(bytes / 2)).collect();
        let mut reserved: Vec<_> = (0..6).map(|_| random_range(bytes / 40)).collect();
        for range in ram.iter_mut().chain(&mut reserved) {
            range.len.0 = range.len.0.min(bytes - range.start);
        }
        // The boundary of low memory is random in half of the machines. The others have none.
        let low_end = rng.u64(..2 * SIZE).saturating_sub(SIZE);
        let low_end = Pfn::new(low_end).expect("within the address limit");
        let map = BootMap { reserved: &reserved, low_end, ..BootMap::from(ram.as_slice()) };
        let hotplug =
            hotmem_testkit::start(frames, ForwardingMapping::new(memory.direct_map()), map).ok()?;
        hotmem_testkit::keep_zero_marks(frames);
        let mut model = Model::new(frames, memory, rng.fork());
        model.low_end = low_end.align_down(SECTION);
        let (node, group) = (NodeId::ZERO, Group::None);
        for (id, region) in hotplug.regions() {
            model.words.record_region(model.regions.len());
            model.regions.push(Region { id, range: region, node, group, nodes_vary: false });
            model.words.record_addition(region, node);
        }
        model.descriptor_policy = DescriptorPolicy::random(rng);
        model.record_boot_memory(&ram, &reserved);
        let mut machine = Machine {
            hotplug,
            model,
            requests: vec![],
            tokens: vec![],
            removals: vec![],
            additions: vec![],
            reporting: Reporting::new(),
            policy: Policy::default(),
            profile,
            auto_online: OnlineType::Offline,
            is_filling: true,
        };
        machine.check();
        machine.validate();
        Some(machine)
    }
}

/// Prints how to replay a run when it is dropped while `is_done` is false, as in a panic.
struct ReplayHint {
    seed: u64,
    operation: u64,
    is_done: bool,
}

impl Drop for ReplayHint {
    fn drop(&mut self) {
        if !self.is_done {
            eprintln!(
                "operation {} failed; replay with HOTMEM_SEED={} HOTMEM_OPERATIONS={}",
                self.operation,
                self.seed,
                self.operation + 1
            );
        }
    }
}
