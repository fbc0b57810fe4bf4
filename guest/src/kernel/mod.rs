//! Boots the kernel, carries out the run that the command line describes, and ends the machine.

mod acpi;
mod acpi_hotplug;
mod attached_device;
mod balloon;
mod boot;
mod boot_memory;
mod churn;
mod command_port;
mod config_space;
mod conformance;
mod contents;
mod cxl;
mod dax;
mod descriptors;
mod device;
mod device_error;
mod device_memory;
mod dimms;
mod edu;
mod engine;
mod entropy;
mod fatal;
mod firmware;
mod fw_cfg;
mod general_events;
mod hal;
mod heap;
mod hooks;
mod late_memory;
mod loader;
mod memory;
mod memory_view;
mod migratable_window;
mod moving_pages;
mod msix;
mod nmi;
mod nvdimm;
mod objects;
mod page_faults;
mod pci;
mod pinned_memory;
mod progress;
mod queue_memory;
mod quiesce;
mod session;
mod slot_events;
mod slot_region;
mod slot_registers;
mod stacks;
mod take_once;
mod this_cpu;
mod transport;
mod wakeup;
mod workload;
mod zone_watch;

use crate::arch::exit;
use session::Session;

/// Runs the kernel. The boot code of the architecture calls this function on the boot stack, with the
/// address of what the loader has passed. It has mapped [`arch::image::mapped`](crate::arch::image) in
/// the direct map, and the kernel's image at its link address.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(boot_info: u64) -> ! {
    let session = Session::open(boot::boot(boot_info));
    if let Some(kind) = session.checked_device() {
        exit(session.check_device(kind))
    }
    session.attach_devices();
    session.run();
    exit(session.finish())
}
