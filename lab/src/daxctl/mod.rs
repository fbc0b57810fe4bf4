//! `hotmem daxctl`, which lists and reconfigures the memory of CXL devices and NVDIMMs in a guest, with the
//! words and the JSON of daxctl.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the arguments, and the guest |
//! | `device.rs` | a device as daxctl prints it |

mod device;

use crate::{
    guest::{Guest, Machine, Policy},
    out, progress,
    qemu::{Architecture, Config, Cxl, Dax, Emulator, Error, Event, Vm},
    size,
};
use anyhow::{Context, Result, bail};
use device::Device;
use hotmem::Bytes;

/// Arguments of `hotmem daxctl`: a description of the machine, and the command.
#[derive(clap::Args)]
pub struct Args {
    /// The memory of a CXL device: whole 256M. Repeat it for more devices [default: 256M, if there is no
    /// NVDIMM]
    #[arg(long = "device", value_name = "SIZE", value_parser = parse_device, global = true)]
    devices: Vec<Bytes>,
    /// The memory of an NVDIMM: whole 128M. Repeat it for more NVDIMMs, whose numbers follow those of CXL
    /// memory
    #[arg(long = "nvdimm", value_name = "SIZE", value_parser = parse_nvdimm, global = true)]
    nvdimms: Vec<Bytes>,
    /// The number of devices between which addresses alternate
    #[arg(long, value_name = "N", default_value_t = 1, global = true,
          value_parser = clap::value_parser!(u8).range(1..=8))]
    ways: u8,
    /// Make all devices RAM before the command
    #[arg(long, global = true)]
    system_ram: bool,
    /// Memory of the devices that is in use before the command
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "system_ram", global = true)]
    touch: Option<Bytes>,
    #[command(flatten)]
    machine: Machine,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the devices
    List {
        /// Print sizes with units
        #[arg(short = 'u', long)]
        human: bool,
    },
    /// Make a device RAM, or a device again
    ReconfigureDevice(Reconfigure),
}

#[derive(clap::Args)]
struct Reconfigure {
    /// The name of the device, or `all`
    device: String,
    /// The mode to which the device is changed
    #[arg(short, long, value_enum)]
    mode: Mode,
    /// Do not put the memory online
    #[arg(short = 'N', long)]
    no_online: bool,
    /// Put the memory online for any allocation
    #[arg(long)]
    no_movable: bool,
    /// Take the memory offline before
    #[arg(short, long)]
    force: bool,
    /// Print sizes with units
    #[arg(short = 'u', long)]
    human: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    SystemRam,
    Devdax,
}

fn parse_device(text: &str) -> Result<Bytes, String> {
    parse_whole(text, 256)
}

fn parse_nvdimm(text: &str) -> Result<Bytes, String> {
    parse_whole(text, 128)
}

/// Reads a size, which must be whole units of `mib` MiB.
fn parse_whole(text: &str, mib: u64) -> Result<Bytes, String> {
    let size = size::parse(text)?;
    let is_whole = size.0 > 0 && size.0.is_multiple_of(Bytes::mib(mib).0);
    if is_whole { Ok(size) } else { Err(format!("a device has whole {mib}M")) }
}

/// Boots a guest with the devices, carries out the command and prints the devices.
///
/// # Errors
/// The first error.
pub fn run(args: &Args) -> Result<()> {
    if let Command::ReconfigureDevice(Reconfigure { mode: Mode::Devdax, no_online: true, .. }) =
        args.command
    {
        bail!("--no-online is incompatible with --mode=devdax");
    }
    let progress = progress::spinner();
    progress.set_message("booting");
    let mut vm = progress.suspend(|| args.start())?;
    let result = args.carry_out(&mut vm);
    progress.finish_and_clear();
    let (devices, is_human) = result?;
    vm.command("end")?;
    vm.finish()?;
    // daxctl prints a single device without the list around it if sizes have units.
    match &devices[..] {
        [device] if is_human => out::write_json(&device.human())?,
        _ if is_human => out::write_json(&devices.iter().map(Device::human).collect::<Vec<_>>())?,
        _ => out::write_json(&devices)?,
    }
    if let Command::ReconfigureDevice(_) = args.command {
        let s = if devices.len() == 1 { "" } else { "s" };
        out::remark(format_args!("reconfigured {} device{s}", devices.len()));
    }
    Ok(())
}

impl Args {
    fn start(&self) -> Result<Vm> {
        let guests = self.machine.guests(Architecture::X86_64, &[Guest::Hotmem], &[])?;
        let config = guests.config(Guest::Hotmem, Policy::OnlineMovable, Bytes::ZERO)?;
        let config = self.with_nvdimms(self.with_cxl(config)?);
        let config = config.with_guest_option("release", "off").with_commands();
        let mut vm = Vm::start(&match self.touch {
            Some(touch) => config.with_touched_memory(touch),
            None => config,
        })?;
        if self.touch.is_some() {
            vm.command("touch")?;
            vm.wait("memory in use", |event| matches!(event, Event::Touched { .. }).then_some(()))?;
        }
        Ok(vm)
    }

    fn with_cxl(&self, config: Config) -> Result<Config> {
        let sizes = match &self.devices[..] {
            [] if self.nvdimms.is_empty() => &[Bytes::mib(256)][..],
            [] => return Ok(config),
            sizes => sizes,
        };
        let emulator = Emulator::with_cxl().context("CXL needs QEMU 10: `cargo xtask setup`")?;
        let config = Config { emulator, cxl: Some(Cxl::volatile(sizes)), ..config };
        let mode = if self.system_ram { "system-ram" } else { "devdax" };
        Ok(config.with_guest_option("cxl", mode).with_guest_option("ways", self.ways))
    }

    fn with_nvdimms(&self, config: Config) -> Config {
        if self.nvdimms.is_empty() {
            return config;
        }
        let mode = if self.system_ram { "system_ram" } else { "devdax" };
        Config { nvdimms: self.nvdimms.clone(), ..config.with_guest_option("nvdimm", mode) }
    }

    /// Returns the devices that the command lists or changes, and whether sizes have units.
    fn carry_out(&self, vm: &mut Vm) -> Result<(Vec<Device>, bool)> {
        let devices = list(vm)?;
        let change = match &self.command {
            Command::List { human } => return Ok((devices, *human)),
            Command::ReconfigureDevice(change) => change,
        };
        let is_wanted = |device: &Device| change.device == "all" || change.device == device.name();
        let wanted: Vec<_> =
            devices.iter().filter(|device| is_wanted(device)).map(Device::number).collect();
        if wanted.is_empty() {
            bail!("error reconfiguring devices: No such device or address");
        }
        for number in wanted {
            change.carry_out(number, vm)?;
        }
        let changed = list(vm)?.into_iter().filter(|device| is_wanted(device)).collect();
        Ok((changed, change.human))
    }
}

impl Reconfigure {
    fn carry_out(&self, number: usize, vm: &mut Vm) -> Result<()> {
        let command = match self.mode {
            Mode::SystemRam => {
                let online = match (self.no_online, self.no_movable) {
                    (true, _) => "offline",
                    (false, true) => "online_kernel",
                    (false, false) => "online_movable",
                };
                format!("system-ram {number} {online}")
            }
            Mode::Devdax => format!("devdax {number}{}", if self.force { " force" } else { "" }),
        };
        match vm.reconfigure(&command) {
            Ok(_) => Ok(()),
            Err(Error::GuestRefused { reason, .. }) => {
                bail!("error reconfiguring devices: {}: {reason}", device::name(number))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn list(vm: &mut Vm) -> Result<Vec<Device>> {
    let states = vm.command("list")?.into_iter().filter_map(|event| match event {
        Event::Dax(dax) => Some(dax),
        _ => None,
    });
    Ok(states.map(|dax: Dax| Device::from(&dax)).collect())
}
