//! Chooses what runs the guests of benches: KVM where it works, TCG elsewhere.

use super::{Accel, Config, Error, Vm, image};
use hotmem::Bytes;
use std::{fs::OpenOptions, path::Path, sync::OnceLock, time::Duration};

/// Within this time a guest under KVM says its first line, or KVM counts as not working: TCG takes
/// 0.2 s. KVM inside a virtual machine whose own hypervisor emulates it takes longer.
const LIMIT: Duration = Duration::from_secs(1);

/// Returns KVM if the reference guest boots under it within a second, and TCG otherwise. A process
/// finds that out once.
///
/// # Errors
/// The guest's image cannot be found or built.
pub fn best(guest_image: Option<&Path>) -> Result<Accel, Error> {
    static FOUND: OnceLock<Accel> = OnceLock::new();
    if let Some(&found) = FOUND.get() {
        return Ok(found);
    }
    let is_there = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    let found = if !is_there {
        Accel::Tcg
    } else if boots_under_kvm(&image::find(guest_image)?) {
        Accel::Kvm
    } else {
        crate::out::remark(format_args!(
            "/dev/kvm is there, but no guest boots under it within {} s: TCG is taken",
            LIMIT.as_secs()
        ));
        Accel::Tcg
    };
    Ok(*FOUND.get_or_init(|| found))
}

fn boots_under_kvm(image: &Path) -> bool {
    let config = Config::new(image.into(), Bytes::ZERO);
    let config = Config { accel: Accel::Kvm, patience: LIMIT, ..config };
    Vm::start(&config).and_then(|mut vm| vm.first_line()).is_ok_and(|first| first <= LIMIT)
}
