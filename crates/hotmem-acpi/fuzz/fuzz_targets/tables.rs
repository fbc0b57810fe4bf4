//! Searches arbitrary bytes for the definitions of a DSDT, and reads them as the structures of an SRAT.
#![no_main]

use hotmem_acpi::{aml, srat};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = aml::find_region(bytes, b"HPMR");
    let _ = aml::find_integer(bytes, b"MDNR");
    let _ = aml::find_interrupt(bytes, b"ACPI0013");
    assert!(srat::memory_affinities(bytes).count() <= bytes.len() / 40);
});
