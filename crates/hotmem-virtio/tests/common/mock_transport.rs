//! Defines a transport to a mock device.

use crate::shared::{Descriptor, DeviceSide, SharedPage};
use crate::vmm::Vmm;
use bitflags::Flags;
use hotmem_testkit::{Ending, Work};
use hotmem_virtio::queue::QueueFeatures;
use std::cell::{Ref, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A mock device without its transport: it handles chains and accesses to its configuration.
pub(crate) trait DeviceModel {
    type Features: Flags<Bits = u64> + Copy;

    /// Called after the driver has set up a queue.
    fn set_up(&mut self, _queue: usize, _negotiated: Self::Features) {}

    /// Called after the driver has made a chain available.
    fn handle_chain(
        &mut self,
        page: SharedPage,
        queue: usize,
        head: u16,
        descriptors: &[Descriptor],
    );

    /// Returns the next used chain: its queue, its head, and the number of bytes written.
    fn answer(&mut self) -> Option<(usize, u16, u32)>;

    fn generation(&mut self) -> u32 {
        0
    }

    /// Removes all buffers from the device.
    fn reset(&mut self) {}

    /// Returns whether the device has buffers that it has taken from a queue and not used.
    fn has_buffers(&self) -> bool {
        false
    }

    /// Returns the size in bytes of the field of the configuration at this offset. A field of 8
    /// bytes consists of two fields of 4 bytes (4.1.3.1).
    fn field_bytes(&self, _offset: usize) -> usize {
        4
    }

    /// Reads a field of the configuration. `ignores_queues` says whether the device
    /// ignores its queues at the moment.
    fn read_config(
        &mut self,
        offset: usize,
        negotiated: Self::Features,
        ignores_queues: bool,
    ) -> u32;

    /// Writes a word of the configuration. The last argument says whether `DRIVER_OK` is set.
    fn write_config(&mut self, _offset: usize, _value: u32, _: Self::Features, _started: bool) {
        panic!("the configuration is read-only");
    }
}

/// The host's side of the transport.
pub(crate) struct Host<M: DeviceModel>(Rc<RefCell<HostState<M>>>);

pub(crate) struct HostState<M: DeviceModel> {
    model: M,
    pub(crate) vmm: Vmm,
    pub(crate) page: SharedPage,
    pub(crate) device_type: DeviceType,
    pub(crate) offered_features: M::Features,
    pub(crate) negotiated_features: M::Features,
    /// The feature bits of queues that the device offers, and those that the driver has accepted.
    pub(crate) offered_queue_features: u64,
    pub(crate) queue_features: QueueFeatures,
    pub(crate) refuses_features: bool,
    pub(crate) stuck_in_reset: bool,
    /// The bits that the device adds to its status when `DRIVER_OK` is set.
    pub(crate) status_at_driver_ok: DeviceStatus,
    /// The queue sizes by number; 0 for a missing queue.
    pub(crate) queue_sizes: Vec<u32>,
    pub(crate) config_len: usize,
    pub(crate) status: DeviceStatus,
    /// All values that the driver has written to `status`.
    pub(crate) statuses: Vec<DeviceStatus>,
    /// Whether the device ignores its queues.
    pub(crate) ignores_queues: bool,
    pub(crate) violation: Option<Violation>,
    pub(crate) notifications: u32,
    pub(crate) is_transport_dropped: bool,
    is_interrupt_pending: bool,
    queues: [Option<DeviceSide>; 6],
    /// The answers to requests that the device has carried out and not answered.
    unsent_answers: Vec<(usize, u16, u32)>,
}

/// A protocol violation that the device commits at each answer, until the test clears it.
#[derive(Clone, Copy)]
pub(crate) enum Violation {
    /// The used element has this ID.
    Id(u32),
    /// The used element has this length.
    Length(u32),
    /// The used ring gets this index and no new element.
    Index(u16),
}

/// Returns the feature bits of queues, in all four combinations.
pub(crate) fn queue_feature_sets() -> impl Iterator<Item = u64> {
    (0..4).map(|set| set << QueueFeatures::BITS.trailing_zeros())
}

/// The driver's side of the transport.
pub(crate) struct MockTransport<M: DeviceModel>(Host<M>);

impl<M: DeviceModel> Clone for Host<M> {
    fn clone(&self) -> Host<M> {
        Host(self.0.clone())
    }
}

impl<M: DeviceModel> Host<M> {
    pub(crate) fn new(
        model: M,
        vmm: Vmm,
        device_type: DeviceType,
        offered: M::Features,
        queue_sizes: Vec<u32>,
        config_len: usize,
    ) -> Host<M> {
        Host(Rc::new(RefCell::new(HostState {
            model,
            vmm,
            page: SharedPage::new(),
            device_type,
            offered_features: offered,
            negotiated_features: M::Features::empty(),
            offered_queue_features: QueueFeatures::BITS,
            queue_features: QueueFeatures::default(),
            refuses_features: false,
            stuck_in_reset: false,
            status_at_driver_ok: DeviceStatus::empty(),
            queue_sizes,
            config_len,
            status: DeviceStatus::empty(),
            statuses: Vec::new(),
            ignores_queues: false,
            violation: None,
            notifications: 0,
            is_transport_dropped: false,
            is_interrupt_pending: false,
            queues: [None; 6],
            unsent_answers: Vec::new(),
        })))
    }

    pub(crate) fn transport(&self) -> MockTransport<M> {
        self.borrow_mut().is_transport_dropped = false;
        MockTransport(Host(self.0.clone()))
    }

    pub(crate) fn borrow(&self) -> Ref<'_, HostState<M>> {
        self.0.borrow()
    }

    pub(crate) fn borrow_mut(&self) -> RefMut<'_, HostState<M>> {
        self.0.borrow_mut()
    }

    pub(crate) fn page(&self) -> SharedPage {
        self.borrow().page
    }

    /// Handles all outstanding requests.
    pub(crate) fn serve(&self) {
        self.borrow_mut().serve();
    }
}

impl<M: DeviceModel> HostState<M> {
    pub(crate) fn queue(&mut self, number: usize) -> &mut DeviceSide {
        self.queues[number].as_mut().expect("the driver has set up the queue")
    }

    /// Forgets the queues and all buffers.
    pub(crate) fn reset(&mut self) {
        self.status = DeviceStatus::empty();
        self.queues = [None; 6];
        self.unsent_answers.clear();
        self.model.reset();
    }

    /// Returns whether the driver has ever told the device that it has given up.
    pub(crate) fn was_given_up(&self) -> bool {
        self.statuses.iter().any(|status| status.contains(DeviceStatus::FAILED))
    }

    /// Sets the status that the driver writes, as far as the device takes it.
    fn set_status(&mut self, status: DeviceStatus) {
        self.statuses.push(status);
        if status.is_empty() {
            match self.stuck_in_reset {
                true => self.status |= DeviceStatus::DEVICE_NEEDS_RESET,
                false => self.reset(),
            }
            return;
        }
        assert!(status.contains(self.status), "the driver clears bits of the status");
        let added = status - self.status;
        let next = match self.status {
            now if now.is_empty() => DeviceStatus::ACKNOWLEDGE,
            DeviceStatus::ACKNOWLEDGE => DeviceStatus::DRIVER,
            now if now.contains(DeviceStatus::FEATURES_OK) => DeviceStatus::DRIVER_OK,
            _ => DeviceStatus::FEATURES_OK,
        };
        let is_failed = added.contains(DeviceStatus::FAILED);
        if self.vmm.takes_one_status_bit_per_write && !is_failed && added != next {
            return;
        }
        self.status = status;
        if self.refuses_features {
            self.status.remove(DeviceStatus::FEATURES_OK);
        }
        if added.contains(DeviceStatus::DRIVER_OK) {
            self.status |= self.status_at_driver_ok;
            let mut queues = self.queue_sizes.iter().zip(&self.queues);
            if self.vmm.needs_all_queues && queues.any(|(&size, set)| size > 0 && set.is_none()) {
                self.status |= DeviceStatus::DEVICE_NEEDS_RESET;
            }
        }
    }

    /// Returns whether the driver has made a buffer available that the device has not used.
    pub(crate) fn has_buffers(&self) -> bool {
        self.queues.iter().flatten().any(DeviceSide::has_chain) || self.model.has_buffers()
    }

    /// Carries out all outstanding requests without an answer.
    pub(crate) fn carry_out(&mut self) {
        self.take_chains();
        self.unsent_answers.extend(std::iter::from_fn(|| self.model.answer()));
    }

    /// Answers the requests that [`carry_out`](Self::carry_out) has carried out.
    pub(crate) fn answer_late(&mut self) {
        for (number, head, len) in std::mem::take(&mut self.unsent_answers) {
            self.queue(number).give_back(head.into(), len);
        }
        self.serve();
    }

    /// Answers all outstanding requests two times.
    pub(crate) fn serve_twice(&mut self) {
        self.carry_out();
        let answers = self.unsent_answers.clone();
        self.unsent_answers.extend(answers);
        self.answer_late();
    }

    /// Does this work on the outstanding requests. The model commits the faults.
    pub(crate) fn work(&mut self, work: Work) {
        match work {
            Work::None => {}
            Work::Done | Work::HalfDone | Work::Refused => self.carry_out(),
            Work::Answered | Work::Malformed => self.serve(),
            Work::AnsweredTwice => self.serve_twice(),
        }
    }

    /// Resets itself or asks for a reset, if this is the ending.
    pub(crate) fn end(&mut self, ending: Ending) {
        match ending {
            Ending::ResetsItself => self.reset(),
            Ending::NeedsReset => self.status |= DeviceStatus::DEVICE_NEEDS_RESET,
            _ => {}
        }
    }

    fn take_chains(&mut self) {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            while let Some((head, descriptors)) = queue.as_mut().and_then(DeviceSide::take) {
                self.model.handle_chain(self.page, number, head, &descriptors);
            }
        }
    }

    fn serve(&mut self) {
        assert!(
            self.status.contains(DeviceStatus::DRIVER_OK),
            "the driver has not started the device"
        );
        self.take_chains();
        while let Some((number, head, len)) = self.model.answer() {
            let violation = self.violation;
            let queue = self.queue(number);
            let interrupts = !queue.suppresses_interrupt();
            match violation {
                Some(Violation::Id(id)) => queue.give_back(id, len),
                Some(Violation::Length(len)) => queue.give_back(head.into(), len),
                Some(Violation::Index(index)) => queue.set_used_index(index),
                None => queue.give_back(head.into(), len),
            }
            self.is_interrupt_pending |= interrupts;
        }
    }
}

impl<M: DeviceModel> Deref for HostState<M> {
    type Target = M;
    fn deref(&self) -> &M {
        &self.model
    }
}

impl<M: DeviceModel> DerefMut for HostState<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.model
    }
}

impl<M: DeviceModel> Transport for MockTransport<M> {
    fn device_type(&self) -> DeviceType {
        self.0.borrow().device_type
    }

    fn read_device_features(&mut self) -> u64 {
        let host = self.0.borrow();
        let offered = host.offered_features.bits() | host.offered_queue_features;
        let low = offered & u64::from(u32::MAX);
        match host.vmm.forgets_selectors_at_reset && host.status.is_empty() {
            true => low << 32 | low,
            false => offered,
        }
    }

    fn write_driver_features(&mut self, driver_features: u64) {
        let mut host = self.0.borrow_mut();
        let of_queues = driver_features & QueueFeatures::BITS;
        assert_eq!(of_queues & !host.offered_queue_features, 0);
        host.queue_features = QueueFeatures::of_device(of_queues);
        host.negotiated_features = M::Features::from_bits(driver_features & !QueueFeatures::BITS)
            .expect("the driver accepts only known features");
        assert!(host.offered_features.contains(host.negotiated_features));
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.0.borrow().queue_sizes.get(usize::from(queue)).copied().unwrap_or(0)
    }

    fn notify(&mut self, queue: u16) {
        let mut host = self.0.borrow_mut();
        assert!(host.queues[usize::from(queue)].is_some());
        host.notifications += 1;
        if !host.ignores_queues {
            host.serve();
        }
    }

    fn get_status(&self) -> DeviceStatus {
        self.0.borrow().status
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.0.borrow_mut().set_status(status);
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
        if !host.vmm.needs_all_queues {
            let negotiated = host.negotiated_features;
            host.model.set_up(number, negotiated);
        }
        host.queues[number] = Some(DeviceSide {
            page: host.page,
            size: u16::try_from(size).unwrap(),
            descriptors,
            driver_area,
            device_area,
            next_available: 0,
            used_index: 0,
            features: host.queue_features,
            polls: false,
        });
    }

    fn queue_unset(&mut self, queue: u16) {
        self.0.borrow_mut().queues[usize::from(queue)] = None;
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.0.borrow().queues[usize::from(queue)].is_some()
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        match std::mem::take(&mut self.0.borrow_mut().is_interrupt_pending) {
            true => InterruptStatus::QUEUE_INTERRUPT,
            false => InterruptStatus::empty(),
        }
    }

    fn read_config_generation(&self) -> u32 {
        let mut host = self.0.borrow_mut();
        let generation = host.generation();
        if host.vmm.has_no_generation { 0 } else { generation }
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        let host = &mut *self.0.borrow_mut();
        if offset + size_of::<T>() > host.config_len {
            return Err(Error::ConfigSpaceTooSmall);
        }
        assert_eq!(size_of::<T>(), host.model.field_bytes(offset), "the width of the access");
        let word = host.model.read_config(offset, host.negotiated_features, host.ignores_queues);
        let bytes = &word.to_le_bytes()[..size_of::<T>()];
        Ok(T::read_from_bytes(bytes).expect("the sizes are equal"))
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> Result<()> {
        let host = &mut *self.0.borrow_mut();
        if offset + size_of::<T>() > host.config_len {
            return Err(Error::ConfigSpaceTooSmall);
        }
        let word = u32::from_le_bytes(value.as_bytes().try_into().expect("drivers write words"));
        let started = host.status.contains(DeviceStatus::DRIVER_OK);
        host.model.write_config(offset, word, host.negotiated_features, started);
        Ok(())
    }
}

impl<M: DeviceModel> Drop for MockTransport<M> {
    fn drop(&mut self) {
        self.0.borrow_mut().is_transport_dropped = true;
        self.set_status(DeviceStatus::empty());
    }
}
