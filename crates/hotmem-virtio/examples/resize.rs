//! Steps the driver of a virtio-mem device whose requested size is 16 MiB and then 0.
//!
//! A few lines simulate the device. A kernel would put the same requests on a virtqueue.

use core::time::Duration;
use hotmem::{AlwaysMapped, Budget, Frames, Hotplug, NoHooks, OneCpu, OnlineType};
use hotmem_virtio::mem::{
    Driver, Features, HotplugMemory, RawConfig, RequestKind, Response, Status, Step,
};
use std::alloc::{Layout, alloc_zeroed};

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The machine has 32 MiB of boot memory. The device can plug 64 MiB above it.
    let layout = Layout::from_size_align(96 << 20, 4096)?;
    let ram = [(0..32 * MIB).into()];
    // SAFETY: the layout is not empty; all of it is mapped, and nothing else uses it.
    let mut hotplug = unsafe {
        let mapping = AlwaysMapped::new(alloc_zeroed(layout), (0..96 * MIB).try_into()?);
        Hotplug::bootstrap(&FRAMES, mapping, &ram)?
    };

    let mut device = RawConfig {
        block_size: 2 * MIB,
        addr: 32 * MIB,
        region_size: 64 * MIB,
        usable_region_size: 64 * MIB,
        ..RawConfig::default()
    };
    let mut driver = Driver::new(&device, Features::all())?;
    let mut memory = HotplugMemory::new(OnlineType::Movable, Budget::UNLIMITED);
    for requested in [16 * MIB, 0] {
        device.requested_size = requested;
        println!("requested size: {requested:#x} bytes");
        let mut response = None;
        loop {
            let mut hooks = NoHooks;
            let mut bound = memory.bind(&mut hotplug, &mut hooks)?;
            let bytes: Option<[u8; Response::SIZE]> = response.take();
            let bytes = bytes.as_ref().map(|bytes| &bytes[..]);
            match driver.step(Duration::ZERO, &device, bytes, &mut bound) {
                Step::Ready(Ok(request)) => {
                    println!("  {:?} {}", request.kind(), request.range());
                    let bytes = request.range().bytes().0;
                    match request.kind() {
                        RequestKind::Plug => device.plugged_size += bytes,
                        RequestKind::Unplug => device.plugged_size -= bytes,
                        _ => return Err("the device does not know this request".into()),
                    }
                    // A response of zeros acknowledges the request.
                    response = Some([0; Response::SIZE]);
                }
                Step::Working => {}
                Step::Idle => break,
                step => return Err(format!("the driver waits: {step:?}").into()),
            }
        }
        let present = FRAMES.counts().present << 12;
        println!("  {:?}: the machine has {present:#x} bytes", driver.status());
        assert_eq!((driver.status(), present), (Status::Reached, 32 * MIB + requested));
    }
    Ok(())
}

#[test]
fn memory_is_plugged_and_unplugged() {
    main().unwrap();
}
