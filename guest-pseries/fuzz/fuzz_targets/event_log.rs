//! An RTAS event log of any bytes, from the fuzzer.
#![no_main]

use hotmem_guest_pseries::event_log::Event;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(Event::Hotplug(hotplug)) = Event::parse(bytes) {
        let _ = hotplug.request();
        // What lies behind the log makes no difference.
        let longer = [bytes, &[0xff; 64]].concat();
        assert_eq!(Event::parse(&longer), Ok(Event::Hotplug(hotplug)));
    }
});
