//! The script that a run follows, from the kernel command line.
//!
//! Keys that begin with `hotmem.` are ours, and an unknown one is an error: a misspelt key would
//! otherwise be a test that passes without having been run. All other words are left to whoever
//! they are for (a VMM adds its own).

#[cfg(test)]
mod tests;

use core::fmt;
use hotmem::Bytes;
use hotmem_memmap::Compound;

/// What to do, and when to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How much of the plugged memory to fill with patterns (`hotmem.touch`).
    pub touch: Touch,
    /// How much memory of any kind to fill with patterns at the start (`hotmem.work`).
    pub work: Bytes,
    /// When that work begins (`hotmem.work_at`).
    pub work_at: WorkAt,
    /// Whether touched memory stays in use (`hotmem.hold`); otherwise it is checked and freed when
    /// all of it has been touched.
    pub hold: bool,
    /// Whether free memory is reported to a balloon (`hotmem.reports`).
    pub reports: bool,
    /// How much of it in a second at most (`hotmem.report_rate`).
    pub report_rate: Option<Bytes>,
    /// How plugged memory is brought online (`hotmem.online`).
    pub online: Online,
    /// What becomes of memory that is plugged when its device is found (`hotmem.leftover`).
    pub leftover: Leftover,
    /// How often the kernel refuses to have memory come online or go offline, before it agrees
    /// (`hotmem.vetoes`).
    pub vetoes: u32,
    /// Whether RAM has a descriptor of 64 bytes for each frame (`hotmem.descriptors=64`).
    pub descriptors: bool,
    /// When the run is over (`hotmem.exit`).
    pub exit: ExitWhen,
    /// What the patterns are mixed with (`hotmem.seed`).
    pub seed: u64,
    /// What happens to touched frames when a shrink needs them (`hotmem.release`).
    pub release: Release,
    /// What free memory at boot is filled with, and what the work and other CPUs free of it
    /// (`hotmem.poison`), if anything.
    pub poison: Option<u32>,
    /// Whether other CPUs take and free memory all the time (`hotmem.churn`).
    pub churn: bool,
    /// What other CPUs allocate, clear and free, if anything (`hotmem.faults`).
    pub faults: Option<Faults>,
    /// How much of what the kernel itself keeps to have on its heap (`hotmem.heap`).
    pub heap: Bytes,
    /// Whether some of that is pinned until it stands in the way (`hotmem.pin`).
    pub pin: bool,
    /// How much memory is pinned for QEMU's device `edu`, and how much beside it is not until later
    /// (`hotmem.dma`).
    pub dma: Bytes,
    /// How much memory other CPUs write to through addresses, at most [`MAX_WRITTEN`]
    /// (`hotmem.writers`).
    pub writers: Bytes,
    /// How devices may interrupt (`hotmem.interrupts`).
    pub interrupts: Interrupts,
    /// As what persistent memory is bound (`hotmem.nvdimm`), if at all.
    pub nvdimm: Option<Namespace>,
    /// Where its descriptors lie (`hotmem.map`).
    pub map: MapOn,
    /// Whether the tails of its compounds share a frame of descriptors (`hotmem.tails`).
    pub shared_tails: bool,
    /// How large these compounds are (`hotmem.align`).
    pub compound: Compound,
    /// How often it is unbound and bound again (`hotmem.rebinds`).
    pub rebinds: u32,
    /// Seconds without progress in one step before the run is given up (`hotmem.watchdog`).
    pub watchdog_seconds: u32,
}

/// The most that other CPUs write to: each page is counted.
pub const MAX_WRITTEN: Bytes = Bytes::mib(16);

/// How much plugged memory to touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// At most this much in total.
    UpTo(Bytes),
    /// All that can be allocated.
    All,
}

/// Bursts of allocating and freeing, as `set:rounds:bursts:rest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// What a CPU allocates frame by frame and then frees.
    pub set: Bytes,
    /// How often it does so in a burst.
    pub rounds: u32,
    /// How many bursts there are, without the first, which is not measured.
    pub bursts: u32,
    /// Milliseconds between two bursts.
    pub rest_ms: u32,
}

/// What happens to touched frames when a shrink needs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// They are migrated (`off`).
    Never,
    /// They are checked and freed (`on`).
    Checked,
    /// They are freed as they are (`unchecked`).
    Unchecked,
}

/// When the work begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkAt {
    /// At the start.
    Boot,
    /// When the balloon first has something, and as much as the host wants.
    Inflated,
    /// When a migration has been told of more than half of the boot memory that it is free.
    Hinted,
}

/// The types of Linux's memory blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Online {
    /// Present, but not handed out.
    Offline,
    /// As the policy decides.
    Online,
    /// For any allocation.
    Kernel,
    /// For movable allocations only.
    Movable,
}

/// What becomes of memory that is plugged when its device is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leftover {
    /// It is used, as far as the device wants so much.
    Adopt,
    /// It is unplugged, and what the device wants is plugged anew.
    Unplug,
}

/// How devices may interrupt: the first of these that they and the machine are able to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Interrupts {
    /// Not at all: the timer has them looked at.
    Poll,
    /// By lines.
    Intx,
    /// By messages, each device by its own; or else by lines.
    Msix,
}

/// What persistent memory is bound as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Namespace {
    /// Single frames, for a file system.
    FsDax,
    /// Compounds, for whoever maps the device.
    DevDax,
    /// The same, and RAM between two binds.
    SystemRam,
}

/// Where descriptors of persistent memory lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapOn {
    /// On the device itself.
    Device,
    /// In ordinary memory.
    Memory,
}

/// When the run is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitWhen {
    /// After the boot event.
    Boot,
    /// After this many resizes have reached their target.
    Resizes(u32),
    /// Once this much is plugged and requested.
    Size(Bytes),
    /// When persistent memory has been bound as often as it was to be.
    Nvdimm,
    /// Not by itself.
    Never,
}

/// The reason why the command line was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmdlineError<'a> {
    /// It holds bytes that are not UTF-8, from this offset.
    NotText(usize),
    /// A `hotmem.` key that does not exist.
    UnknownKey(&'a str),
    /// A key with a value that it does not take, as `key=value`.
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
            descriptors: false,
            exit: ExitWhen::Never,
            seed: 0,
            release: Release::Checked,
            poison: None,
            churn: false,
            faults: None,
            heap: Bytes::ZERO,
            pin: false,
            dma: Bytes::ZERO,
            writers: Bytes::ZERO,
            interrupts: Interrupts::Msix,
            nvdimm: None,
            map: MapOn::Device,
            shared_tails: false,
            compound: Compound::MIB_2,
            rebinds: 30,
            watchdog_seconds: 60,
        }
    }
}

/// Returns the words for this kernel, and those behind `--`, if there are such: for the kernel that
/// it starts at the end of its run.
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
    /// Reads a command line. A key given twice counts as given last.
    ///
    /// # Errors
    /// [`CmdlineError`] naming the first word that cannot be followed.
    pub fn parse(cmdline: &[u8]) -> Result<Options, CmdlineError<'_>> {
        let text = core::str::from_utf8(cmdline)
            .map_err(|error| CmdlineError::NotText(error.valid_up_to()))?;
        let mut options = Options::default();
        for word in text.split_ascii_whitespace() {
            if let Some(setting) = word.strip_prefix("hotmem.") {
                let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
                let known = options.set(key, value).ok_or(CmdlineError::BadValue(word))?;
                if !known {
                    return Err(CmdlineError::UnknownKey(word));
                }
            }
        }
        Ok(options)
    }

    /// `None` if the key does not take the value, `Some(false)` if there is no such key.
    fn set(&mut self, key: &str, value: &str) -> Option<bool> {
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
            "online" => {
                self.online = match value {
                    "offline" => Online::Offline,
                    "online" => Online::Online,
                    "online_kernel" => Online::Kernel,
                    "online_movable" => Online::Movable,
                    _ => return None,
                };
            }
            "leftover" => {
                self.leftover = match value {
                    "adopt" => Leftover::Adopt,
                    "unplug" => Leftover::Unplug,
                    _ => return None,
                };
            }
            "vetoes" => self.vetoes = value.parse().ok()?,
            "descriptors" => {
                self.descriptors = match value {
                    "0" => false,
                    "64" => true,
                    _ => return None,
                };
            }
            "exit" => {
                self.exit = match value.split_once(':') {
                    None if value == "boot" => ExitWhen::Boot,
                    None if value == "never" => ExitWhen::Never,
                    None if value == "nvdimm" => ExitWhen::Nvdimm,
                    Some(("resizes", count)) => ExitWhen::Resizes(count.parse().ok()?),
                    Some(("size", size)) => ExitWhen::Size(parse_size(size)?),
                    _ => return None,
                };
            }
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
            "churn" => self.churn = parse_switch(value)?,
            "faults" => self.faults = Some(parse_faults(value)?),
            "heap" => self.heap = parse_size(value)?,
            "pin" => self.pin = parse_switch(value)?,
            "dma" => self.dma = parse_size(value)?,
            "writers" => {
                self.writers = parse_size(value).filter(|&size| size <= MAX_WRITTEN)?;
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
            "map" => {
                self.map = match value {
                    "dev" => MapOn::Device,
                    "mem" => MapOn::Memory,
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

/// Digits with an optional suffix K, M, G or T: powers of 1024.
pub(crate) fn parse_size(text: &str) -> Option<Bytes> {
    let shift = match text.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    // `parse` would take a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Bytes)
}

impl fmt::Display for CmdlineError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CmdlineError::NotText(at) => write!(f, "no UTF-8 from byte {at} on"),
            CmdlineError::UnknownKey(word) => write!(f, "unknown key in '{word}'"),
            CmdlineError::BadValue(word) => write!(f, "bad value in '{word}'"),
        }
    }
}
