//! Makes arbitrary calls of the C interface. The fuzz target uses this file too.
//!
//! The calls satisfy only the conditions under `# Safety`: pointers may be null or point to another
//! instance, numbers are arbitrary, hooks refuse and call the interface, and devices give wrong
//! answers. The test writes to each frame that it allocates, and checks that no frame has two owners.

use crate::documented::call;
use crate::instance::{BOOT_END, Heap, Instance, MEMORY_END, MIB};
use hotmem_c::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Makes the calls that the bytes of `script` choose.
pub(crate) fn run_script(script: &[u8]) {
    let kernel = Box::new(RefCell::new(Kernel { answer: 0, h: null_mut() }));
    let hooks = hotmem_hooks {
        ctx: (&raw const *kernel).cast_mut().cast(),
        tables_needed: Some(tables_needed),
        map: Some(map),
        going_online: Some(going_online),
        going_offline: Some(going_offline),
        migrate: Some(migrate),
        cpu: script.len().is_multiple_of(2).then_some(cpu),
        ..hotmem_hooks::default()
    };
    CPU_CALLS.set(0);
    let mut caller = Caller {
        script,
        instance: Instance::new(),
        unbooted_instance: Instance::new(),
        virtio_mem: Heap::zeroes::<hotmem_virtio_mem>(),
        balloon: Heap::zeroes::<hotmem_balloon>(),
        message: Heap::zeroes::<hotmem_balloon_message>(),
        owned_allocations: BTreeMap::new(),
        booted: false,
        mem_config: hotmem_virtio_mem_config {
            block_size: 2 * MIB,
            addr: BOOT_END,
            region_size: MEMORY_END - BOOT_END,
            usable_region_size: MEMORY_END - BOOT_END,
            ..hotmem_virtio_mem_config::default()
        },
        has_request: [false; 6],
        now_ns: 0,
    };
    kernel.borrow_mut().h = caller.instance.as_ptr();
    // SAFETY: `hooks` and `kernel` live until the instance is used for the last time.
    unsafe {
        let config = hotmem_config { hooks: &hooks, mappable_end: MEMORY_END, low_end: 0, cpus: 5 };
        assert_eq!(call!(hotmem_configure(caller.instance.as_ptr(), &config)), 0);
    }
    if !caller.one_in_16() {
        caller.boot_with_devices();
    }
    while !caller.script.is_empty() {
        kernel.borrow_mut().answer = caller.byte();
        caller.call();
    }
    for (paddr, frames) in std::mem::take(&mut caller.owned_allocations) {
        caller.check_contents(paddr, frames);
        assert_eq!(caller.instance.free(paddr, frames), 0);
    }
}

/// The kernel to which `ctx` of the hooks points.
struct Kernel {
    /// A random byte that decides the results of the hooks.
    answer: u8,
    h: *mut hotmem,
}

thread_local!(static CPU_CALLS: Cell<u32> = const { Cell::new(0) });

/// Returns another CPU number at each call. Some of the numbers exceed those of the instance's CPUs.
extern "C" fn cpu(_: *mut c_void) -> u32 {
    CPU_CALLS.set(CPU_CALLS.get() + 1);
    CPU_CALLS.get() % 11
}

/// Returns the byte that decides the result of a hook. If a bit of the byte is set, calls the instance
/// before that.
///
/// # Safety
/// `ctx` is that of the test's `hotmem_hooks`.
unsafe fn answer(ctx: *mut c_void) -> u8 {
    // SAFETY: the caller has promised that `ctx` points to the `RefCell<Kernel>` of the test.
    let kernel = unsafe { &*ctx.cast::<RefCell<Kernel>>() }.borrow();
    if kernel.answer & 64 != 0 {
        // SAFETY: `kernel.h` points to an instance.
        let code = unsafe { call!(hotmem_remove(kernel.h, 0, MEMORY_END, null_mut())) };
        assert_eq!(code, HOTMEM_EBUSY, "a hook entered the control path");
    }
    kernel.answer
}

unsafe extern "C" fn tables_needed(ctx: *mut c_void, _: u64, _: u64) -> u64 {
    // SAFETY: `ctx` is that of the hooks.
    u64::from(unsafe { answer(ctx) } % 4)
}

unsafe extern "C" fn map(ctx: *mut c_void, _: u64, _: u64, tables: *mut hotmem_tables<'_, '_>) {
    // SAFETY: `ctx` is that of the hooks, and `tables` is the argument of this call.
    unsafe {
        for _ in 0..answer(ctx) % 6 {
            hotmem_take_table(tables);
        }
    }
}

unsafe extern "C" fn going_online(ctx: *mut c_void, _: u64, _: u64, _: bool) -> i32 {
    // SAFETY: `ctx` is that of the hooks.
    i32::from(unsafe { answer(ctx) } % 8 == 7)
}

unsafe extern "C" fn going_offline(ctx: *mut c_void, _: u64, _: u64) -> i32 {
    // SAFETY: `ctx` is that of the hooks.
    i32::from(unsafe { answer(ctx) } % 8 == 6)
}

unsafe extern "C" fn migrate(ctx: *mut c_void, _: u64, _: u64) -> i32 {
    // SAFETY: `ctx` is that of the hooks. The hook moves no frame, whatever it returns.
    i32::from(unsafe { answer(ctx) } % 5)
}

struct Caller<'a> {
    script: &'a [u8],
    instance: Instance,
    /// An instance that never boots.
    unbooted_instance: Instance,
    virtio_mem: Heap,
    balloon: Heap,
    message: Heap,
    /// The allocations that the test owns: the number of frames by physical address.
    owned_allocations: BTreeMap<u64, u64>,
    booted: bool,
    mem_config: hotmem_virtio_mem_config,
    /// For each of the five queues of the balloon and for the virtio-mem device, whether a request is
    /// outstanding.
    has_request: [bool; 6],
    now_ns: u64,
}

impl Caller<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.script.split_first() else { return 0 };
        self.script = rest;
        first
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a small number, an address, or an arbitrary number.
    fn value(&mut self) -> u64 {
        match self.byte() % 8 {
            0 => self.number(),
            1 => u64::MAX - u64::from(self.byte()),
            2 | 3 => u64::from(self.byte()) * 4096,
            4 => u64::from(self.byte()),
            _ => u64::from(self.byte() % 34) * 2 * MIB,
        }
    }

    /// Returns true in one of 16 cases.
    fn one_in_16(&mut self) -> bool {
        self.byte() >= 240
    }

    /// Returns a range. In most cases it consists of pageblocks above boot memory.
    fn range(&mut self) -> (u64, u64) {
        if self.one_in_16() {
            return (self.value(), self.value());
        }
        let (start, len) = (u64::from(self.byte()) % 28, u64::from(self.byte()) % 28);
        (BOOT_END + start * 2 * MIB, (len + 1).min(28 - start) * 2 * MIB)
    }

    /// Boots the instance and starts the devices.
    fn boot_with_devices(&mut self) {
        let (h, features) = (self.instance.as_ptr(), HOTMEM_BALLOON_FEATURES & !16);
        let config = hotmem_balloon_config::default();
        let flags = (u32::from(self.byte() % 2) * HOTMEM_REPORT_EAGERLY) | HOTMEM_TRUST_HOST;
        let options = hotmem_balloon_options { flags, ..Default::default() };
        // SAFETY: `h` points to an instance, the RAM is its own memory, the drivers are zeroes, and
        // all other pointers are references.
        unsafe {
            assert_eq!(call!(hotmem_boot_add(h, 0, BOOT_END, HOTMEM_RAM)), 0);
            assert_eq!(call!(hotmem_boot(h, self.memory().cast(), 0)), 0);
            let devices = self.byte();
            if devices % 4 < 2 {
                let d = self.virtio_mem.pointer();
                let online_type = u32::from(self.byte() % 4);
                assert_eq!(
                    call!(hotmem_virtio_mem_init(d, h, &self.mem_config, 6, online_type, 0)),
                    0
                );
            } else {
                assert_eq!(call!(hotmem_announce(h, BOOT_END, MEMORY_END - BOOT_END, 0)), 0);
            }
            if devices % 8 < 6 {
                let b = self.balloon.pointer();
                assert_eq!(call!(hotmem_balloon_init(b, h, &config, features, &options)), 0);
            }
        }
        self.booted = true;
    }

    /// Returns a pointer to the instance, or in rare cases another pointer, which may be null.
    fn random_instance(&mut self) -> *mut hotmem {
        match self.byte() {
            0..3 => null_mut(),
            3..6 => self.unbooted_instance.as_ptr(),
            6..9 => self.instance.as_ptr().cast::<u8>().wrapping_add(64).cast(),
            _ => self.instance.as_ptr(),
        }
    }

    /// Checks that the frames of an allocation have the contents that the test has written.
    fn check_contents(&self, paddr: u64, frames: u64) {
        for frame in 0..frames {
            let word = self.frame_pointer(paddr + frame * 4096);
            // SAFETY: the test owns the frame, which lies in the memory of the instance.
            assert_eq!(unsafe { word.read() }, paddr + frame * 4096, "the frame was overwritten");
        }
    }

    fn frame_pointer(&self, paddr: u64) -> *mut u64 {
        self.memory().wrapping_add(usize::try_from(paddr).unwrap()).cast()
    }

    fn memory(&self) -> *mut u8 {
        self.instance.memory.pointer()
    }

    /// Makes one call.
    fn call(&mut self) {
        let h = self.random_instance();
        // SAFETY: `h` is null, not aligned, or points to an instance. The calls below add only memory
        // that exists, and free no frame that is in use.
        let code = unsafe {
            match self.byte() % 20 {
                0 | 1 => self.boot(h),
                2..6 => return self.alloc(h),
                6 | 7 => return self.free(),
                8 => {
                    // The call must refuse the range, which lies above all memory or is empty.
                    let (paddr, frames) = (MEMORY_END + self.value() % MEMORY_END, self.value());
                    let paddr = paddr | u64::from(self.byte());
                    if frames == 1 {
                        call!(hotmem_free_frame(h, paddr))
                    } else {
                        call!(hotmem_free(h, paddr, frames))
                    }
                }
                9 if self.one_in_16() => {
                    let (paddr, len) = self.range();
                    call!(hotmem_withdraw(h, paddr, len))
                }
                9 => {
                    let (paddr, len) = self.range();
                    call!(hotmem_announce(h, paddr, len, u32::from(self.byte() & 1)))
                }
                10 => {
                    // Only memory that exists can be announced, because `mappable_end` limits it.
                    let (paddr, len) = self.range();
                    call!(hotmem_add(h, paddr, len))
                }
                11 | 12 => {
                    let (paddr, len) = self.range();
                    call!(hotmem_online(h, paddr, len, u32::from(self.byte() % 5)))
                }
                13 => {
                    let mut removal = hotmem_removal::default();
                    let (paddr, len) = self.range();
                    call!(hotmem_remove(h, paddr, len, &mut removal))
                }
                14 => {
                    let mut same_state_len = 0;
                    let (paddr, len) = self.range();
                    let state = call!(hotmem_state(h, paddr, len, &mut same_state_len));
                    assert!(state < 0 || same_state_len <= len);
                    state
                }
                15 | 16 => self.step_virtio_mem(h),
                17 | 18 => self.step_balloon(h),
                _ => {
                    let mut counts = hotmem_counts::default();
                    let code = call!(hotmem_get_counts(h, &mut counts));
                    assert!(counts.free + counts.used <= counts.online);
                    assert!(counts.online <= counts.present && counts.present <= MEMORY_END / 4096);
                    code
                }
            }
        };
        assert!((-200..=HOTMEM_STATE_REMOVING).contains(&code), "{code}");
        if code >= 0 {
            assert_eq!(h, self.instance.as_ptr());
        }
    }

    /// Adds boot memory, or boots the instance.
    ///
    /// # Safety
    /// `h` is null, not aligned, or points to an instance.
    unsafe fn boot(&mut self, h: *mut hotmem) -> i32 {
        // Two instances must not have the same memory, so the other instance never boots.
        let h = if h == self.unbooted_instance.as_ptr() { null_mut() } else { h };
        let (start, len) = (self.value(), self.value());
        // SAFETY: the caller has promised what `h` is. RAM is added only below `BOOT_END`, where
        // the instance has memory, or the range wraps and is refused.
        unsafe {
            match self.byte() % 4 {
                0 => {
                    call!(hotmem_boot_add(h, start, len, HOTMEM_RESERVED));
                    call!(hotmem_boot_add(h, start, len, 3))
                }
                1 if start.checked_add(len).is_none_or(|end| end <= BOOT_END) => {
                    call!(hotmem_boot_add(h, start, len, HOTMEM_RAM))
                }
                2 => call!(hotmem_boot_add(h, 0, BOOT_END, HOTMEM_RAM)),
                _ => {
                    let code = call!(hotmem_boot(h, self.memory().cast(), 0));
                    assert!(code != 0 || !self.booted, "the instance booted twice");
                    self.booted |= code == 0;
                    code
                }
            }
        }
    }

    fn alloc(&mut self, h: *mut hotmem) {
        let frames = match self.byte() % 8 {
            0 => self.value(),
            1 => u64::from(self.byte()) * 8,
            count => u64::from(count),
        };
        let mut request = hotmem_request { frames, ..hotmem_request::default() };
        if self.byte().is_multiple_of(4) {
            request.align = 1 << (self.byte() % 12);
            request.flags = u32::from(self.byte() % 40);
            (request.min, request.max, request.at) = (self.value(), self.value(), self.value());
            request.node = u32::from(self.byte());
        }
        let request: *const hotmem_request = if self.byte() == 0 { null() } else { &request };
        let (mut paddr, mut is_zero) = (0, false);
        // SAFETY: `h` is null, not aligned, or points to an instance, `request` is null or points to a
        // request, and `paddr` and `is_zero` are references.
        let code = unsafe {
            if request.is_null() && self.byte().is_multiple_of(2) {
                let frame = call!(hotmem_alloc_frame(h));
                paddr = frame.cast_unsigned();
                i32::from(frame < 0)
            } else {
                match self.byte() % 4 {
                    0 => call!(hotmem_alloc_zeroed(h, request, &mut paddr)),
                    1 => call!(hotmem_alloc_with_contents(h, request, &mut paddr, &mut is_zero)),
                    _ => call!(hotmem_alloc(h, request, &mut paddr)),
                }
            }
        };
        if code != 0 {
            return;
        }
        let frames = if request.is_null() { 1 } else { frames };
        assert!(paddr % 4096 == 0 && paddr + frames * 4096 <= MEMORY_END);
        let below = self.owned_allocations.range(..paddr + frames * 4096).next_back();
        let is_free = below.is_none_or(|(&start, &frames)| start + frames * 4096 <= paddr);
        assert!(is_free, "the allocation overlaps another one");
        for frame in (paddr..).step_by(4096).take(usize::try_from(frames).unwrap()) {
            // SAFETY: the test owns the frame, which lies in the memory of the instance.
            unsafe { self.frame_pointer(frame).write(frame) };
        }
        self.owned_allocations.insert(paddr, frames);
    }

    /// Frees the upper part of an allocation or the whole allocation, and checks that a second free is
    /// refused.
    fn free(&mut self) {
        let from = self.value();
        let Some((&start, &frames)) = self.owned_allocations.range(from..).next() else { return };
        self.check_contents(start, frames);
        self.owned_allocations.remove(&start);
        let kept_frames = u64::from(self.byte()) % frames;
        if kept_frames > 0 {
            self.owned_allocations.insert(start, kept_frames);
        }
        let (paddr, frames) = (start + kept_frames * 4096, frames - kept_frames);
        let freed = if frames == 1 {
            // SAFETY: the test owns the frame, and does not use it any more.
            unsafe { call!(hotmem_free_frame(self.instance.as_ptr(), paddr)) }
        } else {
            self.instance.free(paddr, frames)
        };
        assert_eq!(freed, 0);
        assert_eq!(self.instance.free(paddr, frames), HOTMEM_ENOENT, "a second free succeeds");
    }

    /// Makes a call for the virtio-mem device, with an arbitrary configuration and answer.
    ///
    /// # Safety
    /// `h` is null, not aligned, or points to an instance.
    unsafe fn step_virtio_mem(&mut self, h: *mut hotmem) -> i32 {
        let d = self.virtio_mem.pointer::<hotmem_virtio_mem>();
        let (selector, value) = (self.byte(), self.value());
        let selector = if selector > 5 || self.one_in_16() { selector } else { 6 };
        match selector % 64 {
            0 => self.mem_config.block_size = value,
            1 => self.mem_config.addr = value,
            2 => self.mem_config.region_size = value,
            3 => self.mem_config.usable_region_size = value,
            4 => self.mem_config.plugged_size = value,
            5 => self.mem_config.node_id = u16::try_from(value & 0xffff).unwrap(),
            6..20 => {
                self.mem_config.requested_size = u64::from(self.byte() % 34) * 2 * MIB;
            }
            _ => {}
        }
        let mut answer: [u8; 10] = [0; 10];
        if self.one_in_16() {
            answer = std::array::from_fn(|_| self.byte());
        }
        let mut request = hotmem_virtio_mem_request::default();
        // SAFETY: the caller has promised what `h` is. `d` points to zeroes or a driver, `text` has
        // more bytes than are written, and all other pointers are null or references. `mappable_end`
        // limits the device's memory to memory that exists.
        unsafe {
            if selector > 250 {
                let online_type = u32::from(self.byte() % 5);
                return call!(hotmem_virtio_mem_init(
                    d,
                    h,
                    &self.mem_config,
                    self.number(),
                    online_type,
                    value,
                ));
            }
            if selector > 246 && call!(hotmem_virtio_mem_reset(d, &self.mem_config)) == 0 {
                self.has_request[5] = false;
            }
            if selector == 246 {
                let code = call!(hotmem_virtio_mem_withdraw(d));
                let codes = [HOTMEM_STEP_IDLE, HOTMEM_STEP_AGAIN, HOTMEM_EAGAIN, HOTMEM_EINVAL];
                assert!(codes.contains(&code), "{code}");
            }
            let answers = std::mem::take(&mut self.has_request[5]) || self.byte() == 255;
            let pointer = if answers { answer.as_ptr() } else { null() };
            let len = if self.one_in_16() { usize::from(self.byte() % 11) } else { 10 };
            let config = if self.byte() == 255 { null() } else { &raw const self.mem_config };
            self.now_ns += u64::from(self.byte()) << 20;
            let step =
                call!(hotmem_virtio_mem_step(d, self.now_ns, config, pointer, len, &mut request));
            self.has_request[5] = step == HOTMEM_STEP_SEND;
            let mut status = hotmem_virtio_mem_status::default();
            let code = call!(hotmem_virtio_mem_get_status(d, &mut status));
            // Let the device carry out the request, so that it agrees with the driver in most cases.
            self.mem_config.plugged_size = status.plugged;
            match request.bytes[0] {
                _ if step != HOTMEM_STEP_SEND => {}
                0 => self.mem_config.plugged_size += requested_bytes(&request.bytes),
                1 => {
                    self.mem_config.plugged_size -=
                        requested_bytes(&request.bytes).min(status.plugged)
                }
                _ => {}
            }
            assert!(
                code == HOTMEM_EINVAL || (code == 0 && status.state <= HOTMEM_VIRTIO_MEM_WITHDRAWN)
            );
            let mut text = [0; 40];
            call!(hotmem_virtio_mem_explain(d, text.as_mut_ptr(), usize::from(self.byte() % 41)));
        }
        // Return an error code, because the driver's own instance was used, whatever `h` is.
        HOTMEM_EINVAL
    }

    /// Makes a call for the balloon, with an arbitrary configuration.
    ///
    /// # Safety
    /// `h` is null, not aligned, or points to an instance.
    unsafe fn step_balloon(&mut self, h: *mut hotmem) -> i32 {
        let (b, m) = (self.balloon.pointer::<hotmem_balloon>(), self.message.pointer());
        let selector = self.byte();
        let config = hotmem_balloon_config {
            num_pages: u32::from(self.byte() / 16) * u32::from(self.byte()),
            free_page_hint_cmd_id: u32::from(self.byte()),
            generation: u32::from(self.byte()),
        };
        let options = hotmem_balloon_options {
            min_free_frames: self.value(),
            answer_timeout_ns: self.value(),
            flags: u32::from(self.byte() % 8),
            poison: 0,
            max_report_ranges: u32::from(self.byte()),
            reserved: 0,
        };
        // SAFETY: the caller has promised what `h` is. `b` points to zeroes or a driver, `m` to a
        // message, and all other pointers are references. The device does not access memory, so a
        // reset cannot be too early.
        unsafe {
            match selector {
                250.. => {
                    let features = hotmem_balloon_accept(self.number(), &options);
                    return call!(hotmem_balloon_init(b, h, &config, features, &options));
                }
                240..244 => {
                    call!(hotmem_balloon_reset(b, &config));
                    self.has_request[..5].fill(false);
                }
                244..247 => {
                    call!(hotmem_balloon_need(b, self.value()));
                }
                247..250 => {
                    call!(hotmem_balloon_migrate(b, self.value(), self.value()));
                }
                _ => {}
            }
            let used = i32::from(self.byte() % 7) - 1;
            let is_expected =
                usize::try_from(used).ok().and_then(|at| self.has_request.get(at)) == Some(&true);
            // Answer on a queue without a request only in rare cases.
            let answers_unasked = self.byte() == 255;
            let is_answered = answers_unasked || is_expected;
            self.now_ns += u64::from(self.byte()) << 22;
            #[allow(clippy::cast_possible_truncation, reason = "any length will do")]
            let answer = hotmem_balloon_answer {
                queue: used,
                written: self.value() as u32,
                bitmap: [self.byte(); HOTMEM_BALLOON_BITMAP_BYTES],
            };
            let pointer = if is_answered { &raw const answer } else { null() };
            let step = call!(hotmem_balloon_step(b, self.now_ns, &config, pointer, m));
            if is_answered
                && let Some(has_request) =
                    usize::try_from(used).ok().and_then(|at| self.has_request.get_mut(at))
            {
                *has_request = false;
            }
            if step == HOTMEM_STEP_SEND {
                let message = &*m;
                let queue = usize::try_from(message.queue).unwrap();
                assert!(queue < 5 && (message.len > 0) != (message.count > 0));
                assert!(message.len <= 1024 && message.count <= 32);
                assert!(message.bitmap_len <= message.len.div_ceil(32));
                self.has_request[queue] = true;
                for range in &message.ranges[..message.count as usize] {
                    assert!(range.paddr + range.len <= MEMORY_END, "{range:?}");
                    let inside = self.owned_allocations.range(range.paddr..range.paddr + range.len);
                    assert_eq!(inside.count(), 0, "the balloon contains frames that the test owns");
                }
            }
            let mut status = hotmem_balloon_status::default();
            call!(hotmem_balloon_get_status(b, &mut status));
        }
        // Return an error code, because the driver's own instance was used, whatever `h` is.
        HOTMEM_EINVAL
    }
}

/// Returns the number of bytes that a virtio-mem request plugs or unplugs.
fn requested_bytes(request: &[u8; 24]) -> u64 {
    u64::from(u16::from_le_bytes([request[16], request[17]])) * 2 * MIB
}
