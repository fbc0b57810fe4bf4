//! Boots Xen under QEMU, with the guest as dom0, and parses the guest's output.

use super::xpti::Xpti;
use crate::qemu::{Boot, Event, Figure, Launch, MarkedOperation, Race, Report, Vm, image};
use anyhow::{Context, Result, ensure};
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use std::{
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

const QEMU: &str = "qemu-system-x86_64";
/// The memory of the machine.
const MEMORY: Bytes = Bytes::gib(1);
const DOM0_MEMORY: Bytes = Bytes::mib(512);
/// The time limit between two reports of the guest on an idle host. A race takes a second on two CPUs,
/// and some minutes on one.
const PATIENCE: Duration = Duration::from_secs(900);

/// The images of Xen and of the guest.
pub struct Machine {
    xen: PathBuf,
    guest: PathBuf,
}

/// The unit of the guest's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Cycles. The CPUs run in parallel, and the result depends on the load of the host.
    Cycles,
    /// Instructions of all CPUs. The CPUs run in turn, and the result is the same in each run.
    Instructions,
}

/// The page faults and interrupts of an operation. They are counted in QEMU's log, because the
/// guest cannot count them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interrupts {
    /// The case, such as `xen-munmap`.
    pub case: String,
    /// The subject: `before`, `read-then-clear` or `hotmem`.
    pub subject: String,
    /// The number of L1 tables. All their entries are present.
    pub tables: u64,
    /// The number of page faults of the guest, in each of which Xen emulated an instruction.
    pub traps: u64,
    /// The number of flush interrupts to the other CPU.
    pub flushes: u64,
}

/// The results of a guest whose verdict is PASS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The figures, in the order of the measurements.
    pub figures: Vec<Figure>,
    /// The races, in the order of the measurements.
    pub races: Vec<Race>,
    /// The operations between marks, in the order of the measurements.
    marked_operations: Vec<MarkedOperation>,
    /// The test points that passed.
    pub points: Vec<String>,
}

/// The numbers of page faults and flush interrupts in QEMU's log between two marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LogCounts {
    traps: u64,
    flushes: u64,
}

impl Machine {
    /// Finds the images of Xen and of the guest.
    ///
    /// # Errors
    /// An image is missing.
    pub fn find(guest: Option<&Path>) -> Result<Machine> {
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/xen/boot"));
        let files = dir.read_dir().into_iter().flatten().flatten().map(|file| file.path());
        let is_xen = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("xen-") && name.ends_with("-amd64")
        };
        let xen = files.filter(is_xen).max();
        let xen =
            xen.context("no Xen in target/xen: `cargo xtask setup` unpacks Debian's package")?;
        Ok(Machine { xen, guest: image::find_xen(guest)? })
    }

    /// Boots the guest with the command line `options`, and waits for the guest's verdict.
    ///
    /// # Errors
    /// The guest fails, gives up, or prints nothing for too long.
    pub fn boot(&self, xpti: Xpti, clock: Clock, options: &str) -> Result<Outcome> {
        let command = self.command(xpti, clock, options)?;
        read_outcome(launch(command)).with_context(|| format!("{xpti}, {options}"))
    }

    /// Boots the guest, which changes and tears down page tables. Counts the guest's page faults
    /// and Xen's flush interrupts to the other CPU.
    ///
    /// # Errors
    /// As for [`boot`](Self::boot).
    pub fn interrupts(&self, xpti: Xpti) -> Result<Vec<Interrupts>> {
        let mut command = self.command(xpti, Clock::Cycles, "mode=marks")?;
        command.args(["-d", "int"]);
        let (log, qemu_log) = io::pipe().context("a pipe for QEMU's log")?;
        let counts = thread::spawn(move || {
            count_between_marks(BufReader::new(log).split(b'\n').map_while(Result::ok))
        });
        let launch = Launch { log: Some(qemu_log), ..launch(command) };
        let marked = read_outcome(launch).context("counting interrupts")?.marked_operations;
        let counts = counts.join().ok().context("reading QEMU's log")?;
        // An operation lies between the first and the second mark, the next one between the third
        // and the fourth, and so on.
        let counts: Vec<LogCounts> = counts.into_iter().skip(1).step_by(2).collect();
        ensure!(
            counts.len() == marked.len(),
            "QEMU's log has {counts:?} between marks, and the guest reports {marked:?}"
        );
        let interrupts =
            |(MarkedOperation { case, subject, tables }, LogCounts { traps, flushes })| {
                Interrupts { case, subject, tables, traps, flushes }
            };
        Ok(marked.into_iter().zip(counts).map(interrupts).collect())
    }

    fn command(&self, xpti: Xpti, clock: Clock, options: &str) -> Result<Command> {
        // QEMU splits the value of `-initrd` at spaces and commas. QEMU runs in the image's
        // directory, so that only the name of the image must not contain them.
        let name = self.guest.file_name().unwrap_or_default().to_string_lossy();
        ensure!(!name.contains([' ', ',']), "the image's name contains a space or a comma: {name}");
        let directory = self.guest.parent().filter(|parent| !parent.as_os_str().is_empty());
        let xpti = if xpti == Xpti::On { "dom0" } else { "no" };
        let xen_options = format!(
            "console=com1 com1=115200 dom0_mem={}M xpti={xpti} loglvl=error guest_loglvl=none",
            DOM0_MEMORY.0 >> 20
        );
        let mut command = Command::new(QEMU);
        // With `max`, Xen 4.17's dom0 crashes under TCG.
        command.args(["-cpu", "Haswell-v4", "-smp", "2"]);
        match clock {
            Clock::Cycles => command.args(["-accel", "tcg,thread=multi"]),
            // An instruction takes a nanosecond, as on a processor of 1 GHz.
            Clock::Instructions => {
                command.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"])
            }
        };
        command.args(["-m", &format!("{}M", MEMORY.0 >> 20)]);
        let initrd = PathBuf::from(format!("{name} {options}"));
        let append = [xen_options];
        Boot { kernel: &self.xen, initrd: Some(&initrd), append: &append }.add_to(&mut command);
        directory.map(|directory| command.current_dir(directory));
        Ok(command)
    }
}

/// Counts page faults and Xen's flush interrupts (`INVALIDATE_TLB_VECTOR`) before the first mark,
/// between each mark and the next, and after the last mark. A mark is a page fault of the guest at
/// an unmapped address whose upper 32 bits are 5.
fn count_between_marks(log: impl Iterator<Item = Vec<u8>>) -> Vec<LogCounts> {
    let mut counts = vec![LogCounts::default()];
    for line in log {
        let line = String::from_utf8_lossy(&line);
        let is_fault = line.contains("v=0e");
        if is_fault && line.contains("CR2=00000005") {
            counts.push(LogCounts::default());
        } else if let Some(count) = counts.last_mut() {
            count.traps += u64::from(is_fault);
            count.flushes += u64::from(line.starts_with("Servicing hardware INT=0xfd"));
        }
    }
    counts
}

/// Returns a machine with this command. It has no time limit for its end, because the machine is
/// killed after the guest's verdict.
fn launch(command: Command) -> Launch {
    Launch { host_memory: MEMORY, ..Launch::new(command, scaled(PATIENCE)) }
}

/// Starts QEMU, and reads the guest's reports until its verdict.
fn read_outcome(launch: Launch) -> Result<Outcome> {
    let mut vm = Vm::launch(launch)?;
    let mut outcome = Outcome::default();
    loop {
        match vm.next_report("verdict")? {
            Report::Passed(point) => outcome.points.push(point),
            Report::Event(Event::Figure(figure)) => outcome.figures.push(figure),
            Report::Event(Event::Race(race)) => outcome.races.push(race),
            Report::Event(Event::Marked(marked)) => outcome.marked_operations.push(marked),
            Report::Verdict(_) => return Ok(outcome),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_faults_and_flushes_are_counted_for_each_mark() {
        let flush = "Servicing hardware INT=0xfd";
        let mark = "  96: v=0e e=0006 i=0 cpl=3 IP=e033:80 pc=80 SP=e02b:84 CR2=0000000500000000";
        let registers = "CR0=80050033 CR2=0000000500000000 CR3=000000003fd60000 CR4=00140660";
        let other_interrupt = "Servicing hardware INT=0xfa";
        let trap = "  97: v=0e e=0007 i=0 cpl=3 IP=e033:80 pc=80 SP=e02b:84 CR2=ffffffff80123000";
        let log = [flush, mark, flush, registers, trap, other_interrupt, flush, mark, registers];
        let counts = count_between_marks(log.into_iter().map(|line| line.as_bytes().to_vec()));
        let counts: Vec<_> = counts.iter().map(|count| (count.traps, count.flushes)).collect();
        assert_eq!(counts, [(0, 1), (1, 2), (0, 0)]);
    }

    #[test]
    fn an_image_name_with_a_space_or_comma_is_refused() {
        let machine = Machine { xen: "xen".into(), guest: "my guest".into() };
        assert!(machine.command(Xpti::On, Clock::Cycles, "mode=test").is_err());
        let machine = Machine { xen: "xen".into(), guest: "/my, our/guest".into() };
        let command = machine.command(Xpti::Off, Clock::Cycles, "mode=test").unwrap();
        assert_eq!(command.get_current_dir(), Some(Path::new("/my, our")));
        let line: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        assert!(line.join(" ").contains("xpti=no"));
        assert!(line.contains(&"guest mode=test".into()));
    }
}
