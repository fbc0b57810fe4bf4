use super::*;
use hotmem::{
    AddRequest, AllocRequest, Budget, NoHooks, OnlineType, Progress, RangeError, RangeErrorKind,
    State,
};

#[test]
fn a_size_that_is_unaligned_or_cannot_be_reserved_is_refused() {
    let build = |boot_memory, hotplug_size| {
        Hosted::builder().boot_memory(boot_memory).hotplug_size(hotplug_size).build().map(|_| ())
    };
    let unaligned = Bytes::mib(3);
    assert_eq!(build(unaligned, Bytes::ZERO), Err(HostedError::Unaligned(unaligned)));
    let huge = Bytes(!(Bytes::mib(2).0 - 1));
    assert!(matches!(build(huge, Bytes::ZERO), Err(HostedError::TooLarge(..))));
    assert!(matches!(build(Bytes::mib(128), huge), Err(HostedError::TooLarge(..))));
    let too_much = Bytes::gib(4000 << 10);
    assert!(matches!(build(Bytes::mib(128), too_much), Err(HostedError::NotReserved(..))));
}

#[test]
fn the_first_and_last_pageblock_of_64_tib_can_be_allocated_and_written() {
    let builder = Hosted::builder().boot_memory(Bytes::gib(1));
    let machine = builder.hotplug_size(Bytes::gib(64 << 10)).build().unwrap();
    let mut hotplug = machine.boot().unwrap();
    let range = machine.hotplug_range();
    hotplug.announce(range).unwrap();
    hotplug.add(range).unwrap();
    hotplug.online(range, OnlineType::Kernel, &mut NoHooks).unwrap();
    let last = Pfn::new(range.end().number() - 512).unwrap();
    for start in [range.start(), last] {
        let pageblock = machine.frames().alloc(AllocRequest::order(9).at(start)).unwrap();
        let address = machine.address_of(pageblock.range().start()).unwrap();
        // SAFETY: `pageblock` owns the frames.
        unsafe {
            address.write(1);
            assert_eq!(address.read(), 1);
        }
        drop(pageblock);
    }
}

#[test]
fn memory_is_plugged_64_times_while_no_frame_is_free() {
    let builder = Hosted::builder().boot_memory(Bytes::mib(32));
    let machine = builder.hotplug_size(Bytes::gib(520)).build().unwrap();
    let mut hotplug = machine.boot().unwrap();
    let allocate_all = || {
        for len in [1 << 15, 512, 1] {
            while let Ok(allocation) = machine.frames().alloc(AllocRequest::frames(len)) {
                let _ = allocation.into_raw();
            }
        }
        assert_eq!(machine.frames().counts().free, 0);
    };
    // Plug the first GiB of each 8 GiB, so that each addition needs a new chunk of words.
    for part in machine.hotplug_range().chunks(Bytes::gib(8).frames()).skip(1).take(64) {
        allocate_all();
        let end = Pfn::new(part.start().number() + Bytes::gib(1).frames()).unwrap();
        let gib = part.split_at(end).0;
        hotplug.announce(gib).unwrap();
        hotplug.add(gib).unwrap();
        hotplug.online(gib, OnlineType::Kernel, &mut NoHooks).unwrap();
        let metadata = gib.frames() - machine.frames().counts().free;
        assert!(Bytes(metadata * 4096) <= Bytes(64 << 10), "{metadata} frames of {gib}");
    }
    // SAFETY: no other thread uses the machine.
    unsafe { machine.frames().validate() }.unwrap();
}

#[test]
fn removed_memory_is_returned_to_the_host() {
    let machine = Hosted::builder().hotplug_size(Bytes::gib(1)).build().unwrap();
    let mut hotplug = machine.boot().unwrap();
    let range = machine.hotplug_range();
    hotplug.announce(range).unwrap();
    hotplug.add(range).unwrap();
    let address = machine.address_of(range.start()).unwrap();
    // SAFETY: the memory is offline, so only this test uses it.
    unsafe { address.write(1) };
    hotplug.remove(range).unwrap();
    // SAFETY: the address is still reserved, and the host commits a new page there.
    assert_eq!(unsafe { address.read() }, 0);
}

#[test]
fn device_memory_becomes_ram_and_device_memory_again_with_each_online_type() {
    let kinds = [
        (OnlineType::Offline, State::Offline),
        (OnlineType::Online, State::Online),
        (OnlineType::Movable, State::OnlineMovable),
    ];
    for (kind, expected) in kinds {
        let machine = Hosted::builder().hotplug_size(Bytes::mib(256)).build().unwrap();
        let mut hotplug = machine.boot().unwrap();
        let (range, hooks) = (machine.hotplug_range(), &mut machine.hooks());
        hotplug.announce(range).unwrap();
        // RAM and the device share a section.
        let middle = Pfn::new(range.start().number() + Bytes::mib(2 * 17).frames()).unwrap();
        let (ram, device) = range.split_at(middle);
        hotplug.add(ram).unwrap();
        hotplug.online(ram, OnlineType::Movable, hooks).unwrap();
        hotplug.add(AddRequest { device: true, ..device.into() }).unwrap();
        let data = machine.address_of(device.start()).unwrap();
        // SAFETY: only this test uses the device memory.
        unsafe { data.write(7) };
        // SAFETY: `data` is not used while the memory is RAM.
        unsafe { hotplug.device_to_ram(device, kind, hooks) }.unwrap();
        assert_eq!(hotplug.state_at(device.start(), device.end()), (device, expected));
        if kind != OnlineType::Offline {
            let allocated =
                machine.frames().alloc(AllocRequest::order(9).at(device.start()).movable());
            let refused = hotplug.ram_to_device(device).unwrap_err();
            assert!(matches!(refused, RangeError { kind: RangeErrorKind::Online, .. }));
            drop(allocated.unwrap());
            let mut offline = hotplug.offline(device).unwrap();
            let progress = offline.poll(&mut hotplug, hooks, Budget::UNLIMITED);
            assert_eq!(progress, Progress::Ready(device));
        }
        hotplug.ram_to_device(device).unwrap();
        // SAFETY: only this test uses the device memory.
        assert_eq!(unsafe { data.read() }, 7, "the device memory was written to");
        // SAFETY: the device's memory is no longer used.
        unsafe { hotplug.detach(device) }.unwrap();
        assert_eq!(hotplug.state_at(device.start(), device.end()), (device, State::Absent));
        // SAFETY: the address is still reserved, and the host commits a new page there.
        assert_eq!(unsafe { data.read() }, 0);
    }
}

#[test]
fn each_thread_has_its_own_cpu_number() {
    let threads = ThreadCpus::default();
    let threads = &threads;
    let numbers = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..3).map(|_| scope.spawn(|| [threads.cpu(), threads.cpu()])).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(numbers.iter().all(|&[first, second]| first == second));
    assert_ne!(numbers[0], numbers[1]);
    assert_ne!(numbers[1], numbers[2]);
}

#[test]
fn run_as_sets_the_cpu_number_of_a_thread() {
    let threads = ThreadCpus::default();
    let numbers = std::thread::spawn(move || {
        [7, 0, 300].map(|cpu| {
            ThreadCpus::run_as(cpu);
            threads.cpu()
        })
    });
    assert_eq!(numbers.join().unwrap(), [7, 0, 300]);
}
