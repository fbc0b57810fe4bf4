//! Chooses the QEMU that runs a machine: the installed QEMU, or a QEMU that was unpacked into a
//! directory.

use std::{
    env,
    ffi::OsStr,
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

/// An architecture of machines that QEMU emulates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, clap::ValueEnum)]
pub enum Architecture {
    /// A PC
    #[default]
    #[value(name = "x86")]
    X86_64,
    /// QEMU's machine `virt` for aarch64
    Aarch64,
    /// QEMU's machine `virt` for riscv64, which has no virtio-mem device
    Riscv64,
}

impl Architecture {
    /// Returns the name of QEMU's program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Architecture::X86_64 => "qemu-system-x86_64",
            Architecture::Aarch64 => "qemu-system-aarch64",
            Architecture::Riscv64 => "qemu-system-riscv64",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Architecture::X86_64 => "x86",
            Architecture::Aarch64 => "aarch64",
            Architecture::Riscv64 => "riscv64",
        })
    }
}

/// The environment variable that names the directory of an [`Emulator::Unpacked`].
const VARIABLE: &str = "HOTMEM_QEMU";
/// The directory into which `cargo xtask setup` unpacks Debian's backport of a newer QEMU.
const BACKPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/qemu10");
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The directories in which Debian's packages keep firmware and option ROMs.
const FIRMWARE: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// An installation of QEMU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Emulator {
    /// The installed QEMU.
    #[default]
    Installed,
    /// A QEMU whose Debian packages were unpacked into this directory. Libraries and firmware that
    /// are missing there are loaded from the installed system.
    Unpacked(PathBuf),
}

impl Emulator {
    /// Returns the QEMU in the directory that the environment variable `HOTMEM_QEMU` names, or the
    /// installed QEMU if the variable is not set.
    #[must_use]
    pub fn from_env() -> Emulator {
        let dir = env::var_os(VARIABLE).filter(|dir| !dir.is_empty());
        dir.map_or(Emulator::Installed, |dir| Emulator::Unpacked(dir.into()))
    }

    /// Returns the backport if `cargo xtask setup` has unpacked it.
    #[must_use]
    pub fn backport() -> Option<Emulator> {
        let dir = Path::new(BACKPORT);
        dir.join("usr/bin")
            .join(Architecture::X86_64.program())
            .is_file()
            .then(|| Emulator::Unpacked(dir.into()))
    }

    /// Returns a QEMU that has CXL devices with volatile memory: that of the environment variable, or the
    /// backport. Debian's QEMU 7.2 has none.
    #[must_use]
    pub fn with_cxl() -> Option<Emulator> {
        match Emulator::from_env() {
            Emulator::Installed => Emulator::backport(),
            unpacked => Some(unpacked),
        }
    }

    /// Returns a command that runs QEMU for this architecture and has the search paths of its libraries
    /// and firmware.
    pub(super) fn command(&self, architecture: Architecture) -> Command {
        let program = architecture.program();
        let Emulator::Unpacked(dir) = self else { return Command::new(program) };
        let mut command = Command::new(dir.join("usr/bin").join(program));
        let libraries = dir.join(LIBRARIES);
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command.env("LD_LIBRARY_PATH", search_path(&libraries, env::var_os("LD_LIBRARY_PATH")));
        for firmware in FIRMWARE {
            command.arg("-L").arg(dir.join(firmware));
        }
        command
    }
}

/// Returns the search path of `first` and then the directories in `rest`.
fn search_path(first: &Path, rest: Option<impl AsRef<OsStr>>) -> std::ffi::OsString {
    let mut path = first.as_os_str().to_owned();
    if let Some(rest) = rest {
        path.push(":");
        path.push(rest);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpacked_qemu_searches_its_own_directories_first() {
        let command = Emulator::Unpacked("/unpacked".into()).command(Architecture::X86_64);
        assert_eq!(command.get_program(), "/unpacked/usr/bin/qemu-system-x86_64");
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args[..2], ["-L", "/unpacked/usr/share/qemu"]);
        assert_eq!(args.len(), 2 * FIRMWARE.len());
        assert_eq!(search_path("/a".as_ref(), Some("/b:/c")), "/a:/b:/c");
        assert_eq!(search_path("/a".as_ref(), None::<&str>), "/a");
    }
}
