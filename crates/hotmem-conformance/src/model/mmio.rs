//! Puts a model behind the registers of virtio-mmio (4.2.2).

mod host;

use super::balloon_device::BalloonDevice;
use super::deviation::{Behaviour, Deviation};
use super::interrupts::Interrupts;
use super::kind::Kind;
use super::memory_device::MemoryDevice;
use super::queue::{Answer, Chain, MAX_SIZE, Queue};
use super::ram::Ram;
use crate::device::{GuestMemory, Inaccessible, Registers};
use crate::registers::{
    CONFIG, CONFIG_GENERATION, DEVICE_FEATURES, DEVICE_FEATURES_SEL, DEVICE_ID, DRIVER_FEATURES,
    DRIVER_FEATURES_SEL, DRIVER_OK, FAILED, FEATURES_OK, INTERRUPT_ACK, INTERRUPT_STATUS,
    MAGIC_VALUE, QUEUE_DESC, QUEUE_DEVICE, QUEUE_DRIVER, QUEUE_NOTIFY, QUEUE_NUM, QUEUE_NUM_MAX,
    QUEUE_READY, QUEUE_SEL, STATUS, VERSION, VERSION_1,
};
use std::ops::Range;

/// The feature `VIRTIO_BALLOON_F_PAGE_POISON`.
const POISON: u64 = 1 << 4;
/// The feature `DEVICE_INIT_ON_INFLATE`, which is proposed for the specification.
const INIT_ON_INFLATE: u64 = 1 << 7;
/// The feature `VIRTIO_BALLOON_F_PAGE_REPORTING`, and its queue.
const PAGE_REPORTING: u64 = 1 << 5;
const REPORTS: usize = 4;
/// The type of the response `VIRTIO_MEM_RESP_BUSY`.
const BUSY: u8 = 2;

/// A device that follows the specification, but for one deviation at most.
pub struct Model {
    ram: Ram,
    kind: Kind,
    deviation: Option<Deviation>,
    behaviour: Option<Behaviour>,
    /// How many requests are still answered by BUSY.
    busy_answers: u32,
    status: u32,
    generation: u32,
    /// Whether the configuration has changed since the driver has read it last.
    has_changed: bool,
    accepted: u64,
    features_word: u32,
    accepted_word: u32,
    queue: usize,
    queues: Vec<Queue>,
    notified: Vec<bool>,
    /// The chain with statistics that the device keeps, with its queue.
    held: Option<(usize, Chain)>,
    interrupts: Interrupts,
}

impl Model {
    /// Makes a memory device of 64 blocks of 128 KiB, of which none is requested.
    #[must_use]
    pub fn memory(deviation: Option<Deviation>) -> Model {
        let device = MemoryDevice::new(deviation);
        Model::new(Ram::new(device.region()), Kind::Memory(device), deviation)
    }

    /// Makes a balloon with all services.
    #[must_use]
    pub fn balloon(deviation: Option<Deviation>) -> Model {
        Model::new(Ram::new(0..0), Kind::Balloon(BalloonDevice::new(deviation)), deviation)
    }

    /// Makes the device behave unlike most.
    #[must_use]
    pub fn behaving(self, behaviour: Behaviour) -> Model {
        let busy_answers = match behaviour {
            Behaviour::AlwaysBusy => u32::MAX,
            Behaviour::BusyAtFirst => 3,
            _ => 0,
        };
        Model { behaviour: Some(behaviour), busy_answers, ..self }
    }

    fn new(ram: Ram, kind: Kind, deviation: Option<Deviation>) -> Model {
        let queues = kind.queues();
        Model {
            ram,
            kind,
            deviation,
            behaviour: None,
            busy_answers: 0,
            status: 0,
            generation: 0,
            has_changed: false,
            accepted: 0,
            features_word: 0,
            accepted_word: 0,
            queue: 0,
            queues: vec![Queue::default(); queues],
            notified: vec![false; queues],
            held: None,
            interrupts: Interrupts::new(deviation),
        }
    }

    fn register(&mut self, offset: u64) -> u32 {
        match offset {
            MAGIC_VALUE => 0x7472_6976,
            VERSION => 2,
            DEVICE_ID => self.kind.id(),
            DEVICE_FEATURES => word(self.offered(), self.features_word),
            QUEUE_NUM_MAX if self.has_queue() || self.deviates(Deviation::EveryQueueHasSize) => {
                MAX_SIZE.into()
            }
            QUEUE_READY if self.deviation == Some(Deviation::QueueReadyReadsZero) => 0,
            QUEUE_READY => self.queues.get(self.queue).is_some_and(|queue| queue.is_ready).into(),
            INTERRUPT_STATUS => self.interrupts.status(),
            STATUS => self.status,
            CONFIG_GENERATION => {
                if self.behaviour == Some(Behaviour::GenerationNeverRests) {
                    self.generation = self.generation.wrapping_add(1);
                }
                self.generation
            }
            _ => 0,
        }
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        match offset {
            DEVICE_FEATURES_SEL => self.features_word = value,
            DRIVER_FEATURES_SEL => self.accepted_word = value,
            DRIVER_FEATURES if self.accepted_word == 0 => {
                self.accepted = self.accepted >> 32 << 32 | u64::from(value);
            }
            DRIVER_FEATURES => {
                self.accepted = self.accepted & 0xffff_ffff | u64::from(value) << 32;
            }
            QUEUE_SEL => self.queue = value as usize,
            QUEUE_NOTIFY => {
                if let Some(notified) = self.notified.get_mut(value as usize) {
                    *notified = true;
                }
            }
            INTERRUPT_ACK => self.interrupts.acknowledge(value),
            STATUS if value == 0 => self.reset(),
            STATUS => self.set_status(value),
            _ => self.set_queue_register(offset, value),
        }
    }

    fn set_queue_register(&mut self, offset: u64, value: u32) {
        let Some(queue) = self.queues.get_mut(self.queue) else { return };
        match offset {
            QUEUE_NUM => queue.size = u16::try_from(value).unwrap_or(0).min(MAX_SIZE),
            QUEUE_READY => queue.set_ready(value != 0),
            _ => {
                let areas = [QUEUE_DESC, QUEUE_DRIVER, QUEUE_DEVICE];
                for (area, start) in queue.areas.iter_mut().zip(areas) {
                    if offset == start {
                        *area = *area >> 32 << 32 | u64::from(value);
                    } else if offset == start + 4 {
                        *area = *area & 0xffff_ffff | u64::from(value) << 32;
                    }
                }
            }
        }
    }

    fn set_status(&mut self, value: u32) {
        self.status = value;
        let unknown = self.accepted & !self.offered();
        if value & FEATURES_OK == 0 || value & DRIVER_OK != 0 {
            return;
        }
        let is_refused = unknown != 0 && !self.deviates(Deviation::UnknownFeatureAccepted)
            || self.accepted & VERSION_1 == 0
            || self.needs_more_features();
        if is_refused {
            self.status &= !FEATURES_OK;
        } else {
            self.kind.accept(self.accepted);
        }
    }

    fn reset(&mut self) {
        let was_started = self.status & DRIVER_OK != 0;
        if was_started && self.deviates(Deviation::ResetIgnoredWhenStarted) {
            return;
        }
        let fails = self.deviates(Deviation::ResetFails) && self.status == 3;
        self.status = if fails { FAILED } else { 0 };
        for queue in &mut self.queues {
            let stays_ready = queue.is_ready && self.deviation == Some(Deviation::QueuesStayReady);
            *queue = Queue::default();
            queue.set_ready(stays_ready);
        }
        self.notified.fill(false);
        self.held = None;
        self.interrupts.reset();
        self.kind.reset(was_started, &mut self.ram);
    }

    /// Carries out all requests of a queue.
    fn serve(&mut self, number: usize) {
        let mut batch: Vec<Chain> =
            core::iter::from_fn(|| self.queues[number].take(&self.ram)).collect();
        if self.deviates(Deviation::BatchReversed) {
            batch.reverse();
        }
        for chain in batch {
            match self.answer(number, &chain) {
                Answer::Used(used_len) => self.give_back(number, &chain, used_len),
                Answer::Held => self.held = Some((number, chain)),
                Answer::LosesBatch => return,
            }
        }
    }

    fn answer(&mut self, number: usize, chain: &Chain) -> Answer {
        if self.busy_answers > 0 {
            self.busy_answers -= 1;
            return Answer::Used(chain.respond(&mut self.ram, &[BUSY, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        }
        let before = self.kind.config();
        let listed = match self.behaviour {
            Some(Behaviour::OnlyReportsWithoutGap) if number == 2 => REPORTS,
            _ => number,
        };
        let answer = self.kind.serve(listed, chain, &mut self.ram);
        if self.kind.config() != before && !self.deviates(Deviation::GenerationIgnoresPlug) {
            self.change_generation();
        }
        answer
    }

    fn give_back(&mut self, number: usize, chain: &Chain, used_len: u32) {
        let (queue, ram) = (&mut self.queues[number], &mut self.ram);
        let head = u32::from(chain.head);
        let last = chain.writable.last().or(chain.readable.last());
        match self.behaviour {
            Some(Behaviour::AnswersTwice) => queue.give_back(ram, head, used_len),
            Some(Behaviour::UsesWrongChain) => return queue.give_back(ram, head + 7, used_len),
            Some(Behaviour::UsedIndexJumps) => queue.skip(ram, 1000),
            Some(Behaviour::ReportsTooMany) => return queue.give_back(ram, head, 1 << 20),
            Some(Behaviour::WritesBehindBuffers) => {
                if let Some(buffer) = last {
                    ram.fill(buffer.addr + u64::from(buffer.len), 1, 1);
                }
            }
            Some(Behaviour::WritesReadable) => {
                if let Some(buffer) = chain.readable.first() {
                    ram.fill(buffer.addr, 1, 0xff);
                }
            }
            Some(Behaviour::WritesDescriptors) => ram.fill(queue.areas[0], 1, 1),
            _ => {}
        }
        queue.give_back(ram, head, used_len);
        if queue.wants_interrupt(ram) {
            self.interrupts.buffer_used();
        }
    }

    /// Returns whether the device refuses to run with the accepted features.
    fn needs_more_features(&self) -> bool {
        let all = self.offered() & !(POISON | INIT_ON_INFLATE);
        self.behaviour == Some(Behaviour::NeedsAllFeatures) && self.accepted & all != all
    }

    fn offered(&self) -> u64 {
        use Behaviour::{OnlyReports, OnlyReportsWithoutGap};
        let has_all = !matches!(self.behaviour, Some(OnlyReports | OnlyReportsWithoutGap));
        VERSION_1 | if has_all { self.kind.features() } else { PAGE_REPORTING }
    }

    /// Returns whether the selected queue exists.
    fn has_queue(&self) -> bool {
        match self.behaviour {
            Some(Behaviour::OnlyReports) => [0, 1, REPORTS].contains(&self.queue),
            Some(Behaviour::OnlyReportsWithoutGap) => self.queue <= 2,
            _ => self.queue < self.queues.len(),
        }
    }

    /// Changes the generation, now or when the driver reads the configuration.
    fn change_generation(&mut self) {
        self.has_changed = true;
        if self.behaviour != Some(Behaviour::GenerationChangesWhenRead) {
            self.take_change();
        }
    }

    fn take_change(&mut self) {
        self.generation += u32::from(core::mem::take(&mut self.has_changed));
    }

    fn host_changed(&mut self) {
        if !self.deviates(Deviation::GenerationIgnoresHost) {
            self.change_generation();
        }
        // The driver gets no notification before DRIVER_OK (2.1.2).
        if self.status & DRIVER_OK != 0 {
            self.interrupts.config_changed();
        }
    }

    fn deviates(&self, deviation: Deviation) -> bool {
        self.deviation == Some(deviation)
    }
}

impl Registers for Model {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        if offset < CONFIG {
            let bytes = self.register(offset).to_le_bytes();
            data.copy_from_slice(&bytes[..data.len()]);
            return;
        }
        self.take_change();
        let unusual = self.behaviour.and_then(Behaviour::config);
        let config = unusual.unwrap_or_else(|| self.kind.config());
        let start = usize::try_from(offset - CONFIG).unwrap_or(usize::MAX);
        for (place, at) in data.iter_mut().zip(start..) {
            *place = config.get(at).copied().unwrap_or(0);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset < CONFIG {
            if let Ok(bytes) = data.try_into() {
                self.set_register(offset, u32::from_le_bytes(bytes));
            }
            return;
        }
        let offset = usize::try_from(offset - CONFIG).unwrap_or(usize::MAX);
        if self.kind.write_config(offset, data) {
            self.change_generation();
        }
    }

    fn run(&mut self) {
        let few_features = self.accepted == VERSION_1;
        let is_silent = few_features && self.deviates(Deviation::FewFeaturesNotServed)
            || self.behaviour == Some(Behaviour::NeverAnswers)
            || self.status & DRIVER_OK == 0;
        for number in 0..self.queues.len() {
            if !core::mem::take(&mut self.notified[number]) || is_silent {
                continue;
            }
            match self.behaviour {
                Some(Behaviour::Panics) => panic!("the model panics, as it was told to"),
                Some(Behaviour::Hangs) => loop {
                    std::thread::park();
                },
                _ => self.serve(number),
            }
        }
    }
}

impl GuestMemory for Model {
    fn ram(&self) -> Range<u64> {
        self.ram.ram()
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        if let Kind::Memory(device) = &self.kind
            && !self.ram.ram().contains(&addr)
        {
            device.access(addr, false)?;
        }
        self.ram.read(addr, data)
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        let is_lost = match &self.kind {
            Kind::Memory(device) if !self.ram.ram().contains(&addr) => {
                !device.access(addr, true)?
            }
            Kind::Memory(_) => false,
            Kind::Balloon(device) => device.loses(addr),
        };
        if is_lost { Ok(()) } else { self.ram.write(addr, data) }
    }
}

/// Returns 32 bits of 64.
fn word(bits: u64, number: u32) -> u32 {
    let [a, b, c, d, e, f, g, h] = bits.to_le_bytes();
    match number {
        0 => u32::from_le_bytes([a, b, c, d]),
        1 => u32::from_le_bytes([e, f, g, h]),
        _ => 0,
    }
}
