//! The configuration of a machine, and the VMM that runs it.

use anyhow::{Context, Result, anyhow};
use msb_krun_devices::virtio::Mem;
use msb_krun_polly::event_manager::EventManager;
use msb_krun_utils::eventfd::{EFD_NONBLOCK, EventFd};
use msb_krun_vmm::Vmm;
use msb_krun_vmm::builder::build_microvm;
use msb_krun_vmm::resources::{SerialConsoleConfig, VmResources};
use msb_krun_vmm::vmm_config::external_kernel::{ExternalKernel, KernelFormat};
use msb_krun_vmm::vmm_config::machine_config::VmConfig;
use std::io::{PipeWriter, pipe, stdout};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicI32;
use std::sync::{Arc, Mutex};

/// The arguments of the process.
#[derive(clap::Parser)]
pub(crate) struct Machine {
    /// The kernel, an ELF file with an entry for Linux's 64-bit boot protocol
    #[arg(long)]
    kernel: PathBuf,
    /// The initial RAM disk
    #[arg(long)]
    initrd: Option<PathBuf>,
    /// The kernel's command line. The VMM adds words before ` -- `
    #[arg(long, default_value = "")]
    append: String,
    /// Memory at boot, in MiB
    #[arg(long, value_name = "MIB")]
    boot_memory: usize,
    /// The largest size that the memory device can plug, in MiB
    #[arg(long, value_name = "MIB")]
    device_memory: usize,
    /// The number of CPUs
    #[arg(long, default_value_t = 1)]
    cpus: u8,
    /// Adds a balloon device with free page reporting
    #[arg(long)]
    balloon: bool,
    /// Emulates the I/O APIC in the VMM. The machine then has neither an 8259 nor an 8254
    #[arg(long)]
    split_irqchip: bool,
}

/// A running machine.
pub(crate) struct Running {
    pub(crate) memory_device: Arc<Mutex<Mem>>,
    events: EventManager,
    _vmm: Arc<Mutex<Vmm>>,
    /// The end of the serial console's input, to which nobody writes.
    _input: PipeWriter,
}

impl Machine {
    /// Starts the machine.
    pub(crate) fn build(&self) -> Result<Running> {
        let memory_device = Mem::new().map_err(|error| anyhow!("memory device: {error:?}"))?;
        let memory_device = Arc::new(Mutex::new(memory_device));
        let (input, never_written) = pipe()?;
        let mut resources = self.resources(memory_device.clone())?;
        // The VMM closes both.
        resources.serial_consoles = vec![SerialConsoleConfig {
            input_fd: OwnedFd::from(input).into_raw_fd(),
            output_fd: stdout().as_fd().try_clone_to_owned()?.into_raw_fd(),
        }];
        let mut events = EventManager::new().map_err(|error| anyhow!("events: {error:?}"))?;
        let (sender, requests) = crossbeam_channel::unbounded();
        let exit = EventFd::new(EFD_NONBLOCK)?;
        let exit_code = Arc::new(AtomicI32::new(i32::MAX));
        let vmm = build_microvm(&mut resources, &mut events, None, sender, exit, exit_code)
            .map_err(|error| anyhow!("the VM cannot be built: {error:?}"))?;
        if self.split_irqchip {
            msb_krun_vmm::worker::start_worker_thread(vmm.clone(), requests)?;
        }
        Ok(Running { memory_device, events, _vmm: vmm, _input: never_written })
    }

    fn resources(&self, memory_device: Arc<Mutex<Mem>>) -> Result<VmResources> {
        let (cmdline, after_dashes) = match self.append.split_once(" -- ") {
            Some((cmdline, rest)) => (cmdline, Some(rest)),
            None => (&*self.append, None),
        };
        let initrd = self.initrd.as_deref();
        let initrd_bytes =
            initrd.map(|path| path.metadata().context("initial RAM disk")).transpose()?;
        let mut resources = VmResources::default();
        resources.external_kernel = Some(ExternalKernel {
            path: self.kernel.clone(),
            format: KernelFormat::Elf,
            initramfs_path: self.initrd.clone(),
            initramfs_size: initrd_bytes.map_or(0, |metadata| metadata.len()),
            cmdline: Some(cmdline.to_owned()),
        });
        resources.kernel_cmdline.epilog = after_dashes.map(|rest| format!("-- {rest}"));
        resources.mem_device = Some(memory_device);
        resources.enable_balloon = self.balloon;
        resources.balloon_stats_interval = None;
        resources.enable_rng = false;
        resources.enable_msb_metrics = false;
        resources.disable_implicit_console = true;
        resources.split_irqchip = self.split_irqchip;
        let config = VmConfig {
            vcpu_count: Some(self.cpus),
            mem_size_mib: Some(self.boot_memory),
            max_mem_size_mib: Some(self.boot_memory + self.device_memory),
            ..VmConfig::default()
        };
        resources.set_vm_config(&config).map_err(|error| anyhow!("memory or CPUs: {error:?}"))?;
        Ok(resources)
    }
}

impl Running {
    /// Runs the machine. The VMM ends the process when the guest resets the machine.
    pub(crate) fn run(&mut self) -> Result<()> {
        loop {
            self.events.run().map_err(|error| anyhow!("events: {error:?}"))?;
        }
    }
}
