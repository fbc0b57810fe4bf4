//! Reads the options of a run from the kernel command line.
//!
//! Keys that begin with `hotmem.` are options of this kernel. An unknown `hotmem.` key is an error,
//! because otherwise a test with a misspelt key would pass without testing anything. All other
//! words are ignored, because VMMs add words for other kernels.

mod known_failures;
#[cfg(test)]
mod tests;
mod values;

use core::fmt;
use hotmem::Bytes;
use hotmem_memmap::Compound;
pub use known_failures::KnownFailures;
pub use values::{
    CheckedDevice, CxlMode, DescriptorPlace, ExitWhen, Faults, Interrupts, Leftover, Namespace,
    Online, Release, StackOf, Touch, WorkAt, ZeroMarks,
};

/// The options of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The amount of plugged memory to fill with patterns (`hotmem.touch`).
    pub touch: Touch,
    /// The amount of memory of any kind to fill with patterns (`hotmem.work`).
    pub work: Bytes,
    /// When the filling of `work` begins (`hotmem.work_at`).
    pub work_at: WorkAt,
    /// Whether touched memory stays in use (`hotmem.hold`). If not, the memory is checked and freed
    /// when all of it has been touched.
    pub hold: bool,
    /// Whether free memory is reported to a balloon (`hotmem.reports`).
    pub reports: bool,
    /// The maximal amount that is reported in a second (`hotmem.report_rate`).
    pub report_rate: Option<Bytes>,
    /// How plugged memory is brought online (`hotmem.online`).
    pub online: Online,
    /// How to treat memory that is plugged already when its device is found (`hotmem.leftover`).
    pub leftover: Leftover,
    /// The number of times that the kernel vetoes onlining or offlining (`hotmem.vetoes`).
    pub vetoes: u32,
    /// The number of the answer about dynamic capacity that a CXL device is made to refuse, from 1
    /// (`hotmem.refused`).
    pub refused: u32,
    /// Whether RAM has a descriptor of 64 bytes for each frame (`hotmem.descriptors=64`).
    pub descriptors: bool,
    /// The device that is checked against the specification, in the place of a run with devices
    /// (`hotmem.check`).
    pub check: Option<CheckedDevice>,
    /// The points of the check that are known to fail (`hotmem.check_known`).
    pub check_known: KnownFailures,
    /// Whether somebody on the host carries out what the check asks for (`hotmem.check_host`).
    pub check_host: bool,
    /// When the run ends (`hotmem.exit`).
    pub exit: ExitWhen,
    /// The seed of the patterns (`hotmem.seed`).
    pub seed: u64,
    /// The size of the RAM that the engine is not told of at boot, and that is added later
    /// (`hotmem.late`).
    pub late: Bytes,
    /// How touched frames are treated when their memory is unplugged (`hotmem.release`).
    pub release: Release,
    /// The value that free memory is filled with, at boot and when it is freed, if any
    /// (`hotmem.poison`).
    pub poison: Option<u32>,
    /// Which free memory is marked as zero (`hotmem.zero`).
    pub zero: ZeroMarks,
    /// Whether other CPUs allocate and free memory continuously (`hotmem.churn`).
    pub churn: bool,
    /// Whether NMIs allocate and free memory (`hotmem.nmis`).
    pub nmis: bool,
    /// The stack on which the kernel calls a function recursively until the stack overflows, which
    /// ends the run (`hotmem.overflow`).
    pub overflow: Option<StackOf>,
    /// The bursts in which other CPUs allocate, clear and free memory, if any (`hotmem.faults`).
    pub faults: Option<Faults>,
    /// The total size of the kernel's own objects on its heap (`hotmem.heap`).
    pub heap: Bytes,
    /// Whether one of the objects on the heap is pinned until it blocks an offlining
    /// (`hotmem.pin`).
    pub pin: bool,
    /// The size of each of two ranges to which QEMU's device `edu` writes. The first range is
    /// pinned at the start, and the second later (`hotmem.dma`).
    pub dma: Bytes,
    /// The amount of mapped memory to which other CPUs write, at most [`MAX_WRITTEN`]
    /// (`hotmem.writers`).
    pub memory_written_by_cpus: Bytes,
    /// How devices may interrupt (`hotmem.interrupts`).
    pub interrupts: Interrupts,
    /// How persistent memory is bound, if at all (`hotmem.nvdimm`).
    pub nvdimm: Option<Namespace>,
    /// How the memory of CXL devices is used at first, if at all (`hotmem.cxl`).
    pub cxl: Option<CxlMode>,
    /// Between how many devices the addresses of CXL memory alternate (`hotmem.ways`). Windows may
    /// alternate between more.
    pub ways: u8,
    /// The memory that contains the descriptors of persistent memory (`hotmem.map`).
    pub map: DescriptorPlace,
    /// Whether the tails of compounds of persistent memory share a frame of descriptors
    /// (`hotmem.tails`).
    pub shared_tails: bool,
    /// The size of the compounds of persistent memory (`hotmem.align`).
    pub compound: Compound,
    /// The number of times that persistent memory is unbound and bound again (`hotmem.rebinds`).
    pub rebinds: u32,
    /// The number of seconds without progress after which the run is aborted (`hotmem.watchdog`).
    pub watchdog_seconds: u32,
}

/// The maximal size of the memory to which other CPUs write. The kernel has a count of writes for
/// each page, so the size is bounded.
pub const MAX_WRITTEN: Bytes = Bytes::mib(16);

/// The reason why the command line was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmdlineError<'a> {
    /// The command line is not UTF-8. Contains the offset of the first invalid byte.
    NotText(usize),
    /// A `hotmem.` key is unknown. Contains the word with the key.
    UnknownKey(&'a str),
    /// A value is invalid. Contains the word `key=value`.
    BadValue(&'a str),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            touch: Touch::UpTo(Bytes::ZERO),
            work: Bytes::ZERO,
            work_at: WorkAt::Boot,
            hold: true,
            reports: true,
            report_rate: None,
            online: Online::Movable,
            leftover: Leftover::Adopt,
            vetoes: 0,
            refused: 0,
            descriptors: false,
            check: None,
            check_known: KnownFailures::default(),
            check_host: true,
            exit: ExitWhen::Never,
            seed: 0,
            late: Bytes::ZERO,
            release: Release::Checked,
            poison: None,
            zero: ZeroMarks::Off,
            churn: false,
            nmis: false,
            overflow: None,
            faults: None,
            heap: Bytes::ZERO,
            pin: false,
            dma: Bytes::ZERO,
            memory_written_by_cpus: Bytes::ZERO,
            interrupts: Interrupts::Msix,
            nvdimm: None,
            cxl: None,
            ways: 1,
            map: DescriptorPlace::Device,
            shared_tails: false,
            compound: Compound::MIB_2,
            rebinds: 30,
            watchdog_seconds: 60,
        }
    }
}

/// Splits a command line at the word `--`. Returns the part for this kernel, and the part for the
/// kernel that this kernel starts at the end of its run, if the loader passed such a kernel. Without
/// the word `--` there is no second part.
#[must_use]
pub fn split(cmdline: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut start = 0;
    for word in cmdline.split(u8::is_ascii_whitespace) {
        let end = start + word.len();
        if word == b"--" {
            return (&cmdline[..start], Some(&cmdline[end..]));
        }
        start = end + 1;
    }
    (cmdline, None)
}

impl Options {
    /// Reads a command line. If a key is repeated, its last value counts.
    ///
    /// # Errors
    /// [`CmdlineError`] names the first invalid word, or the first byte that is not UTF-8.
    pub fn parse(cmdline: &[u8]) -> Result<Options, CmdlineError<'_>> {
        let text = core::str::from_utf8(cmdline)
            .map_err(|error| CmdlineError::NotText(error.valid_up_to()))?;
        let mut options = Options::default();
        for word in text.split_ascii_whitespace() {
            if let Some(setting) = word.strip_prefix("hotmem.") {
                let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
                let known = options.set_option(key, value).ok_or(CmdlineError::BadValue(word))?;
                if !known {
                    return Err(CmdlineError::UnknownKey(word));
                }
            }
        }
        Ok(options)
    }

    /// Sets an option. Returns `None` if the value is invalid, and `Some(false)` if the key is
    /// unknown.
    fn set_option(&mut self, key: &str, value: &str) -> Option<bool> {
        match key {
            "touch" => {
                self.touch =
                    if value == "all" { Touch::All } else { Touch::UpTo(parse_size(value)?) };
            }
            "work" => self.work = parse_size(value)?,
            "work_at" => {
                self.work_at = match value {
                    "boot" => WorkAt::Boot,
                    "inflated" => WorkAt::Inflated,
                    "hinted" => WorkAt::Hinted,
                    _ => return None,
                };
            }
            "hold" => self.hold = parse_switch(value)?,
            "reports" => self.reports = parse_switch(value)?,
            "report_rate" => self.report_rate = Some(parse_size(value)?),
            "online" => self.online = Online::parse(value)?,
            "leftover" => {
                self.leftover = match value {
                    "adopt" => Leftover::Adopt,
                    "unplug" => Leftover::Unplug,
                    _ => return None,
                };
            }
            "vetoes" => self.vetoes = value.parse().ok()?,
            "refused" => self.refused = value.parse().ok()?,
            "descriptors" => {
                self.descriptors = match value {
                    "0" => false,
                    "64" => true,
                    _ => return None,
                };
            }
            "check" => {
                self.check = match value {
                    "memory" => Some(CheckedDevice::Memory),
                    "balloon" => Some(CheckedDevice::Balloon),
                    _ => return None,
                };
            }
            "check_known" => self.check_known = KnownFailures::parse(value)?,
            "check_host" => self.check_host = parse_switch(value)?,
            "exit" => {
                self.exit = match value.split_once(':') {
                    None if value == "boot" => ExitWhen::Boot,
                    None if value == "command" => ExitWhen::Command,
                    None if value == "never" => ExitWhen::Never,
                    None if value == "nvdimm" => ExitWhen::Nvdimm,
                    Some(("resizes", count)) => ExitWhen::Resizes(count.parse().ok()?),
                    Some(("size", size)) => ExitWhen::Size(parse_size(size)?),
                    Some(("inflations", count)) => ExitWhen::Inflations(count.parse().ok()?),
                    Some(("reported", size)) => ExitWhen::Reported(parse_size(size)?),
                    _ => return None,
                };
            }
            "late" => self.late = parse_size(value)?,
            "seed" => self.seed = value.parse().ok()?,
            "release" => {
                self.release = match value {
                    "off" => Release::Never,
                    "on" => Release::Checked,
                    "unchecked" => Release::Unchecked,
                    _ => return None,
                };
            }
            "poison" => self.poison = Some(value.parse().ok()?),
            "zero" => {
                self.zero = match value {
                    "off" => ZeroMarks::Off,
                    "device" => ZeroMarks::Device,
                    "reported" => ZeroMarks::Reported,
                    _ => return None,
                };
            }
            "churn" => self.churn = parse_switch(value)?,
            "nmis" => self.nmis = parse_switch(value)?,
            "overflow" => {
                self.overflow = match value {
                    "first" => Some(StackOf::FirstCpu),
                    "other" => Some(StackOf::OtherCpu),
                    _ => return None,
                };
            }
            "faults" => self.faults = Some(parse_faults(value)?),
            "heap" => self.heap = parse_size(value)?,
            "pin" => self.pin = parse_switch(value)?,
            "dma" => self.dma = parse_size(value)?,
            "writers" => {
                self.memory_written_by_cpus =
                    parse_size(value).filter(|&size| size <= MAX_WRITTEN)?;
            }
            "interrupts" => {
                self.interrupts = match value {
                    "poll" => Interrupts::Poll,
                    "intx" => Interrupts::Intx,
                    "msix" => Interrupts::Msix,
                    _ => return None,
                };
            }
            "nvdimm" => {
                self.nvdimm = match value {
                    "fsdax" => Some(Namespace::FsDax),
                    "devdax" => Some(Namespace::DevDax),
                    "system_ram" => Some(Namespace::SystemRam),
                    _ => return None,
                };
            }
            "cxl" => {
                self.cxl = match value {
                    "devdax" => Some(CxlMode::DevDax),
                    "system-ram" => Some(CxlMode::SystemRam),
                    _ => return None,
                };
            }
            "ways" => self.ways = value.parse().ok().filter(|ways: &u8| ways.is_power_of_two())?,
            "map" => {
                self.map = match value {
                    "dev" => DescriptorPlace::Device,
                    "mem" => DescriptorPlace::Memory,
                    _ => return None,
                };
            }
            "tails" => {
                self.shared_tails = match value {
                    "own" => false,
                    "shared" => true,
                    _ => return None,
                };
            }
            "align" => {
                self.compound = match value {
                    "2M" => Compound::MIB_2,
                    "1G" => Compound::GIB_1,
                    _ => return None,
                };
            }
            "rebinds" => self.rebinds = value.parse().ok()?,
            "watchdog" => {
                self.watchdog_seconds = value.parse().ok().filter(|&seconds| seconds > 0)?;
            }
            _ => return Some(false),
        }
        Some(true)
    }
}

fn parse_faults(text: &str) -> Option<Faults> {
    let mut parts = text.split(':');
    let set = parse_size(parts.next()?).filter(|set| set.frames() > 0)?;
    let mut number = || parts.next()?.parse().ok();
    let faults = Faults { set, rounds: number()?, bursts: number()?, rest_ms: number()? };
    parts.next().is_none().then_some(faults)
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Parses digits and an optional suffix K, M, G or T, which stands for a power of 1024.
pub(crate) fn parse_size(text: &str) -> Option<Bytes> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    // `parse` would accept a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Bytes)
}

impl fmt::Display for CmdlineError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CmdlineError::NotText(at) => write!(f, "not UTF-8 from byte {at} on"),
            CmdlineError::UnknownKey(word) => write!(f, "unknown key in '{word}'"),
            CmdlineError::BadValue(word) => write!(f, "bad value in '{word}'"),
        }
    }
}
