//! Defines a mock virtio-mem device behind a transport.

use crate::device::Device;
use crate::mock_transport::{self, DeviceModel};
use crate::shared::{Descriptor, SharedPage};
use crate::vmm::Vmm;
use hotmem_virtio::mem::{Features, RawConfig, Request};
use std::collections::VecDeque;
use virtio_drivers::transport::DeviceType;

pub(crate) type Host = mock_transport::Host<MemoryDevice>;
pub(crate) type HostState = mock_transport::HostState<MemoryDevice>;
pub(crate) type MockTransport = mock_transport::MockTransport<MemoryDevice>;

pub(crate) struct MemoryDevice {
    pub(crate) device: Device,
    /// Whether the device uses buffers without writing an answer.
    pub(crate) omits_answers: bool,
    /// The number of reads of words during which the configuration differs at each whole read.
    pub(crate) changing_reads: u32,
    /// A torn configuration, and the number of whole reads that return it.
    pub(crate) torn_config: Option<(RawConfig, u32)>,
    /// Whether the generation changes after a torn read.
    pub(crate) torn_read_changes_generation: bool,
    /// Whether the generation differs at each read of the generation.
    pub(crate) generation_always_changes: bool,
    /// The number of words of the configuration that the driver has read.
    pub(crate) config_reads: u32,
    generation: u32,
    /// The heads of used chains, and the bytes written to each.
    used_chains: VecDeque<(u16, u32)>,
}

/// The number of fields that a read of the configuration reads.
const FIELDS: u32 = 13;

pub(crate) fn host(vmm: Vmm, mut device: Device) -> Host {
    device.slot_bytes = vmm.slot_bytes;
    device.unplug_all_empties_usable_region = vmm.unplug_all_empties_usable_region;
    let model = MemoryDevice {
        device,
        omits_answers: false,
        changing_reads: 0,
        torn_config: None,
        torn_read_changes_generation: true,
        generation_always_changes: false,
        config_reads: 0,
        generation: 0,
        used_chains: VecDeque::new(),
    };
    let (features, queues) = (Features::all(), vec![vmm.queue_size]);
    Host::new(model, vmm, DeviceType::Memory, features, queues, RawConfig::SIZE)
}

impl MemoryDevice {
    fn config_bytes(&mut self, ignores_queues: bool) -> [u8; RawConfig::SIZE] {
        self.config_reads += 1;
        let requested_seen = self.device.requested_seen;
        let mut config = self.device.read_config();
        if ignores_queues {
            // While a request is outstanding, a read must not change the device.
            self.device.requested_seen = requested_seen;
        }
        // A torn configuration is returned for a whole read.
        let whole_reads = self.config_reads.div_ceil(FIELDS);
        if self.changing_reads > 0 {
            self.changing_reads -= 1;
            config.requested_size = u64::from(whole_reads) * config.block_size;
        }
        if let Some((torn, reads)) = &mut self.torn_config {
            config = *torn;
            if self.config_reads.is_multiple_of(FIELDS) {
                *reads -= 1;
                self.generation += u32::from(self.torn_read_changes_generation);
            }
        }
        self.torn_config = self.torn_config.filter(|(_, reads)| *reads > 0);
        bytes_of(&config)
    }
}

impl DeviceModel for MemoryDevice {
    type Features = Features;

    fn handle_chain(
        &mut self,
        page: SharedPage,
        _queue: usize,
        head: u16,
        descriptors: &[Descriptor],
    ) {
        let [(request, 24, false), (response, 10, true)] = *descriptors else {
            panic!("the chain is not a request: {descriptors:x?}");
        };
        let bytes: [u8; Request::SIZE] = page.read(request, 24).try_into().unwrap();
        let (answer, _) = self.device.handle(&bytes);
        if !self.omits_answers {
            page.write(response, &answer);
        }
        self.used_chains.push_back((head, answer.len() as u32));
    }

    fn answer(&mut self) -> Option<(usize, u16, u32)> {
        let (head, len) = self.used_chains.pop_front()?;
        Some((0, head, len))
    }

    fn generation(&mut self) -> u32 {
        self.generation += u32::from(self.generation_always_changes);
        self.generation
    }

    fn field_bytes(&self, offset: usize) -> usize {
        // `node_id` is followed by padding.
        if offset == 8 { 2 } else { 4 }
    }

    fn read_config(&mut self, offset: usize, _: Features, ignores_queues: bool) -> u32 {
        assert_ne!(offset, 12, "the driver reads padding");
        let bytes = self.config_bytes(ignores_queues);
        u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }
}

/// Encodes the configuration (5.15.4).
pub(crate) fn bytes_of(config: &RawConfig) -> [u8; RawConfig::SIZE] {
    let mut bytes = [0; RawConfig::SIZE];
    bytes[0..8].copy_from_slice(&config.block_size.to_le_bytes());
    bytes[8..10].copy_from_slice(&config.node_id.to_le_bytes());
    for (offset, value) in [
        (16, config.addr),
        (24, config.region_size),
        (32, config.usable_region_size),
        (40, config.plugged_size),
        (48, config.requested_size),
    ] {
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
