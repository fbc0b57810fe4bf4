//! Changes the memory of a running guest and measures the time.

use super::{Observation, Vm};
use crate::qemu::{Error, Event, Report, Zone};
use hotmem::Bytes;
use serde_json::json;
use std::{
    io,
    time::{Duration, Instant},
};

/// The minimal interval between two queries of the device's size. Queries without a pause would
/// slow the guest.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The result of a change of the guest's memory. Times begin at the host's request unless a field
/// says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    /// The time until the device had the target plugged. The measured time may be too long by 1 ms
    /// or 1 %, but is never longer than [`recognised`](Self::recognised).
    pub device_done: Duration,
    /// The time until the guest reported that the memory is online or removed.
    pub recognised: Duration,
    /// The time that the guest measured, which begins at the device's interrupt.
    pub in_guest: Duration,
    /// The number of requests that the guest's driver made to the device.
    pub requests: u64,
    /// The memory that is online in the guest now.
    pub online: Bytes,
    /// The node of the device's memory, as the guest reported it.
    pub node: u16,
    /// The part of that node's memory that is online in the guest now.
    pub node_online: Bytes,
    /// Whether an interrupt of the device announced the host's request. If not, the guest polled
    /// the device.
    pub interrupted: bool,
    /// The zone of the device's memory, or `None` if none of this memory is online or the guest
    /// does not report the zone.
    pub zone: Option<Zone>,
}

impl Vm {
    /// Sets the device's requested size to `target`, and does not wait for the guest. If the guest
    /// has ended, this call succeeds, and the next call returns an error.
    ///
    /// # Errors
    /// QEMU refuses the request, for example because `target` is not a multiple of the block size.
    pub fn request(&mut self, target: Bytes) -> Result<(), Error> {
        self.request_size_of_device(0, target)
    }

    /// Requests `target` of device `n`, as [`request`](Self::request) does of device 0.
    ///
    /// # Errors
    /// As for [`request`](Self::request).
    pub fn request_size_of_device(&mut self, n: usize, target: Bytes) -> Result<(), Error> {
        if n == 0 {
            self.notify(Observation::Requested(target));
        }
        let property =
            json!({ "path": device_path(n), "property": "requested-size", "value": target.0 });
        match self.monitor.execute("qom-set", &property) {
            // If this is the guest's last request, QEMU may exit before it answers.
            Err(Error::Monitor(error)) if !timed_out(&error) => Ok(()),
            answer => answer.map(drop).map_err(|error| self.cause_of(error)),
        }
    }

    /// Returns the size that the device has plugged.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn device_size(&mut self) -> Result<Bytes, Error> {
        self.device_size_of(0)
    }

    /// Returns the size that device `n` has plugged.
    ///
    /// # Errors
    /// As for [`device_size`](Self::device_size).
    pub fn device_size_of(&mut self, n: usize) -> Result<Bytes, Error> {
        const GET: &str = "qom-get";
        let size = self.execute(GET, &json!({ "path": device_path(n), "property": "size" }))?;
        let size = size.as_u64().map(Bytes).ok_or_else(|| Error::Refused {
            command: GET.into(),
            reason: format!("the answer {size} is not a size"),
        })?;
        if n == 0 {
            self.notify(Observation::Plugged(size));
        }
        Ok(size)
    }

    /// Requests `target` of the device and waits until the device has `target` plugged and the
    /// guest has reported it. `target` must differ from the size that was requested last, because
    /// the device does not announce an equal one, and the guest reports nothing.
    ///
    /// # Errors
    /// [`Error`]. If the guest has reported why it cannot reach the target, [`Error::Hang`]
    /// contains the reason.
    pub fn resize(&mut self, target: Bytes) -> Result<Resize, Error> {
        self.resize_device(0, target)
    }

    /// Requests `target` of device `n`, which must be the guest's device `n` too, and waits as
    /// [`resize`](Self::resize) does.
    ///
    /// # Errors
    /// As for [`resize`](Self::resize).
    pub fn resize_device(&mut self, n: usize, target: Bytes) -> Result<Resize, Error> {
        let resize = self.resize_of_within(n, target, self.patience)?;
        resize.ok_or_else(|| {
            let reason = self.delay_reason.as_ref();
            let reason = reason.map(|reason| format!(" (the guest's reason: {reason})"));
            self.hang(&format!("end of the resize to {target}{}", reason.unwrap_or_default()))
        })
    }

    /// Requests `target` of the device and waits as [`resize`](Self::resize) does, but at most
    /// `limit`. Returns `None` if the resize has not ended by then.
    ///
    /// # Errors
    /// [`Error`], except [`Error::Hang`].
    pub fn resize_within(
        &mut self,
        target: Bytes,
        limit: Duration,
    ) -> Result<Option<Resize>, Error> {
        self.resize_of_within(0, target, limit)
    }

    fn resize_of_within(
        &mut self,
        n: usize,
        target: Bytes,
        limit: Duration,
    ) -> Result<Option<Resize>, Error> {
        let start = Instant::now();
        let deadline = start + limit;
        self.delay_reason = None;
        self.request_size_of_device(n, target)?;
        let mut device_done = None;
        let mut resized: Option<Resize> = None;
        loop {
            if device_done.is_none() && self.device_size_of(n)? == target {
                device_done = Some(start.elapsed());
            }
            if let (Some(device_done), Some(resized)) = (device_done, resized) {
                let device_done = resized.recognised.min(device_done);
                return Ok(Some(Resize { device_done, ..resized }));
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Ok(None);
            }
            let patience = if device_done.is_some() {
                remaining
            } else {
                POLL_INTERVAL.max(start.elapsed() / 100)
            };
            if let Some((
                time,
                Report::Event(Event::Resized {
                    target: reached,
                    us,
                    requests,
                    online,
                    device,
                    node,
                    node_online,
                    interrupted,
                    zone,
                    ..
                }),
            )) = self.poll(patience.min(remaining))?
                && reached == target.0
                && device == n
            {
                resized.get_or_insert(Resize {
                    device_done: Duration::ZERO,
                    recognised: time - start,
                    in_guest: Duration::from_micros(us),
                    requests,
                    online: Bytes(online),
                    node,
                    node_online: Bytes(node_online),
                    interrupted,
                    zone,
                });
            }
        }
    }
}

/// Returns the QOM path of virtio-mem device `n`.
fn device_path(n: usize) -> String {
    format!("/machine/peripheral/vmem{n}")
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
