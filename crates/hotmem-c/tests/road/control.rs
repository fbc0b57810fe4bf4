use crate::machine::{ALL, BOOT, MIB, Machine, want};
use hotmem_c::*;
use std::ffi::c_void;
use std::ptr::null_mut;

#[test]
fn memory_is_plugged_used_and_removed() {
    let machine = Machine::boot(None);
    assert_eq!(machine.state(BOOT, MIB * 2), (HOTMEM_STATE_UNKNOWN, MIB * 2));
    machine.plug(HOTMEM_ONLINE_MOVABLE);
    assert_eq!(machine.state(BOOT, ALL - BOOT), (HOTMEM_STATE_MOVABLE, ALL - BOOT));
    assert_eq!(machine.counts().online, ALL / 4096);

    let page = machine.alloc(&hotmem_want { flags: HOTMEM_MOVABLE, ..want(1) }).unwrap();
    let (code, removal) = machine.remove(BOOT, ALL - BOOT);
    assert_eq!((code, removal.why), (HOTMEM_EBUSY, HOTMEM_WHY_UNMOVABLE));
    assert_eq!((removal.paddr, removal.len), (page, 4096));
    assert_eq!(removal.removed, ALL - BOOT - 2 * MIB, "all but the pageblock of the page");

    assert_eq!(machine.free(page, 1), 0);
    let (code, removal) = machine.remove(BOOT, ALL - BOOT);
    assert_eq!((code, removal.removed, removal.why), (0, 2 * MIB, 0));
    assert_eq!(machine.state(BOOT, ALL - BOOT), (HOTMEM_STATE_ABSENT, ALL - BOOT));
    // SAFETY: it is a machine.
    unsafe {
        assert_eq!(hotmem_withdraw(machine.h(), BOOT, ALL - BOOT), 0);
        assert_eq!(hotmem_withdraw(machine.h(), BOOT, ALL - BOOT), HOTMEM_ENOENT);
    }
}

#[test]
fn offline_memory_is_removed_as_well() {
    let machine = Machine::boot(None);
    machine.plug(HOTMEM_ONLINE_NOT);
    assert_eq!(machine.state(BOOT, ALL - BOOT).0, HOTMEM_STATE_OFFLINE);
    // SAFETY: it is a machine.
    unsafe {
        assert_eq!(hotmem_withdraw(machine.h(), BOOT, ALL - BOOT), HOTMEM_EBUSY);
        assert_eq!(hotmem_online(machine.h(), BOOT, 4 * MIB, HOTMEM_ONLINE_KERNEL), 0);
    }
    assert_eq!(machine.state(BOOT, ALL - BOOT), (HOTMEM_STATE_ONLINE, 4 * MIB));
    let (code, removal) = machine.remove(BOOT, ALL - BOOT);
    assert_eq!((code, removal.removed), (0, ALL - BOOT));
}

#[test]
fn each_call_returns_the_code_of_its_error() {
    let machine = Machine::boot(None);
    let (h, kernel) = (machine.h(), HOTMEM_ONLINE_KERNEL);
    // SAFETY: it is a machine, and what can be added is there.
    unsafe {
        assert_eq!(hotmem_add(h, BOOT, 2 * MIB), HOTMEM_ENOENT, "not announced");
        assert_eq!(hotmem_announce(h, BOOT, ALL, 0), HOTMEM_ERANGE, "beyond the reach");
        assert_eq!(hotmem_announce(h, BOOT, 0, 0), HOTMEM_EINVAL);
        assert_eq!(hotmem_announce(h, BOOT + 1, 2 * MIB, 0), HOTMEM_EINVAL);
        assert_eq!(hotmem_announce(h, BOOT - 2 * MIB, 4 * MIB, 0), HOTMEM_EEXIST);
        assert_eq!(hotmem_announce(h, u64::MAX - 4095, 2 * MIB, 0), HOTMEM_ERANGE, "wraps");
        assert_eq!(hotmem_announce(h, BOOT, 8 * MIB, 0), 0);
        assert_eq!(hotmem_add(h, BOOT, 4096), HOTMEM_EINVAL);
        assert_eq!(hotmem_online(h, BOOT, 2 * MIB, kernel), HOTMEM_ENOENT, "not present");
        assert_eq!(hotmem_add(h, BOOT, 2 * MIB), 0);
        assert_eq!(hotmem_add(h, BOOT, 2 * MIB), HOTMEM_EEXIST);
        assert_eq!(hotmem_online(h, BOOT, 2 * MIB, 9), HOTMEM_EINVAL);
        assert_eq!(hotmem_online(h, BOOT, 2 * MIB, kernel), 0);
        assert_eq!(hotmem_online(h, BOOT, 2 * MIB, kernel), HOTMEM_EEXIST);
        assert_eq!(hotmem_remove(h, BOOT, 4096, null_mut()), HOTMEM_EINVAL);
        assert_eq!(hotmem_remove(h, BOOT, 2 * MIB, null_mut()), 0);
    }
}

/// Records the calls of the hooks.
#[derive(Default)]
struct Kernel {
    h: usize,
    refuses: bool,
    from_within: Vec<i32>,
    tables: Vec<u64>,
    calls: Vec<&'static str>,
}

/// # Safety
/// `ctx` is that of `hooks`.
unsafe fn kernel<'a>(ctx: *mut c_void) -> &'a mut Kernel {
    // SAFETY: as promised; one hook runs at a time.
    unsafe { &mut *ctx.cast() }
}

extern "C" fn tables_needed(_: *mut c_void, _: u64, len: u64) -> u64 {
    len / (16 * MIB) + 1
}

unsafe extern "C" fn map(ctx: *mut c_void, _: u64, _: u64, tables: *mut hotmem_tables<'_, '_>) {
    // SAFETY: it is the argument of this call, and the kernel's `ctx`.
    let (kernel, frame) = unsafe { (kernel(ctx), hotmem_take(tables)) };
    kernel.calls.push("map");
    kernel.tables.push(frame);
}

unsafe extern "C" fn unmap(ctx: *mut c_void, _: u64, _: u64) {
    // SAFETY: it is the kernel's `ctx`. The same holds below.
    unsafe { kernel(ctx) }.calls.push("unmap");
}

unsafe extern "C" fn release(
    ctx: *mut c_void,
    _: u64,
    _: u64,
    tables: *mut hotmem_released<'_, '_>,
) {
    // SAFETY: see above.
    let kernel = unsafe { kernel(ctx) };
    kernel.calls.push("release");
    for table in kernel.tables.drain(..) {
        // SAFETY: it is the argument of this call, and a table that came from `hotmem_take`.
        unsafe { hotmem_give(tables, table) };
    }
}

unsafe extern "C" fn going_online(ctx: *mut c_void, _: u64, _: u64, movable: bool) -> i32 {
    // SAFETY: see above.
    let kernel = unsafe { kernel(ctx) };
    kernel.calls.push(if movable { "movable" } else { "kernel" });
    i32::from(kernel.refuses)
}

unsafe extern "C" fn onlined(ctx: *mut c_void, paddr: u64, len: u64) {
    // SAFETY: see above. The machine is in the middle of a call.
    unsafe {
        let kernel = kernel(ctx);
        kernel.calls.push("onlined");
        let code = hotmem_remove(kernel.h as *mut hotmem, paddr, len, null_mut());
        kernel.from_within.push(code);
        let mut frame = 0;
        let code = hotmem_alloc(kernel.h as *mut hotmem, std::ptr::null(), &mut frame);
        kernel.from_within.push(code);
        kernel.from_within.push(hotmem_free(kernel.h as *mut hotmem, frame, 1));
    }
}

unsafe extern "C" fn migrate(ctx: *mut c_void, paddr: u64, len: u64) -> i32 {
    // SAFETY: see above. What is there is the test's.
    unsafe {
        let kernel = kernel(ctx);
        kernel.calls.push("migrate");
        assert_eq!(hotmem_free(kernel.h as *mut hotmem, paddr, len / 4096), 0);
    }
    HOTMEM_MIGRATE_GONE
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
    let machine = Machine::boot(Some(&hooks));
    let used = machine.counts().used;
    // SAFETY: no hook runs; and the memory is there.
    unsafe {
        kernel_of(&hooks).h = machine.h().addr();
        assert_eq!(hotmem_announce(machine.h(), BOOT, ALL - BOOT, 0), 0);
        assert_eq!(hotmem_add(machine.h(), BOOT, ALL - BOOT), 0);
        assert_eq!(kernel_of(&hooks).tables.len(), 1, "of the four that were there");
        kernel_of(&hooks).refuses = true;
        let online = |kind| hotmem_online(machine.h(), BOOT, ALL - BOOT, kind);
        assert_eq!(online(HOTMEM_ONLINE_KERNEL), HOTMEM_EACCES);
        kernel_of(&hooks).refuses = false;
        assert_eq!(online(HOTMEM_ONLINE_MOVABLE), 0);
        assert_eq!(kernel_of(&hooks).from_within, [HOTMEM_EBUSY, 0, 0]);
    }
    machine.alloc(&hotmem_want { flags: HOTMEM_MOVABLE, ..want(5) }).unwrap();
    assert_eq!(machine.remove(BOOT, ALL - BOOT).0, 0);
    // SAFETY: as above.
    let kernel = unsafe { kernel_of(&hooks) };
    let calls = ["map", "kernel", "movable", "onlined", "migrate", "unmap", "release"];
    assert_eq!(kernel.calls, calls);
    assert_eq!(machine.counts().used, used, "its tables are free again");
}

/// # Safety
/// No hook runs.
unsafe fn kernel_of<'a>(hooks: &hotmem_hooks) -> &'a mut Kernel {
    // SAFETY: as promised.
    unsafe { kernel(hooks.ctx) }
}
