use super::*;
use hotmem::{
    AddRequest, AllocRequest, Budget, NoHooks, OnlineType, Progress, RangeError, RangeErrorKind,
    State,
};

#[test]
fn a_machine_that_cannot_be_reserved_is_refused() {
    let build = |boot_memory, room| {
        Hosted::builder().boot_memory(boot_memory).room(room).build().map(|_| ())
    };
    let odd = Bytes::mib(3);
    assert_eq!(build(odd, Bytes::ZERO), Err(HostedError::Unaligned(odd)));
    let huge = Bytes(!(Bytes::mib(2).0 - 1));
    assert!(matches!(build(huge, Bytes::ZERO), Err(HostedError::TooLarge(..))));
    assert!(matches!(build(Bytes::mib(128), huge), Err(HostedError::TooLarge(..))));
    let all = Bytes::tib(4000);
    assert!(matches!(build(Bytes::mib(128), all), Err(HostedError::NotReserved(..))));
}

#[test]
fn sixty_four_tebibytes_are_plugged_and_usable_at_both_ends() {
    let machine = Hosted::builder().boot_memory(Bytes::gib(1)).room(Bytes::tib(64)).build();
    let machine = machine.unwrap();
    let mut hotplug = machine.boot().unwrap();
    let room = machine.room();
    hotplug.announce(room).unwrap();
    hotplug.add(room).unwrap();
    hotplug.online(room, OnlineType::Kernel, &mut NoHooks).unwrap();
    let last = Pfn::new(room.end().number() - 512).unwrap();
    for place in [room.start(), last] {
        let taken = machine.frames().alloc(AllocRequest::order(9).at(place)).unwrap();
        let address = machine.address_of(taken.start()).unwrap();
        // SAFETY: allocated just now and not yet freed.
        unsafe {
            address.write(1);
            assert_eq!(address.read(), 1);
        }
        drop(taken);
    }
}

#[test]
fn a_machine_without_free_kernel_memory_can_plug_one_gib_after_another() {
    let machine = Hosted::builder().boot_memory(Bytes::mib(32)).room(Bytes::gib(520)).build();
    let machine = machine.unwrap();
    let mut hotplug = machine.boot().unwrap();
    let use_up = || {
        for len in [1 << 15, 512, 1] {
            while let Ok(got) = machine.frames().alloc(AllocRequest::frames(len)) {
                let _ = got.into_raw();
            }
        }
        assert_eq!(machine.frames().counts().free, 0);
    };
    // Each GiB lies in another 8 GiB, for which there are no words yet.
    for part in machine.room().chunks(Bytes::gib(8).frames()).skip(1).take(64) {
        use_up();
        let gib =
            part.split_at(Pfn::new(part.start().number() + Bytes::gib(1).frames()).unwrap()).0;
        hotplug.announce(gib).unwrap();
        hotplug.add(gib).unwrap();
        hotplug.online(gib, OnlineType::Kernel, &mut NoHooks).unwrap();
        let taken = gib.frames() - machine.frames().counts().free;
        assert!(Bytes(taken * 4096) <= Bytes::kib(64), "{taken} frames of {gib}");
    }
    // SAFETY: no other thread uses the machine.
    unsafe { machine.frames().validate() }.unwrap();
}

#[test]
fn unplugged_memory_is_returned_to_the_host() {
    let machine = Hosted::builder().room(Bytes::gib(1)).build().unwrap();
    let mut hotplug = machine.boot().unwrap();
    let room = machine.room();
    hotplug.announce(room).unwrap();
    hotplug.add(room).unwrap();
    let address = machine.address_of(room.start()).unwrap();
    // SAFETY: the memory is offline, so nothing uses it.
    unsafe { address.write(1) };
    hotplug.remove(room).unwrap();
    // SAFETY: as above, and the address is still reserved: the host commits a new page there.
    assert_eq!(unsafe { address.read() }, 0);
}

#[test]
fn device_memory_keeps_its_data_until_it_becomes_ram_under_each_policy() {
    let kinds = [
        (OnlineType::Offline, State::Offline),
        (OnlineType::Online, State::Online),
        (OnlineType::Movable, State::OnlineMovable),
    ];
    for (kind, expected) in kinds {
        let machine = Hosted::builder().room(Bytes::mib(256)).build().unwrap();
        let mut hotplug = machine.boot().unwrap();
        let (room, hooks) = (machine.room(), &mut machine.hooks());
        hotplug.announce(room).unwrap();
        // RAM and the device share a section.
        let middle = Pfn::new(room.start().number() + Bytes::mib(2 * 17).frames()).unwrap();
        let (ram, device) = room.split_at(middle);
        hotplug.add(ram).unwrap();
        hotplug.online(ram, OnlineType::Movable, hooks).unwrap();
        hotplug.add(AddRequest { device: true, ..device.into() }).unwrap();
        let data = machine.address_of(device.start()).unwrap();
        // SAFETY: device memory is used only by this test.
        unsafe { data.write(7) };
        // SAFETY: `data` is not used while it is RAM.
        unsafe { hotplug.device_to_ram(device, kind, hooks) }.unwrap();
        assert_eq!(hotplug.state_at(device.start(), device.end()), (device, expected));
        if kind != OnlineType::Offline {
            let got = machine.frames().alloc(AllocRequest::order(9).at(device.start()).movable());
            let refused = hotplug.ram_to_device(device).unwrap_err();
            assert!(matches!(refused, RangeError { kind: RangeErrorKind::Online, .. }));
            drop(got.unwrap());
            let mut offline = hotplug.offline(device).unwrap();
            let said = offline.poll(&mut hotplug, hooks, Budget::UNLIMITED);
            assert_eq!(said, Progress::Ready(device));
        }
        hotplug.ram_to_device(device).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { data.read() }, 7, "nothing has written to it");
        // SAFETY: the device's memory is no longer used.
        unsafe { hotplug.detach(device) }.unwrap();
        assert_eq!(hotplug.state_at(device.start(), device.end()), (device, State::Absent));
        // SAFETY: the address is still reserved: the host commits a new page there.
        assert_eq!(unsafe { data.read() }, 0);
    }
}

#[test]
fn each_thread_is_a_cpu() {
    let threads = Threads::default();
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
fn one_thread_can_be_several_cpus() {
    let threads = Threads::default();
    let numbers = std::thread::spawn(move || {
        [7, 0, 300].map(|cpu| {
            Threads::run_as(cpu);
            threads.cpu()
        })
    });
    assert_eq!(numbers.join().unwrap(), [7, 0, 300]);
}
