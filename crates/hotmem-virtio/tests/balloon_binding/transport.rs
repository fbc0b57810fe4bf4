//! Defines a mock balloon device behind a transport.

use crate::device::Device;
use crate::mock_transport::{self, DeviceModel};
use crate::shared::{Descriptor, SharedPage};
use crate::vmm::Vmm;
use hotmem::{Bytes, PfnRange};
use hotmem_virtio::balloon::{
    Features, FrameNumbers, MemoryStatistics, Message, Queue, QueueNumbering, Ranges, Statistic,
};
use virtio_drivers::transport::DeviceType;

pub(crate) type Host = mock_transport::Host<BalloonDevice>;
pub(crate) type HostState = mock_transport::HostState<BalloonDevice>;
pub(crate) type MockTransport = mock_transport::MockTransport<BalloonDevice>;

pub(crate) struct BalloonDevice {
    pub(crate) device: Device,
    pub(crate) poison_val: Option<u32>,
    /// The tags and values of the last statistics.
    pub(crate) statistics: Vec<(u16, u64)>,
    /// The queue of each number.
    queues: Vec<Option<Queue>>,
    /// Whether the queues are numbered without gaps by the accepted features, when the driver sets up
    /// the first one.
    pub(crate) numbers_accepted_queues: bool,
    chain_heads: [u16; 6],
    /// The size of the bitmap of the outstanding inflate request, if it has one.
    bitmap_bytes: Option<u32>,
}

pub(crate) fn host(offered: Features, numbering: QueueNumbering) -> Host {
    let has = |queue: &Queue| offered.contains(queue.feature());
    let queues: Vec<_> = match numbering {
        QueueNumbering::Dense => Queue::ALL.into_iter().filter(has).map(Some).collect(),
        QueueNumbering::Listed => Queue::ALL.map(|queue| has(&queue).then_some(queue)).to_vec(),
    };
    let queue_sizes = queues.iter().map(|queue| queue.map_or(0, |_| 128)).collect();
    let model = BalloonDevice {
        device: Device::new(0),
        poison_val: None,
        statistics: Vec::new(),
        queues,
        numbers_accepted_queues: false,
        chain_heads: [0; 6],
        bitmap_bytes: None,
    };
    Host::new(model, Vmm::QEMU, DeviceType::MemoryBalloon, offered, queue_sizes, 16)
}

impl DeviceModel for BalloonDevice {
    type Features = Features;

    fn set_up(&mut self, number: usize, negotiated: Features) {
        if self.numbers_accepted_queues {
            let is_accepted = |queue: &Queue| negotiated.contains(queue.feature());
            self.queues = Queue::ALL.into_iter().filter(is_accepted).map(Some).collect();
        }
        if let Some(queue) = self.queues.get(number).copied().flatten() {
            assert!(negotiated.contains(queue.feature()), "{queue:?} is not negotiated");
        }
    }

    fn handle_chain(
        &mut self,
        page: SharedPage,
        number: usize,
        head: u16,
        descriptors: &[Descriptor],
    ) {
        let queue = self.queues[number].expect("the queue exists");
        self.chain_heads[number] = head;
        if queue == Queue::Statistics {
            let bytes = page.read(descriptors[0].0, descriptors[0].1 as usize);
            self.statistics = statistics_entries(&bytes).collect();
        }
        if let (Queue::Inflate, [numbers, bitmap]) = (queue, descriptors) {
            self.bitmap_bytes = Some(write_bitmap(page, numbers, bitmap));
        }
        let descriptors = if queue == Queue::Inflate { &descriptors[..1] } else { descriptors };
        self.device.send(decode(page, queue, descriptors));
    }

    fn answer(&mut self) -> Option<(usize, u16, u32)> {
        let queue = self.device.answer()?;
        let number = self.queues.iter().position(|&q| q == Some(queue)).unwrap();
        let bitmap = if queue == Queue::Inflate { self.bitmap_bytes.take() } else { None };
        Some((number, self.chain_heads[number], bitmap.unwrap_or(0)))
    }

    fn generation(&mut self) -> u32 {
        self.device.config.generation
    }

    fn reset(&mut self) {
        self.device.reset();
        self.bitmap_bytes = None;
    }

    fn has_buffers(&self) -> bool {
        !self.device.unanswered.is_empty() || self.device.statistics_buffer.is_some()
    }

    fn read_config(&mut self, offset: usize, negotiated: Features, _ignores_queues: bool) -> u32 {
        match offset {
            0 => self.device.config.num_pages,
            8 if negotiated.contains(Features::FREE_PAGE_HINT) => {
                self.device.config.free_page_hint_cmd_id
            }
            unknown => panic!("the driver reads the configuration at offset {unknown}"),
        }
    }

    fn write_config(&mut self, offset: usize, value: u32, negotiated: Features, started: bool) {
        match offset {
            4 if started => self.device.actual_pages = value,
            12 if negotiated.contains(Features::PAGE_POISON) && !started => {
                self.poison_val = Some(value);
            }
            unknown => panic!("the driver writes the configuration at offset {unknown}"),
        }
    }
}

/// Says in the bitmap of an inflate request that the device has initialised each frame whose number
/// is not a multiple of 3. Returns the size of the bitmap.
fn write_bitmap(
    page: SharedPage,
    numbers: &Descriptor,
    &(addr, len, is_writable): &Descriptor,
) -> u32 {
    assert!(is_writable, "the device may not write the bitmap");
    assert_eq!(len, (numbers.1 / 4).div_ceil(8), "the size of the bitmap");
    let mut bitmap = page.read(addr, len as usize);
    assert!(bitmap.iter().all(|&byte| byte == 0), "the bitmap is not 0 before");
    let Message::Inflate(frames) = decode(page, Queue::Inflate, &[*numbers]) else {
        unreachable!()
    };
    for (index, _) in frames.as_slice().iter().enumerate().filter(|&(_, number)| number % 3 != 0) {
        bitmap[index / 8] |= 1 << (index % 8);
    }
    page.write(addr, &bitmap);
    len
}

/// Decodes a message.
fn decode(page: SharedPage, queue: Queue, descriptors: &[Descriptor]) -> Message {
    let frames = |&(addr, len, device_writes): &Descriptor| {
        assert!(device_writes, "the device may not write a buffer of frames");
        PfnRange::from_bytes(addr, Bytes(len.into())).unwrap()
    };
    if queue == Queue::Reports {
        let ranges: Vec<_> = descriptors.iter().map(frames).collect();
        return Message::Report(Ranges::new(&ranges).unwrap());
    }
    let [descriptor @ (addr, len, device_writes)] = descriptors[..] else {
        panic!("{descriptors:x?}")
    };
    if device_writes {
        assert_eq!(queue, Queue::Hints);
        return Message::Hint(frames(&descriptor));
    }
    let bytes = page.read(addr, len as usize);
    let words = || bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
    match queue {
        Queue::Hints => {
            assert_eq!(len, 4);
            Message::HintCommand(words().next().unwrap())
        }
        Queue::Statistics => {
            let _ = statistics_entries(&bytes).count();
            Message::Statistics(MemoryStatistics::default().with(Statistic::Free, 1))
        }
        _ => {
            assert_eq!(len % 4, 0);
            let numbers = FrameNumbers::new(&words().collect::<Vec<_>>()).unwrap();
            if queue == Queue::Inflate {
                Message::Inflate(numbers)
            } else {
                Message::Deflate(numbers)
            }
        }
    }
}

fn statistics_entries(bytes: &[u8]) -> impl Iterator<Item = (u16, u64)> + '_ {
    assert_eq!(bytes.len() % 10, 0);
    bytes.chunks_exact(10).map(|entry| {
        let (tag, value) = entry.split_at(2);
        let tag = u16::from_le_bytes(tag.try_into().unwrap());
        (tag, u64::from_le_bytes(value.try_into().unwrap()))
    })
}
