use crate::instance::{BOOT_END, Instance, MEMORY_END, MIB, request};
use hotmem_c::*;
use std::ffi::c_void;
use std::ptr::null_mut;

#[test]
fn memory_is_plugged_used_and_removed() {
    let instance = Instance::boot(None);
    assert_eq!(instance.state(BOOT_END, MIB * 2), (HOTMEM_STATE_UNKNOWN, MIB * 2));
    instance.plug(HOTMEM_ONLINE_MOVABLE);
    assert_eq!(
        instance.state(BOOT_END, MEMORY_END - BOOT_END),
        (HOTMEM_STATE_MOVABLE, MEMORY_END - BOOT_END)
    );
    assert_eq!(instance.counts().online, MEMORY_END / 4096);

    let page = instance.alloc(&hotmem_request { flags: HOTMEM_MOVABLE, ..request(1) }).unwrap();
    let (code, removal) = instance.remove(BOOT_END, MEMORY_END - BOOT_END);
    assert_eq!((code, removal.why), (HOTMEM_EBUSY, HOTMEM_WHY_UNMOVABLE));
    assert_eq!((removal.paddr, removal.len), (page, 4096));
    assert_eq!(
        removal.removed,
        MEMORY_END - BOOT_END - 2 * MIB,
        "all memory except the pageblock of `page`"
    );

    assert_eq!(instance.free(page, 1), 0);
    let (code, removal) = instance.remove(BOOT_END, MEMORY_END - BOOT_END);
    assert_eq!((code, removal.removed, removal.why), (0, 2 * MIB, 0));
    assert_eq!(
        instance.state(BOOT_END, MEMORY_END - BOOT_END),
        (HOTMEM_STATE_ABSENT, MEMORY_END - BOOT_END)
    );
    // SAFETY: `instance.as_ptr()` points to an instance.
    unsafe {
        assert_eq!(hotmem_withdraw(instance.as_ptr(), BOOT_END, MEMORY_END - BOOT_END), 0);
        assert_eq!(
            hotmem_withdraw(instance.as_ptr(), BOOT_END, MEMORY_END - BOOT_END),
            HOTMEM_ENOENT
        );
    }
}

#[test]
fn offline_memory_is_removed() {
    let instance = Instance::boot(None);
    instance.plug(HOTMEM_ONLINE_NOT);
    assert_eq!(instance.state(BOOT_END, MEMORY_END - BOOT_END).0, HOTMEM_STATE_OFFLINE);
    // SAFETY: `instance.as_ptr()` points to an instance.
    unsafe {
        assert_eq!(
            hotmem_withdraw(instance.as_ptr(), BOOT_END, MEMORY_END - BOOT_END),
            HOTMEM_EBUSY
        );
        assert_eq!(hotmem_online(instance.as_ptr(), BOOT_END, 4 * MIB, HOTMEM_ONLINE_KERNEL), 0);
    }
    assert_eq!(instance.state(BOOT_END, MEMORY_END - BOOT_END), (HOTMEM_STATE_ONLINE, 4 * MIB));
    let (code, removal) = instance.remove(BOOT_END, MEMORY_END - BOOT_END);
    assert_eq!((code, removal.removed), (0, MEMORY_END - BOOT_END));
}

/// A section has one node, so a part of boot memory's section cannot be announced for a second node.
#[test]
fn a_part_of_a_section_of_another_node_is_refused_when_it_is_announced() {
    let instance = Instance::boot(None);
    let h = instance.as_ptr();
    // SAFETY: `h` points to an instance, and `hotmem_strerror` returns a string.
    unsafe {
        assert_eq!(hotmem_announce(h, BOOT_END, 2 * MIB, 1), HOTMEM_EXDEV);
        let text = core::ffi::CStr::from_ptr(hotmem_strerror(HOTMEM_EXDEV));
        assert_eq!(text, c"shares a section of 128 MiB with memory of another node");
        assert_eq!(hotmem_announce(h, BOOT_END, 2 * MIB, 0), 0);
    }
}

#[test]
fn each_call_returns_the_code_of_its_error() {
    let instance = Instance::boot(None);
    let (h, kernel_zone) = (instance.as_ptr(), HOTMEM_ONLINE_KERNEL);
    // SAFETY: `h` points to an instance, and the range that is added is memory of the test.
    unsafe {
        assert_eq!(hotmem_add(h, BOOT_END, 2 * MIB), HOTMEM_ENOENT, "not announced");
        assert_eq!(
            hotmem_announce(h, BOOT_END, MEMORY_END, 0),
            HOTMEM_ERANGE,
            "the range lies beyond the mappable range"
        );
        assert_eq!(hotmem_announce(h, BOOT_END, 0, 0), HOTMEM_EINVAL);
        assert_eq!(hotmem_announce(h, BOOT_END + 1, 2 * MIB, 0), HOTMEM_EINVAL);
        assert_eq!(hotmem_announce(h, BOOT_END - 2 * MIB, 4 * MIB, 0), HOTMEM_EEXIST);
        assert_eq!(
            hotmem_announce(h, u64::MAX - 4095, 2 * MIB, 0),
            HOTMEM_ERANGE,
            "the range wraps"
        );
        assert_eq!(hotmem_announce(h, BOOT_END, 8 * MIB, 0), 0);
        assert_eq!(hotmem_add(h, BOOT_END, 4096), HOTMEM_EINVAL);
        assert_eq!(hotmem_online(h, BOOT_END, 2 * MIB, kernel_zone), HOTMEM_ENOENT, "not present");
        assert_eq!(hotmem_add(h, BOOT_END, 2 * MIB), 0);
        assert_eq!(hotmem_add(h, BOOT_END, 2 * MIB), HOTMEM_EEXIST);
        assert_eq!(hotmem_online(h, BOOT_END, 2 * MIB, 9), HOTMEM_EINVAL);
        assert_eq!(hotmem_online(h, BOOT_END, 2 * MIB, kernel_zone), 0);
        assert_eq!(hotmem_online(h, BOOT_END, 2 * MIB, kernel_zone), HOTMEM_EEXIST);
        assert_eq!(hotmem_remove(h, BOOT_END, 4096, null_mut()), HOTMEM_EINVAL);
        assert_eq!(hotmem_remove(h, BOOT_END, 2 * MIB, null_mut()), 0);
    }
}

/// A kernel that records the calls of its hooks.
#[derive(Default)]
struct Kernel {
    instance_addr: usize,
    refuses_onlining: bool,
    /// The codes of the calls that the hook `onlined` has made.
    codes_in_hook: Vec<i32>,
    tables: Vec<u64>,
    calls: Vec<&'static str>,
}

/// Returns the kernel to which `ctx` of a hook points.
///
/// # Safety
/// `ctx` is that of the test's `hotmem_hooks`, and no other reference to the kernel is in use.
unsafe fn kernel<'a>(ctx: *mut c_void) -> &'a mut Kernel {
    // SAFETY: the caller has promised that `ctx` points to a `Kernel` that nothing else uses now.
    unsafe { &mut *ctx.cast() }
}

extern "C" fn tables_needed(_: *mut c_void, _: u64, len: u64) -> u64 {
    len / (16 * MIB) + 1
}

unsafe extern "C" fn map(ctx: *mut c_void, _: u64, _: u64, tables: *mut hotmem_tables<'_, '_>) {
    // SAFETY: `tables` is the argument of this call, and `ctx` is that of the hooks.
    let (kernel, frame) = unsafe { (kernel(ctx), hotmem_take_table(tables)) };
    kernel.calls.push("map");
    kernel.tables.push(frame);
}

unsafe extern "C" fn unmap(ctx: *mut c_void, _: u64, _: u64) {
    // SAFETY: `ctx` is that of the hooks, and one hook runs at a time.
    unsafe { kernel(ctx) }.calls.push("unmap");
}

unsafe extern "C" fn release(
    ctx: *mut c_void,
    _: u64,
    _: u64,
    tables: *mut hotmem_released<'_, '_>,
) {
    // SAFETY: `ctx` is that of the hooks, and one hook runs at a time.
    let kernel = unsafe { kernel(ctx) };
    kernel.calls.push("release");
    for table in kernel.tables.drain(..) {
        // SAFETY: `tables` is the argument of this call, and `table` came from `hotmem_take_table`.
        unsafe { hotmem_free_table(tables, table) };
    }
}

unsafe extern "C" fn going_online(ctx: *mut c_void, _: u64, _: u64, movable: bool) -> i32 {
    // SAFETY: `ctx` is that of the hooks, and one hook runs at a time.
    let kernel = unsafe { kernel(ctx) };
    kernel.calls.push(if movable { "movable" } else { "kernel" });
    i32::from(kernel.refuses_onlining)
}

unsafe extern "C" fn onlined(ctx: *mut c_void, paddr: u64, len: u64) {
    // SAFETY: `ctx` is that of the hooks, `instance_addr` is the address of an instance, and `frame`
    // was allocated just before it is freed.
    unsafe {
        let kernel = kernel(ctx);
        kernel.calls.push("onlined");
        let code = hotmem_remove(kernel.instance_addr as *mut hotmem, paddr, len, null_mut());
        kernel.codes_in_hook.push(code);
        let mut frame = 0;
        let code = hotmem_alloc(kernel.instance_addr as *mut hotmem, std::ptr::null(), &mut frame);
        kernel.codes_in_hook.push(code);
        kernel.codes_in_hook.push(hotmem_free(kernel.instance_addr as *mut hotmem, frame, 1));
    }
}

unsafe extern "C" fn migrate(ctx: *mut c_void, paddr: u64, len: u64) -> i32 {
    // SAFETY: `ctx` is that of the hooks, `instance_addr` is the address of an instance, and the test
    // has allocated the range and does not use it.
    unsafe {
        let kernel = kernel(ctx);
        kernel.calls.push("migrate");
        assert_eq!(hotmem_free(kernel.instance_addr as *mut hotmem, paddr, len / 4096), 0);
    }
    HOTMEM_MIGRATE_FREED
}

#[test]
fn hooks_may_allocate_but_not_enter_the_control_path() {
    let mut kernel = Kernel::default();
    let hooks = hotmem_hooks {
        ctx: (&raw mut kernel).cast(),
        tables_needed: Some(tables_needed),
        map: Some(map),
        unmap: Some(unmap),
        release_tables: Some(release),
        going_online: Some(going_online),
        onlined: Some(onlined),
        migrate: Some(migrate),
        ..hotmem_hooks::default()
    };
    let instance = Instance::boot(Some(&hooks));
    let used = instance.counts().used;
    // SAFETY: no hook runs when `kernel_of` is called, `instance.as_ptr()` points to an instance, and
    // the range that is added is its own memory.
    unsafe {
        kernel_of(&hooks).instance_addr = instance.as_ptr().addr();
        assert_eq!(hotmem_announce(instance.as_ptr(), BOOT_END, MEMORY_END - BOOT_END, 0), 0);
        assert_eq!(hotmem_add(instance.as_ptr(), BOOT_END, MEMORY_END - BOOT_END), 0);
        assert_eq!(
            kernel_of(&hooks).tables.len(),
            1,
            "`map` took one of the four frames that `tables_needed` asked for"
        );
        kernel_of(&hooks).refuses_onlining = true;
        let online = |online_type| {
            hotmem_online(instance.as_ptr(), BOOT_END, MEMORY_END - BOOT_END, online_type)
        };
        assert_eq!(online(HOTMEM_ONLINE_KERNEL), HOTMEM_EACCES);
        kernel_of(&hooks).refuses_onlining = false;
        assert_eq!(online(HOTMEM_ONLINE_MOVABLE), 0);
        assert_eq!(kernel_of(&hooks).codes_in_hook, [HOTMEM_EBUSY, 0, 0]);
    }
    instance.alloc(&hotmem_request { flags: HOTMEM_MOVABLE, ..request(5) }).unwrap();
    assert_eq!(instance.remove(BOOT_END, MEMORY_END - BOOT_END).0, 0);
    // SAFETY: no hook runs.
    let kernel = unsafe { kernel_of(&hooks) };
    let calls = ["map", "kernel", "movable", "onlined", "migrate", "unmap", "release"];
    assert_eq!(kernel.calls, calls);
    assert_eq!(instance.counts().used, used, "some frames of page tables are not free");
}

/// Returns the kernel of these hooks.
///
/// # Safety
/// No hook runs, and no other reference to the kernel is in use.
unsafe fn kernel_of<'a>(hooks: &hotmem_hooks) -> &'a mut Kernel {
    // SAFETY: `hooks.ctx` points to the kernel, and the caller has promised that nothing else uses
    // it.
    unsafe { kernel(hooks.ctx) }
}
