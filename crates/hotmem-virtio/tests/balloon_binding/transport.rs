//! A transport whose other end is the mock device.

use crate::device::Device;
use crate::shared::{DeviceSide, Page, Piece};
use hotmem::{Bytes, Pfn, PfnRange};
use hotmem_virtio::balloon::{
    Features, MemoryStatistics, Message, Numbering, Queue, Ranges, Statistic,
};
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The host's end.
#[derive(Clone)]
pub(crate) struct Host(Rc<RefCell<HostState>>);

pub(crate) struct HostState {
    pub(crate) device: Device,
    pub(crate) page: Page,
    pub(crate) device_type: DeviceType,
    pub(crate) offered: Features,
    pub(crate) negotiated: Features,
    pub(crate) refuses_features: bool,
    pub(crate) stuck_in_reset: bool,
    /// By number; 0 where there is none.
    pub(crate) queue_sizes: Vec<u32>,
    pub(crate) config_len: usize,
    pub(crate) statuses: Vec<DeviceStatus>,
    /// Does not look at its queues.
    pub(crate) asleep: bool,
    pub(crate) misdeed: Option<Misdeed>,
    pub(crate) poison_val: Option<u32>,
    /// Tags and values, as they came last.
    pub(crate) statistics: Vec<(u16, u64)>,
    pub(crate) notifications: u32,
    pub(crate) dropped: bool,
    status: DeviceStatus,
    interrupt: bool,
    /// What each number stands for.
    meaning: Vec<Option<Queue>>,
    queues: [Option<DeviceSide>; 6],
    heads: [u16; 6],
}

/// What the device does to its queue that it must not, at the next request.
#[derive(Clone, Copy)]
pub(crate) enum Misdeed {
    Id(u32),
    Length(u32),
    Index(u16),
}

/// The driver's end.
pub(crate) struct MockTransport(Host);

impl Host {
    pub(crate) fn new(offered: Features, numbering: Numbering) -> Host {
        let has = |queue: &Queue| offered.contains(queue.feature());
        let meaning: Vec<_> = match numbering {
            Numbering::Dense => Queue::ALL.into_iter().filter(has).map(Some).collect(),
            Numbering::Listed => Queue::ALL.map(|queue| has(&queue).then_some(queue)).to_vec(),
        };
        Host(Rc::new(RefCell::new(HostState {
            device: Device::new(0),
            page: Page::new(),
            device_type: DeviceType::MemoryBalloon,
            offered,
            negotiated: Features::empty(),
            refuses_features: false,
            stuck_in_reset: false,
            queue_sizes: meaning.iter().map(|queue| queue.map_or(0, |_| 128)).collect(),
            config_len: 16,
            statuses: Vec::new(),
            asleep: false,
            misdeed: None,
            poison_val: None,
            statistics: Vec::new(),
            notifications: 0,
            dropped: false,
            status: DeviceStatus::empty(),
            interrupt: false,
            meaning,
            queues: [None; 6],
            heads: [0; 6],
        })))
    }

    pub(crate) fn transport(&self) -> MockTransport {
        MockTransport(self.clone())
    }

    pub(crate) fn borrow(&self) -> std::cell::Ref<'_, HostState> {
        self.0.borrow()
    }

    pub(crate) fn borrow_mut(&self) -> RefMut<'_, HostState> {
        self.0.borrow_mut()
    }

    pub(crate) fn page(&self) -> Page {
        self.borrow().page
    }

    /// Does every request that is on a queue.
    pub(crate) fn serve(&self) {
        self.borrow_mut().serve();
    }
}

impl HostState {
    pub(crate) fn queue(&mut self, number: usize) -> &mut DeviceSide {
        self.queues[number].as_mut().expect("no queue was set up")
    }

    fn serve(&mut self) {
        assert!(self.status.contains(DeviceStatus::DRIVER_OK), "not started yet");
        for number in 0..self.queues.len() {
            let Some(side) = &mut self.queues[number] else { continue };
            while let Some((head, pieces)) = side.take() {
                let queue = self.meaning[number].expect("a queue that is not there");
                self.heads[number] = head;
                let message = read(self.page, queue, &pieces);
                if queue == Queue::Statistics {
                    let bytes = self.page.read(pieces[0].0, pieces[0].1 as usize);
                    self.statistics = entries(&bytes).collect();
                }
                self.device.send(message);
            }
        }
        while let Some(queue) = self.device.answer() {
            let number = self.meaning.iter().position(|&q| q == Some(queue)).unwrap();
            let head = u32::from(self.heads[number]);
            match self.misdeed {
                Some(Misdeed::Id(id)) => self.queue(number).give_back(id, 0),
                Some(Misdeed::Length(len)) => self.queue(number).give_back(head, len),
                Some(Misdeed::Index(index)) => self.queue(number).set_used_index(index),
                None => self.queue(number).give_back(head, 0),
            }
            self.interrupt = true;
        }
    }
}

/// The message that these bytes are.
fn read(page: Page, queue: Queue, pieces: &[Piece]) -> Message {
    let frames = |&(addr, len, device_writes): &Piece| {
        assert!(device_writes, "frames are for the device to write");
        PfnRange::from_bytes(addr, Bytes(len.into())).unwrap()
    };
    if queue == Queue::Reports {
        let ranges: Vec<_> = pieces.iter().map(frames).collect();
        return Message::Report(Ranges::new(&ranges));
    }
    let [piece @ (addr, len, device_writes)] = pieces[..] else { panic!("{pieces:x?}") };
    if device_writes {
        assert_eq!(queue, Queue::Hints);
        return Message::Hint(frames(&piece));
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
            assert!(words().eq(first..first + len / 4), "frames in one piece");
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

impl Transport for MockTransport {
    fn device_type(&self) -> DeviceType {
        self.0.borrow().device_type
    }

    fn read_device_features(&mut self) -> u64 {
        self.0.borrow().offered.bits()
    }

    fn write_driver_features(&mut self, driver_features: u64) {
        let mut host = self.0.borrow_mut();
        host.negotiated = Features::from_bits(driver_features).expect("an unknown feature");
        assert!(host.offered.contains(host.negotiated));
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.0.borrow().queue_sizes.get(usize::from(queue)).copied().unwrap_or(0)
    }

    fn notify(&mut self, _queue: u16) {
        let mut host = self.0.borrow_mut();
        host.notifications += 1;
        if !host.asleep {
            host.serve();
        }
    }

    fn get_status(&self) -> DeviceStatus {
        let host = self.0.borrow();
        if host.stuck_in_reset { DeviceStatus::DEVICE_NEEDS_RESET } else { host.status }
    }

    fn set_status(&mut self, status: DeviceStatus) {
        let mut host = self.0.borrow_mut();
        host.statuses.push(status);
        host.status = status;
        if status.is_empty() {
            host.queues = [None; 6];
        }
        if host.refuses_features {
            host.status.remove(DeviceStatus::FEATURES_OK);
        }
    }

    fn set_guest_page_size(&mut self, _guest_page_size: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        let mut host = self.0.borrow_mut();
        let number = usize::from(queue);
        assert!(size <= host.queue_sizes[number]);
        assert!(host.status.contains(DeviceStatus::FEATURES_OK));
        let meaning = host.meaning.get(number).copied().flatten();
        if let Some(meaning) = meaning {
            assert!(host.negotiated.contains(meaning.feature()), "{meaning:?} is not negotiated");
        }
        let page = host.page;
        host.queues[number] = Some(DeviceSide {
            page,
            size: u16::try_from(size).unwrap(),
            descriptors,
            driver_area,
            device_area,
            seen: 0,
            used: 0,
        });
    }

    fn queue_unset(&mut self, queue: u16) {
        self.0.borrow_mut().queues[usize::from(queue)] = None;
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.0.borrow().queues[usize::from(queue)].is_some()
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        match std::mem::take(&mut self.0.borrow_mut().interrupt) {
            true => InterruptStatus::QUEUE_INTERRUPT,
            false => InterruptStatus::empty(),
        }
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let host = self.0.borrow();
        if offset + size_of::<T>() > host.config_len {
            return Err(Error::ConfigSpaceTooSmall);
        }
        let value = match offset {
            0 => host.device.config.num_pages,
            8 if host.negotiated.contains(Features::FREE_PAGE_HINT) => {
                host.device.config.free_page_hint_cmd_id
            }
            other => panic!("a read at {other}"),
        };
        Ok(T::read_from_bytes(&value.to_le_bytes()).unwrap())
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> Result<()> {
        let mut host = self.0.borrow_mut();
        if offset + size_of::<T>() > host.config_len {
            return Err(Error::ConfigSpaceTooSmall);
        }
        let value = u32::from_le_bytes(value.as_bytes().try_into().unwrap());
        let started = host.status.contains(DeviceStatus::DRIVER_OK);
        match offset {
            4 if started => host.device.actual = value,
            12 if host.negotiated.contains(Features::PAGE_POISON) && !started => {
                host.poison_val = Some(value);
            }
            other => panic!("a write at {other}"),
        }
        Ok(())
    }
}

impl Drop for MockTransport {
    fn drop(&mut self) {
        self.0.borrow_mut().dropped = true;
        self.set_status(DeviceStatus::empty());
    }
}
