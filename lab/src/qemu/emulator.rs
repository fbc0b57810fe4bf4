//! Chooses the QEMU that runs a machine: the installed one, or one that was unpacked without being
//! installed.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

/// QEMU's program.
pub(super) const PROGRAM: &str = "qemu-system-x86_64";
/// The environment variable with the directory of an [`Emulator::Unpacked`], for machines whose
/// configuration names no QEMU.
const VARIABLE: &str = "HOTMEM_QEMU";
/// The directory into which `cargo xtask setup` unpacks Debian's backport of a newer QEMU.
const BACKPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/qemu10");
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The directories in which Debian's packages keep firmware and option ROMs.
const FIRMWARE: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// An executable QEMU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Emulator {
    /// The installed QEMU.
    #[default]
    Installed,
    /// A QEMU whose Debian packages were unpacked below this directory. Dependencies that are
    /// missing there are taken from the installed system.
    Unpacked(PathBuf),
}

impl Emulator {
    /// Returns the QEMU below the directory that the environment variable `HOTMEM_QEMU` names, or
    /// the installed one if it is not set.
    #[must_use]
    pub fn from_env() -> Emulator {
        let dir = env::var_os(VARIABLE).filter(|dir| !dir.is_empty());
        dir.map_or(Emulator::Installed, |dir| Emulator::Unpacked(dir.into()))
    }

    /// Returns the backport that `cargo xtask setup` unpacks, if it is there.
    #[must_use]
    pub fn backport() -> Option<Emulator> {
        let dir = Path::new(BACKPORT);
        dir.join("usr/bin").join(PROGRAM).is_file().then(|| Emulator::Unpacked(dir.into()))
    }

    /// Returns a command that runs the program with the search paths of its files.
    pub(super) fn command(&self) -> Command {
        let Emulator::Unpacked(dir) = self else { return Command::new(PROGRAM) };
        let mut command = Command::new(dir.join("usr/bin").join(PROGRAM));
        let libraries = dir.join(LIBRARIES);
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command.env("LD_LIBRARY_PATH", search_path(&libraries, env::var_os("LD_LIBRARY_PATH")));
        for firmware in FIRMWARE {
            command.arg("-L").arg(dir.join(firmware));
        }
        command
    }
}

/// Returns a search path that begins with `first`.
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
    fn an_unpacked_qemu_finds_its_own_firmware_first() {
        let command = Emulator::Unpacked("/unpacked".into()).command();
        assert_eq!(command.get_program(), "/unpacked/usr/bin/qemu-system-x86_64");
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args[..2], ["-L", "/unpacked/usr/share/qemu"]);
        assert_eq!(args.len(), 2 * FIRMWARE.len());
        assert_eq!(search_path("/a".as_ref(), Some("/b:/c")), "/a:/b:/c");
        assert_eq!(search_path("/a".as_ref(), None::<&str>), "/a");
    }
}
