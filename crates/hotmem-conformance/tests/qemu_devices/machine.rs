//! A machine of QEMU with one device on virtio-mmio: an adapter for a device in another process.

use hotmem_conformance::{GuestMemory, Host, Inaccessible, Registers, SCRATCH_BYTES, Unsupported};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// The registers of the devices on virtio-mmio of the machine `microvm`.
const FIRST_REGISTERS: u64 = 0xfeb0_0000;
const REGISTERS_BYTES: u64 = 512;
const MAX_DEVICES: u64 = 8;
const MAGIC: u64 = 0x7472_6976;
const DEVICE_ID: u64 = 8;

const RAM_BYTES: u64 = 64 << 20;
/// RAM that neither firmware nor a kernel uses.
const SCRATCH: u64 = 16 << 20;

/// QEMU as a child process, which ends with this value.
pub(crate) struct Machine {
    qemu: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    qmp: BufReader<UnixStream>,
    socket: PathBuf,
    registers: u64,
    /// Whether QEMU has raised an interrupt line since the host has looked.
    has_interrupted: bool,
}

impl Machine {
    /// Starts QEMU with the options of one device.
    pub(crate) fn start(devices: &[&str]) -> Machine {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hotmem-conformance-{}-{number}", process::id());
        let socket = env::temp_dir().join(name);
        let listener = UnixListener::bind(&socket).expect("the socket can be made");
        let mut qemu = Command::new("qemu-system-x86_64")
            // With one interrupt controller, all lines of devices lead to it.
            .args([
                "-machine",
                "microvm,ioapic2=off",
                "-m",
                "64M",
                "-nodefaults",
                "-display",
                "none",
            ])
            .args(["-accel", "tcg", "-S", "-qtest", "stdio", "-qtest-log", "none"])
            .args(["-global", "virtio-mmio.force-legacy=false"])
            .arg("-qmp")
            .arg(format!("unix:{}", socket.display()))
            .args(devices)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("QEMU is installed");
        let commands = qemu.stdin.take().expect("stdin is a pipe");
        let answers = BufReader::new(qemu.stdout.take().expect("stdout is a pipe"));
        let qmp = BufReader::new(listener.accept().expect("QEMU connects").0);
        let (registers, has_interrupted) = (0, false);
        let mut machine =
            Machine { qemu, commands, answers, qmp, socket, registers, has_interrupted };
        machine.execute("\"qmp_capabilities\"");
        machine.ask("irq_intercept_in ioapic");
        machine.registers = machine.find_registers();
        machine
    }

    /// Returns the address of the registers of the only device.
    fn find_registers(&mut self) -> u64 {
        let addrs = (0..MAX_DEVICES).map(|number| FIRST_REGISTERS + REGISTERS_BYTES * number);
        let mut has_device = |addr: &u64| {
            self.read_number('l', *addr) == MAGIC && self.read_number('l', *addr + DEVICE_ID) != 0
        };
        addrs.into_iter().find(|addr| has_device(addr)).expect("there is a device")
    }

    /// Sends a command of qtest, and returns what follows the word OK. QEMU tells of interrupt lines
    /// before it answers.
    fn ask(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").expect("QEMU runs");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("QEMU runs");
        while answer.starts_with("IRQ ") {
            self.has_interrupted |= answer.starts_with("IRQ raise");
            answer.clear();
            self.answers.read_line(&mut answer).expect("QEMU runs");
        }
        let value = answer.strip_prefix("OK").unwrap_or_else(|| panic!("{command}: {answer}"));
        value.trim().trim_start_matches("0x").to_owned()
    }

    /// Reads a number whose width has this name in qtest: `w` for 2 bytes, `l` for 4.
    fn read_number(&mut self, width: char, addr: u64) -> u64 {
        let number = self.ask(&format!("read{width} {addr:#x}"));
        u64::from_str_radix(&number, 16).expect("qtest writes hexadecimal numbers")
    }

    /// Executes a command of QMP, given as the rest of a JSON object.
    fn execute(&mut self, command: &str) {
        writeln!(self.qmp.get_mut(), "{{\"execute\":{command}}}").expect("QEMU runs");
        let mut line = String::new();
        // Events and the greeting come before the answer.
        while !line.contains("\"return\"") {
            line.clear();
            self.qmp.read_line(&mut line).expect("QEMU runs");
            assert!(!line.is_empty() && !line.contains("\"error\""), "{command}: {line}");
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Nothing can be done if QEMU has ended already, or the socket is gone.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

/// QEMU handles a notification before it answers qtest, so that nothing must be run.
impl Registers for Machine {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        let width = if data.len() == 2 { 'w' } else { 'l' };
        let value = self.read_number(width, self.registers + offset).to_le_bytes();
        data.copy_from_slice(&value[..data.len()]);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let value = u32::from_le_bytes(data.try_into().expect("a register has 4 bytes"));
        self.ask(&format!("writel {:#x} {value:#x}", self.registers + offset));
    }
}

impl GuestMemory for Machine {
    fn ram(&self) -> Range<u64> {
        SCRATCH..SCRATCH + SCRATCH_BYTES
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        let text = self.ask(&format!("read {addr:#x} {}", data.len()));
        for (byte, digits) in data.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = str::from_utf8(digits).expect("qtest writes ASCII");
            *byte = u8::from_str_radix(digits, 16).expect("qtest writes hexadecimal numbers");
        }
        Ok(())
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        let digits: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
        self.ask(&format!("write {addr:#x} {} 0x{digits}", data.len()));
        Ok(())
    }
}

impl Host for Machine {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        self.execute(&format!(
            "\"qom-set\",\"arguments\":{{\"path\":\"/machine/peripheral/vmem0\",\
             \"property\":\"requested-size\",\"value\":{bytes}}}"
        ));
        Ok(())
    }

    fn take_interrupt(&mut self) -> Result<bool, Unsupported> {
        // Lets QEMU tell of what has happened since its last answer.
        self.read_number('l', self.registers);
        Ok(std::mem::take(&mut self.has_interrupted))
    }

    fn node(&mut self) -> Result<u16, Unsupported> {
        Ok(0)
    }

    fn set_balloon_pages(&mut self, pages: u32) -> Result<(), Unsupported> {
        let bytes = RAM_BYTES - 4096 * u64::from(pages);
        self.execute(&format!("\"balloon\",\"arguments\":{{\"value\":{bytes}}}"));
        Ok(())
    }
}
