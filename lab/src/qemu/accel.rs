//! Chooses the accelerator for the guests of benches: KVM if it works, and TCG otherwise.

use super::{Accel, Config, Error, Vm, image};
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use std::{fs::OpenOptions, path::Path, sync::OnceLock, time::Duration};

/// The time limit for the first line of a guest under KVM on an idle host. A guest under TCG takes 0.2 s. KVM takes
/// longer than this limit inside a virtual machine whose hypervisor emulates KVM's instructions.
const FIRST_LINE_LIMIT: Duration = Duration::from_secs(1);

/// Returns KVM if the reference guest prints its first line under KVM within a second, and TCG
/// otherwise. Only the first call in a process tries KVM.
///
/// # Errors
/// The guest's image cannot be found or built.
pub fn best_accel(guest_image: Option<&Path>) -> Result<Accel, Error> {
    static FOUND: OnceLock<Accel> = OnceLock::new();
    if let Some(&found) = FOUND.get() {
        return Ok(found);
    }
    let is_usable = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    let found = if !is_usable {
        Accel::Tcg
    } else if boots_under_kvm(&image::find(guest_image)?) {
        Accel::Kvm
    } else {
        crate::out::remark(format_args!(
            "/dev/kvm exists, but the guest does not boot under KVM within {} s: TCG is used",
            scaled(FIRST_LINE_LIMIT).as_secs()
        ));
        Accel::Tcg
    };
    Ok(*FOUND.get_or_init(|| found))
}

fn boots_under_kvm(image: &Path) -> bool {
    let limit = scaled(FIRST_LINE_LIMIT);
    let config = Config::new(image.into(), Bytes::ZERO);
    let config = Config { accel: Accel::Kvm, patience: limit, ..config };
    Vm::start(&config).and_then(|mut vm| vm.first_line()).is_ok_and(|first| first <= limit)
}
