//! Defines a mock balloon device behind a transport.

use crate::device::Device;
use crate::mock_transport::{self, DeviceModel};
use crate::shared::{Descriptor, Page};
use hotmem::{Bytes, Pfn, PfnRange};
use hotmem_virtio::balloon::{
    Features, MemoryStatistics, Message, Queue, QueueNumbering, Ranges, Statistic,
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
    meaning: Vec<Option<Queue>>,
    chain_heads: [u16; 6],
}

pub(crate) fn host(offered: Features, numbering: QueueNumbering) -> Host {
    let has = |queue: &Queue| offered.contains(queue.feature());
    let meaning: Vec<_> = match numbering {
        QueueNumbering::Dense => Queue::ALL.into_iter().filter(has).map(Some).collect(),
        QueueNumbering::Listed => Queue::ALL.map(|queue| has(&queue).then_some(queue)).to_vec(),
    };
    let queue_sizes = meaning.iter().map(|queue| queue.map_or(0, |_| 128)).collect();
    let end = BalloonDevice {
        device: Device::new(0),
        poison_val: None,
        statistics: Vec::new(),
        meaning,
        chain_heads: [0; 6],
    };
    Host::new(end, DeviceType::MemoryBalloon, offered, queue_sizes, 16)
}

impl DeviceModel for BalloonDevice {
    type Features = Features;

    fn set_up(&self, queue: usize, negotiated: Features) {
        if let Some(meaning) = self.meaning.get(queue).copied().flatten() {
            assert!(negotiated.contains(meaning.feature()), "{meaning:?} is not negotiated");
        }
    }

    fn request(&mut self, page: Page, queue: usize, head: u16, descriptors: &[Descriptor]) {
        let meaning = self.meaning[queue].expect("the queue exists");
        self.chain_heads[queue] = head;
        if meaning == Queue::Statistics {
            let bytes = page.read(descriptors[0].0, descriptors[0].1 as usize);
            self.statistics = entries(&bytes).collect();
        }
        self.device.send(read(page, meaning, descriptors));
    }

    fn answer(&mut self) -> Option<(usize, u16, u32)> {
        let queue = self.device.answer()?;
        let number = self.meaning.iter().position(|&q| q == Some(queue)).unwrap();
        Some((number, self.chain_heads[number], 0))
    }

    fn generation(&mut self) -> u32 {
        self.device.config.generation
    }

    fn reset(&mut self) {
        self.device.reset();
    }

    fn read_config(&mut self, at: usize, negotiated: Features, _asleep: bool) -> u32 {
        match at {
            0 => self.device.config.num_pages,
            8 if negotiated.contains(Features::FREE_PAGE_HINT) => {
                self.device.config.free_page_hint_cmd_id
            }
            other => panic!("the driver reads the configuration at {other}"),
        }
    }

    fn write_config(&mut self, at: usize, value: u32, negotiated: Features, started: bool) {
        match at {
            4 if started => self.device.actual_pages = value,
            12 if negotiated.contains(Features::PAGE_POISON) && !started => {
                self.poison_val = Some(value);
            }
            other => panic!("the driver writes the configuration at {other}"),
        }
    }
}

/// Decodes a message.
fn read(page: Page, queue: Queue, descriptors: &[Descriptor]) -> Message {
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
            let _ = entries(&bytes).count();
            Message::Statistics(MemoryStatistics::default().with(Statistic::Free, 1))
        }
        _ => {
            assert_eq!(len % 4, 0);
            let first = words().next().unwrap();
            assert!(words().eq(first..first + len / 4), "the frames are not contiguous");
            let first = Pfn::new(first.into()).unwrap();
            let range = PfnRange::with_len(first, u64::from(len / 4)).unwrap();
            if queue == Queue::Inflate { Message::Inflate(range) } else { Message::Deflate(range) }
        }
    }
}

fn entries(bytes: &[u8]) -> impl Iterator<Item = (u16, u64)> + '_ {
    assert_eq!(bytes.len() % 10, 0);
    bytes.chunks_exact(10).map(|entry| {
        let (tag, value) = entry.split_at(2);
        let tag = u16::from_le_bytes(tag.try_into().unwrap());
        (tag, u64::from_le_bytes(value.try_into().unwrap()))
    })
}
