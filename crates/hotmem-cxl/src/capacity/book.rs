//! Keeps account of the extents of a device, and of one request of the device at a time.

use super::{
    error::CapacityError,
    set::{ExtentSet, common, end},
};
use crate::command::{Event, Extent, MAX_REGIONS, More, Region, extents_in, opcode, write_extents};

/// What a device asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// It offers extents. They must not be accessed before the answer is delivered.
    Add,
    /// It asks for extents that are accepted. They may be parts of those that were offered.
    Release,
    /// It has taken extents that were accepted. Whatever lay in them is lost.
    ForcedRelease,
}

/// The dynamic capacity of a device: at most `N` extents that are not adjacent, and at most `N` in a
/// request.
///
/// 1. Read the events, [`take`](Self::take) each and clear it.
/// 2. If there is a [`request`](Self::request), [`answer`](Self::answer) it. For a release, take the
///    memory offline and remove it before; what stays in use is not selected.
/// 3. Send each [`payload`](Self::payload), and report what the device says by
///    [`delivered`](Self::delivered) or [`failed`](Self::failed).
/// 4. After an addition was delivered, the extents can be used.
///
/// ```
/// use hotmem_cxl::command::{Event, Extent, More, Region, opcode};
/// use hotmem_cxl::{DynamicCapacity, RequestKind};
///
/// let region = Region { start: 0, decode_len: 1 << 28, len: 1 << 28, block: 1 << 21 };
/// let mut capacity = DynamicCapacity::<16>::new(&[region]);
/// let extent = Extent { start: 0, len: 1 << 24 };
/// capacity.take(&Event::Add(extent, More::Last))?;
/// assert_eq!(capacity.request(), Some((RequestKind::Add, &[extent][..])));
/// capacity.answer(|_| true)?;
/// let mut payload = [0; 256];
/// assert_eq!(capacity.payload(&mut payload)?, Some((opcode::ADD_RESPONSE, 32)));
/// // The device has taken the payload:
/// assert!(capacity.delivered());
/// assert_eq!(capacity.accepted(), [extent]);
/// # Ok::<(), hotmem_cxl::CapacityError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DynamicCapacity<const N: usize> {
    regions: [Option<Region>; MAX_REGIONS],
    accepted: ExtentSet<N>,
    request: Option<Request<N>>,
}

#[derive(Clone, Copy, Debug)]
struct Request<const N: usize> {
    kind: RequestKind,
    extents: [Extent; N],
    len: usize,
    state: State<N>,
}

#[derive(Clone, Copy, Debug)]
enum State<const N: usize> {
    /// More extents follow.
    Incomplete,
    /// The request is to be answered.
    Complete,
    /// The answer is being sent.
    Answered {
        /// The number of extents that were delivered.
        delivered: usize,
        /// The number of extents that were delivered or are in the last payload. `None`: no payload
        /// was written.
        written: Option<usize>,
        /// What is accepted after all were delivered.
        after: ExtentSet<N>,
    },
}

impl<const N: usize> DynamicCapacity<N> {
    /// Nothing is accepted. A device has at most [`MAX_REGIONS`] regions; others are ignored.
    #[must_use]
    pub fn new(regions: &[Region]) -> Self {
        let mut all = [None; MAX_REGIONS];
        for (place, region) in all.iter_mut().zip(regions) {
            *place = Some(*region);
        }
        DynamicCapacity { regions: all, accepted: ExtentSet::EMPTY, request: None }
    }

    /// Returns what the kernel has accepted and not released, in ascending order. Adjacent extents are
    /// one.
    #[must_use]
    pub fn accepted(&self) -> &[Extent] {
        self.accepted.as_slice()
    }

    /// Records an extent that was accepted before the kernel began, as the device lists it.
    ///
    /// # Errors
    /// The extent is impossible, is accepted already, or there is no room; a request is not answered.
    /// Nothing is changed.
    pub fn adopt(&mut self, extent: Extent) -> Result<(), CapacityError> {
        if self.request.is_some() {
            return Err(CapacityError::Unanswered);
        }
        self.check(extent)?;
        if self.accepted.overlaps(extent) {
            return Err(CapacityError::Overlaps(extent));
        }
        self.accepted = self.accepted.with(extent)?;
        Ok(())
    }

    /// Takes an event of the device.
    ///
    /// # Errors
    /// [`CapacityError::Unanswered`]: answer the request, then take the event again. All other errors
    /// refuse this extent, and the request is complete without it if no more extents follow.
    ///
    /// After [`CapacityError::Full`] for a forced release, part of what is gone is still listed as
    /// accepted: read the list of the device again.
    pub fn take(&mut self, event: &Event) -> Result<(), CapacityError> {
        let (kind, extent, more) = match *event {
            Event::Add(extent, more) => (RequestKind::Add, extent, more),
            Event::Release(extent, more) => (RequestKind::Release, extent, more),
            Event::ForcedRelease(extent, more) => (RequestKind::ForcedRelease, extent, more),
            Event::RegionChanged { region } => return Err(CapacityError::RegionChanged { region }),
            Event::Other => return Ok(()),
        };
        let new =
            Request { kind, extents: [Extent::default(); N], len: 0, state: State::Incomplete };
        let mut request = self.request.unwrap_or(new);
        if request.kind != kind || !matches!(request.state, State::Incomplete) {
            // A device that breaks off a request has no more extents for it.
            self.end_request();
            return Err(CapacityError::Unanswered);
        }
        let result = self.take_extent(&mut request, extent);
        if more == More::Last {
            request.state = State::Complete;
        }
        self.request = Some(request);
        result
    }

    fn take_extent(
        &mut self,
        request: &mut Request<N>,
        extent: Extent,
    ) -> Result<(), CapacityError> {
        if extent.start.checked_add(extent.len).is_none() {
            return Err(CapacityError::OutsideRegions(extent));
        }
        let is_repeated = request.extents().iter().any(|&one| common(one, extent).len > 0);
        match request.kind {
            RequestKind::Add => {
                self.check(extent)?;
                if is_repeated || self.accepted.overlaps(extent) {
                    return Err(CapacityError::Overlaps(extent));
                }
                request.push(extent)
            }
            RequestKind::Release => {
                self.check(extent)?;
                if is_repeated || !self.accepted.covers(extent) {
                    return Err(CapacityError::NotAccepted(extent));
                }
                request.push(extent)
            }
            RequestKind::ForcedRelease => {
                let before = self.accepted;
                let parts = before.as_slice().iter().map(|&one| common(one, extent));
                for gone in parts.filter(|gone| gone.len > 0) {
                    request.push(gone)?;
                    self.accepted = self.accepted.without(gone)?;
                }
                Ok(())
            }
        }
    }

    /// Records that the device has lost the rest of the request: the extents that have come are all.
    pub fn end_request(&mut self) {
        if let Some(Request { state: state @ State::Incomplete, .. }) = &mut self.request {
            *state = State::Complete;
        }
    }

    /// Returns the request that is complete and not answered, with its extents. Those that were refused
    /// are not among them, so there may be none.
    #[must_use]
    pub fn request(&self) -> Option<(RequestKind, &[Extent])> {
        let request = self.request.as_ref()?;
        matches!(request.state, State::Complete).then(|| (request.kind, request.extents()))
    }

    /// Answers the request by the extents for which `select` returns true: those that the kernel
    /// accepts, or gives back. Parts of a release that are in use are not selected; they stay
    /// accepted, and the device may ask again. The device is not told of a forced release.
    ///
    /// `select` is not asked about an extent after which more than `N` extents would be accepted; such
    /// an extent is not selected. Returns the number of these.
    ///
    /// # Errors
    /// There is no request.
    pub fn answer(
        &mut self,
        mut select: impl FnMut(Extent) -> bool,
    ) -> Result<usize, CapacityError> {
        let complete = |request: &Request<N>| matches!(request.state, State::Complete);
        let request = self.request.filter(complete).ok_or(CapacityError::NoRequest)?;
        let (mut selected, mut after) = (request, self.accepted);
        selected.len = 0;
        let mut without_room = 0;
        for &extent in request.extents() {
            let changed = match request.kind {
                RequestKind::Add => after.with(extent),
                RequestKind::Release => after.without(extent),
                RequestKind::ForcedRelease => continue,
            };
            match changed {
                Ok(changed) if select(extent) => {
                    after = changed;
                    selected.push(extent)?;
                }
                Ok(_) => {}
                Err(_) => without_room += 1,
            }
        }
        selected.state = State::Answered { delivered: 0, written: None, after };
        // A device waits for an answer to its offer even if nothing is accepted.
        let is_sent = selected.len > 0 || request.kind == RequestKind::Add;
        self.request = is_sent.then_some(selected);
        Ok(without_room)
    }

    /// Writes the next payload of the answer. Returns its command and its length, or `None` if there is
    /// no answer. Writes the same payload again until it is [delivered](Self::delivered). `payload` is as
    /// long as the mailbox allows: a longer answer is sent in parts.
    ///
    /// # Errors
    /// The buffer has no room for any extent.
    pub fn payload(&mut self, payload: &mut [u8]) -> Result<Option<(u16, usize)>, CapacityError> {
        let Some(request) = &mut self.request else { return Ok(None) };
        let (extents, len, kind) = (request.extents, request.len, request.kind);
        let State::Answered { delivered, written, .. } = &mut request.state else {
            return Ok(None);
        };
        let count = extents_in(payload.len()).min(len - *delivered);
        let until = *delivered + count;
        let buffer = CapacityError::Buffer { len: payload.len() };
        if count == 0 && len > 0 {
            return Err(buffer);
        }
        let more = if until < len { More::Follows } else { More::Last };
        let part = &extents[*delivered..until];
        let bytes = write_extents(payload, part, more).ok_or(buffer)?;
        *written = Some(until);
        let command = if kind == RequestKind::Add { opcode::ADD_RESPONSE } else { opcode::RELEASE };
        Ok(Some((command, bytes)))
    }

    /// Records that the device has taken the last payload. Returns whether the answer is complete: then
    /// the extents of an offer can be used, and those of a release are gone.
    pub fn delivered(&mut self) -> bool {
        let Some(Request { len, state: State::Answered { delivered, written, after }, .. }) =
            &mut self.request
        else {
            return false;
        };
        let Some(until) = written.take() else { return false };
        *delivered = until;
        if until < *len {
            return false;
        }
        self.accepted = *after;
        self.request = None;
        true
    }

    /// Records that the device has refused the last payload: nothing of the answer counts. Extents of
    /// an offer must not be used; those of a release stay accepted.
    ///
    /// After a time-out, only the list of the device tells what is accepted: make a new
    /// [`DynamicCapacity`], and [adopt](Self::adopt) what the device lists.
    pub fn failed(&mut self) {
        if self.request.is_some_and(|request| matches!(request.state, State::Answered { .. })) {
            self.request = None;
        }
    }

    /// Refuses an extent that no region can have.
    fn check(&self, extent: Extent) -> Result<(), CapacityError> {
        let outside = CapacityError::OutsideRegions(extent);
        if extent.len == 0 || extent.start.checked_add(extent.len).is_none() {
            return Err(outside);
        }
        let contains = |region: &&Region| {
            extent.start >= region.start && end(extent) - region.start <= region.len
        };
        let region = self.regions.iter().flatten().find(contains).ok_or(outside)?;
        let block = region.block;
        let is_aligned =
            (extent.start - region.start).is_multiple_of(block) && extent.len.is_multiple_of(block);
        if is_aligned { Ok(()) } else { Err(CapacityError::Unaligned { extent, block }) }
    }
}

impl<const N: usize> Request<N> {
    fn extents(&self) -> &[Extent] {
        &self.extents[..self.len]
    }

    fn push(&mut self, extent: Extent) -> Result<(), CapacityError> {
        let place = self.extents.get_mut(self.len).ok_or(CapacityError::Full { capacity: N })?;
        *place = extent;
        self.len += 1;
        Ok(())
    }
}
