//! A transport whose other end is the mock device.

use crate::device::Device;
use crate::shared::{DeviceSide, Page};
use hotmem_virtio::mem::{Features, RawConfig, Request};
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
    pub(crate) queue_size: u32,
    pub(crate) config_len: usize,
    pub(crate) status: DeviceStatus,
    pub(crate) statuses: Vec<DeviceStatus>,
    /// Does not look at its queue.
    pub(crate) asleep: bool,
    pub(crate) misdeed: Option<Misdeed>,
    /// So many reads of the configuration, each of another one, are yet to come.
    pub(crate) unsteady: u32,
    /// Read so many times, instead of what is true.
    pub(crate) torn: Option<(RawConfig, u32)>,
    pub(crate) generation_moves: bool,
    pub(crate) generation_flaps: bool,
    pub(crate) config_reads: u32,
    pub(crate) notifications: u32,
    pub(crate) dropped: bool,
    generation: u32,
    interrupt: bool,
    queue: Option<DeviceSide>,
}

/// What the device does to its queue that it must not, at the next request.
#[derive(Clone, Copy)]
pub(crate) enum Misdeed {
    Id(u32),
    Length(u32),
    Index(u16),
    /// Says that it answered, and did not.
    Silence,
}

/// The driver's end.
pub(crate) struct MockTransport(Host);

impl Host {
    pub(crate) fn new(device: Device) -> Host {
        Host(Rc::new(RefCell::new(HostState {
            device,
            page: Page::new(),
            device_type: DeviceType::Memory,
            offered: Features::all(),
            negotiated: Features::empty(),
            refuses_features: false,
            stuck_in_reset: false,
            queue_size: 128,
            config_len: RawConfig::SIZE,
            status: DeviceStatus::empty(),
            statuses: Vec::new(),
            asleep: false,
            misdeed: None,
            unsteady: 0,
            torn: None,
            generation_moves: true,
            generation_flaps: false,
            config_reads: 0,
            notifications: 0,
            dropped: false,
            generation: 0,
            interrupt: false,
            queue: None,
        })))
    }

    pub(crate) fn transport(&self) -> MockTransport {
        self.borrow_mut().dropped = false;
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

    pub(crate) fn page_addr(&self) -> u64 {
        self.page().dma(0).device_addr()
    }

    /// Does every request that is on the queue.
    pub(crate) fn serve(&self) {
        self.borrow_mut().serve();
    }
}

impl HostState {
    pub(crate) fn queue(&mut self) -> &mut DeviceSide {
        self.queue.as_mut().expect("no queue was set up")
    }

    fn serve(&mut self) {
        assert!(self.status.contains(DeviceStatus::DRIVER_OK), "not started yet");
        while let Some((head, pieces)) = self.queue().take() {
            let [(request, 24, false), (response, 10, true)] = pieces[..] else {
                panic!("not a request: {pieces:x?}");
            };
            let bytes: [u8; Request::SIZE] = self.page.read(request, 24).try_into().unwrap();
            let (answer, _) = self.device.handle(&bytes);
            if !matches!(self.misdeed, Some(Misdeed::Silence)) {
                self.page.write(response, &answer);
            }
            let len = answer.len() as u32;
            match self.misdeed {
                Some(Misdeed::Id(id)) => self.queue().give_back(id, len),
                Some(Misdeed::Length(len)) => self.queue().give_back(head.into(), len),
                Some(Misdeed::Index(index)) => self.queue().set_used_index(index),
                Some(Misdeed::Silence) | None => self.queue().give_back(head.into(), len),
            }
            self.interrupt = true;
        }
    }

    fn config_bytes(&mut self) -> [u8; RawConfig::SIZE] {
        self.config_reads += 1;
        let seen = self.device.requested_seen;
        let mut config = self.device.read_config();
        if self.asleep {
            // What the driver reads now cannot change the request that is waiting.
            self.device.requested_seen = seen;
        }
        // A read of the configuration is fourteen reads of words; what is not true lasts for one.
        let reading = self.config_reads.div_ceil(14);
        if self.unsteady > 0 {
            self.unsteady -= 1;
            config.requested_size = u64::from(reading) * config.block_size;
        }
        if let Some((torn, reads)) = &mut self.torn {
            config = *torn;
            if self.config_reads.is_multiple_of(14) {
                *reads -= 1;
                self.generation += u32::from(self.generation_moves);
            }
        }
        self.torn = self.torn.filter(|(_, reads)| *reads > 0);
        bytes_of(&config)
    }
}

/// The configuration as a device shows it (5.15.4).
pub(crate) fn bytes_of(config: &RawConfig) -> [u8; RawConfig::SIZE] {
    let mut bytes = [0; RawConfig::SIZE];
    bytes[0..8].copy_from_slice(&config.block_size.to_le_bytes());
    bytes[8..10].copy_from_slice(&config.node_id.to_le_bytes());
    for (at, value) in [
        (16, config.addr),
        (24, config.region_size),
        (32, config.usable_region_size),
        (40, config.plugged_size),
        (48, config.requested_size),
    ] {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    bytes
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
        assert_eq!(queue, 0);
        self.0.borrow().queue_size
    }

    fn notify(&mut self, queue: u16) {
        assert_eq!(queue, 0);
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
            host.queue = None;
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
        assert_eq!(queue, 0);
        let mut host = self.0.borrow_mut();
        assert!(size <= host.queue_size);
        assert!(host.status.contains(DeviceStatus::FEATURES_OK));
        host.queue = Some(DeviceSide {
            page: host.page,
            size: u16::try_from(size).unwrap(),
            descriptors,
            driver_area,
            device_area,
            seen: 0,
            used: 0,
        });
    }

    fn queue_unset(&mut self, _queue: u16) {
        self.0.borrow_mut().queue = None;
    }

    fn queue_used(&mut self, _queue: u16) -> bool {
        self.0.borrow().queue.is_some()
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        match std::mem::take(&mut self.0.borrow_mut().interrupt) {
            true => InterruptStatus::QUEUE_INTERRUPT,
            false => InterruptStatus::empty(),
        }
    }

    fn read_config_generation(&self) -> u32 {
        let mut host = self.0.borrow_mut();
        host.generation += u32::from(host.generation_flaps);
        host.generation
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let mut host = self.0.borrow_mut();
        let end = offset + size_of::<T>();
        if end > host.config_len {
            return Err(Error::ConfigSpaceTooSmall);
        }
        Ok(T::read_from_bytes(&host.config_bytes()[offset..end]).unwrap())
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        _offset: usize,
        _value: T,
    ) -> Result<()> {
        panic!("the configuration is read-only");
    }
}

impl Drop for MockTransport {
    fn drop(&mut self) {
        self.0.borrow_mut().dropped = true;
        self.set_status(DeviceStatus::empty());
    }
}
