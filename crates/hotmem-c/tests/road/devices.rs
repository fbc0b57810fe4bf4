use crate::machine::{ALL, BOOT, Heap, MIB, Machine};
use hotmem_c::*;
use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

/// A virtio-mem device that carries out every request.
struct Host {
    config: hotmem_vmem_config,
    answer: Option<[u8; 10]>,
}

fn config(requested_size: u64) -> hotmem_vmem_config {
    hotmem_vmem_config {
        block_size: 2 * MIB,
        addr: BOOT,
        region_size: ALL - BOOT,
        usable_region_size: ALL - BOOT,
        requested_size,
        ..hotmem_vmem_config::default()
    }
}

impl Host {
    /// Steps the driver until there is nothing to do.
    fn run(&mut self, d: *mut hotmem_vmem) -> i32 {
        let mut request = hotmem_vmem_request::default();
        loop {
            let answer = self.answer.take();
            let pointer = answer.as_ref().map_or(null(), |bytes| bytes.as_ptr());
            // SAFETY: all of these are what they are said to be.
            match unsafe { hotmem_vmem_step(d, 0, &self.config, pointer, 10, &mut request) } {
                HOTMEM_STEP_SEND => self.carry_out(&request.bytes),
                HOTMEM_STEP_AGAIN => {}
                other => return other,
            }
        }
    }

    fn carry_out(&mut self, request: &[u8; 24]) {
        let blocks = u64::from(u16::from_le_bytes([request[16], request[17]]));
        match request[0] {
            0 => self.config.plugged_size += blocks * 2 * MIB,
            1 => self.config.plugged_size -= blocks * 2 * MIB,
            other => panic!("request {other}"),
        }
        self.answer = Some([0; 10]);
    }
}

fn status(d: *mut hotmem_vmem) -> hotmem_vmem_status {
    let mut status = hotmem_vmem_status::default();
    // SAFETY: it is a device.
    assert_eq!(unsafe { hotmem_vmem_get_status(d, &mut status) }, 0);
    status
}

fn explain(d: *mut hotmem_vmem, size: usize) -> String {
    let mut text = [1 as c_char; 128];
    // SAFETY: it is a device; there are more bytes than `size`.
    unsafe {
        assert_eq!(hotmem_vmem_explain(d, text.as_mut_ptr(), size), 0);
        CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned()
    }
}

#[test]
fn a_virtio_mem_device_grows_and_shrinks() {
    let machine = Machine::boot(None);
    let vmem = Heap::zeroes::<hotmem_vmem>();
    let d = vmem.pointer::<hotmem_vmem>();
    let mut host = Host { config: config(32 * MIB), answer: None };
    let (features, kind) = (HOTMEM_VMEM_FEATURES & !1, HOTMEM_ONLINE_MOVABLE);
    // SAFETY: it is a device; its memory is there.
    unsafe {
        assert_eq!(hotmem_vmem_init(d, machine.h(), &host.config, features, kind, 0), 0);
        let again = hotmem_vmem_init(d, machine.h(), &host.config, features, kind, 0);
        assert_eq!(again, HOTMEM_EALREADY);
    }
    assert_eq!(host.run(d), HOTMEM_STEP_IDLE);
    assert_eq!((status(d).state, status(d).plugged), (HOTMEM_VMEM_REACHED, 32 * MIB));
    assert_eq!(machine.counts().movable, 32 * MIB / 4096);
    assert_eq!(explain(d, 128), "");

    let page =
        machine.alloc(&hotmem_want { flags: HOTMEM_MOVABLE, frames: 1, ..hotmem_want::default() });
    host.config.requested_size = 0;
    assert_eq!(host.run(d), HOTMEM_STEP_WAIT);
    assert_eq!(status(d).plugged, 2 * MIB);
    assert_eq!(machine.free(page.unwrap(), 1), 0);
    host.config.requested_size = 2 * MIB;
    assert_eq!(host.run(d), HOTMEM_STEP_IDLE);
    host.config.requested_size = 0;
    assert_eq!(host.run(d), HOTMEM_STEP_IDLE);
    assert_eq!((status(d).state, status(d).plugged), (HOTMEM_VMEM_REACHED, 0));
    assert_eq!(machine.counts().present, BOOT / 4096);
}

#[test]
fn a_driver_stops_at_a_malformed_response_and_explains_it() {
    let machine = Machine::boot(None);
    let vmem = Heap::zeroes::<hotmem_vmem>();
    let d = vmem.pointer::<hotmem_vmem>();
    let (mut request, wrong) = (hotmem_vmem_request::default(), [9_u8; 10]);
    // SAFETY: it is a device; its memory is there.
    unsafe {
        let odd = hotmem_vmem_config { block_size: 3, ..config(0) };
        assert_eq!(hotmem_vmem_init(d, machine.h(), &odd, 0, 0, 0), HOTMEM_EINVAL);
        let far = hotmem_vmem_config { addr: !0 << 21, ..config(0) };
        assert_eq!(hotmem_vmem_init(d, machine.h(), &far, 0, 0, 0), HOTMEM_ERANGE);
        assert_eq!(hotmem_vmem_init(d, machine.h(), &config(0), 0, 7, 0), HOTMEM_EINVAL);
        let config = config(4 * MIB);
        assert_eq!(hotmem_vmem_init(d, machine.h(), &config, 0, 0, 0), 0);
        let mut step =
            |answer: *const u8, len| hotmem_vmem_step(d, 0, &config, answer, len, &mut request);
        while step(null(), 0) != HOTMEM_STEP_SEND {}
        assert_eq!(step(wrong.as_ptr(), 10), HOTMEM_EIO);
        assert_eq!(step(null(), 0), HOTMEM_EIO);
        assert_eq!(hotmem_vmem_step(d, 0, null(), null(), 0, &mut request), HOTMEM_EFAULT);
        assert_eq!(hotmem_vmem_step(d, 0, &config, null(), 0, null_mut()), HOTMEM_EFAULT);
        assert_eq!(hotmem_vmem_explain(d, null_mut(), 9), HOTMEM_EFAULT);
        assert_eq!(hotmem_vmem_explain(d, (&raw mut request).cast(), 0), HOTMEM_ENOSPC);
    }
    assert_eq!(status(d).state, HOTMEM_VMEM_FAILED);
    assert_eq!(explain(d, 128), "response: unknown response type 2313");
    assert_eq!(explain(d, 9), "response");
    assert_eq!(explain(d, 1), "");
    assert_eq!(machine.counts().present, BOOT / 4096, "nothing was added");
}

#[test]
fn a_balloon_takes_frames_and_reports_free_memory() {
    let machine = Machine::boot(None);
    machine.plug(HOTMEM_ONLINE_KERNEL);
    let balloon = Heap::zeroes::<hotmem_balloon>();
    let b = balloon.pointer::<hotmem_balloon>();
    let message = Heap::zeroes::<hotmem_balloon_message>();
    let m = message.pointer::<hotmem_balloon_message>();
    let mut config = hotmem_balloon_config { num_pages: 300, ..Default::default() };
    let options = hotmem_balloon_options { flags: HOTMEM_REPORT_EAGERLY, ..Default::default() };
    let (mut frames, mut reported) = (Vec::new(), 0);
    // SAFETY: all of these are what they are said to be.
    unsafe {
        let features = hotmem_balloon_accept(HOTMEM_BALLOON_FEATURES & !0b1000, &options);
        assert_eq!(features, 0x1_0000_0027, "no hints, and no poison");
        assert_eq!(hotmem_balloon_init(b, machine.h(), &config, u64::MAX, null()), HOTMEM_EINVAL);
        assert_eq!(hotmem_balloon_init(b, machine.h(), &config, features, &options), 0);
        assert_eq!(hotmem_balloon_step(b, 0, &config, 5, m), HOTMEM_EINVAL, "no such queue");
        let mut run = |config: &hotmem_balloon_config| {
            let (mut used, mut actual) = (HOTMEM_QUEUE_NONE, None);
            for now in 0.. {
                let step = hotmem_balloon_step(b, now << 20, config, used, m);
                used = HOTMEM_QUEUE_NONE;
                match (step, (*m).queue) {
                    // The device keeps this one.
                    (HOTMEM_STEP_SEND, HOTMEM_QUEUE_STATISTICS) => assert_eq!((*m).len, 30),
                    (HOTMEM_STEP_SEND, queue) => {
                        used = queue;
                        for number in (&(*m).bytes)[..(*m).len as usize].chunks_exact(4) {
                            frames.push(u32::from_le_bytes(number.try_into().unwrap()));
                        }
                        let ranges = &(&(*m).ranges)[..(*m).count as usize];
                        reported += ranges.iter().map(|range| range.len).sum::<u64>();
                    }
                    (HOTMEM_STEP_SET_ACTUAL, _) => actual = Some((*m).value),
                    (HOTMEM_STEP_AGAIN, _) => {}
                    (HOTMEM_STEP_WAIT | HOTMEM_STEP_IDLE, _) => break,
                    other => panic!("{other:?}"),
                }
            }
            actual
        };
        assert_eq!(run(&config), Some(300));
        config.num_pages = 0;
        assert_eq!(run(&config), Some(0));
        let mut status = hotmem_balloon_status::default();
        assert_eq!(hotmem_balloon_get_status(b, &mut status), 0);
        assert_eq!((status.state, status.held), (HOTMEM_BALLOON_SETTLED, 0));
        assert_eq!(status.reported * 4096, reported);
    }
    assert_eq!(frames.len(), 600);
    let (inflated, deflated) = frames.split_at(300);
    let sorted = |frames: &[u32]| {
        let mut frames = frames.to_vec();
        frames.sort_unstable();
        frames.dedup();
        frames
    };
    assert_eq!((sorted(inflated).len(), sorted(inflated)), (300, sorted(deflated)));
    assert!(reported > 0 && machine.counts().reported > 0);
}

#[test]
fn memory_in_a_balloon_is_taken_back_when_its_device_was_reset() {
    let machine = Machine::boot(None);
    let balloon = Heap::zeroes::<hotmem_balloon>();
    let b = balloon.pointer::<hotmem_balloon>();
    let message = Heap::zeroes::<hotmem_balloon_message>();
    let m = message.pointer::<hotmem_balloon_message>();
    let config = hotmem_balloon_config { num_pages: 100, ..Default::default() };
    let options = hotmem_balloon_options { patience_ns: 1000, ..Default::default() };
    let used = machine.counts().used;
    // SAFETY: all of these are what they are said to be.
    unsafe {
        assert_eq!(hotmem_balloon_init(b, machine.h(), &config, 0, &options), 0);
        while hotmem_balloon_step(b, 0, &config, HOTMEM_QUEUE_NONE, m) != HOTMEM_STEP_SEND {}
        let first = u32::from_le_bytes((&(*m).bytes)[..4].try_into().unwrap());
        let paddr = u64::from(first) * 4096;
        assert_eq!(machine.counts().used, used + 100);
        assert_eq!(hotmem_balloon_migrate(b, paddr, 4096), HOTMEM_MIGRATE_RETRY);
        assert_eq!(hotmem_balloon_migrate(b, 0, 4096), HOTMEM_ENOENT);
        assert_eq!(hotmem_balloon_migrate(b, 1, 4096), HOTMEM_EINVAL);
        let late = hotmem_balloon_step(b, 10_000, &config, HOTMEM_QUEUE_NONE, m);
        assert_eq!((late, (*m).queue), (HOTMEM_STEP_RESET, HOTMEM_QUEUE_INFLATE));
        assert_eq!(hotmem_balloon_reset(b, &config), 0);
        assert_eq!(machine.counts().used, used);
        // The device answers without a request.
        assert_eq!(hotmem_balloon_step(b, 0, &config, HOTMEM_QUEUE_DEFLATE, m), HOTMEM_EIO);
        let mut status = hotmem_balloon_status::default();
        assert_eq!(hotmem_balloon_get_status(b, &mut status), 0);
        assert_eq!(status.state, HOTMEM_BALLOON_FAILED);
        assert_eq!(hotmem_balloon_need(b, 5), 0);
    }
}
