//! Runs Linux on the pseries machine, for comparison. Debian's kernel adds and removes LMBs by
//! itself when it receives an event.

use super::{Config, Vm};
use crate::linux::{cpio::Archive, in_memory};
use anyhow::{Context, Result, bail};
use hotmem::Bytes;
use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

/// The directory into which `cargo xtask setup` unpacks the packages.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/linux-ppc64el");

/// The first process: brings added memory online for movable allocations, and prints the kernel's
/// messages.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
echo online_movable > /sys/devices/system/memory/auto_online_blocks
echo LINUX-READY
exec /bin/busybox cat /proc/kmsg
";

/// The kernel's messages about a request.
pub struct Said {
    /// The time from the first message to the last.
    pub seconds: f64,
    /// All messages.
    pub log: Vec<String>,
}

/// A Linux that is ready to boot.
pub struct LinuxGuest {
    kernel: PathBuf,
    /// An anonymous file, which is removed when it is closed.
    initramfs: File,
}

impl LinuxGuest {
    /// Finds the packages and makes an initramfs from them. Returns `None` if they are not
    /// installed.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn find() -> Result<Option<LinuxGuest>> {
        let root = Path::new(ROOT);
        let kernels = fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
        let kernels = kernels.map(|file| file.path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("vmlinux-") && name.ends_with("-powerpc64le")
        });
        let busybox = ["bin/busybox", "usr/bin/busybox"].map(|path| root.join(path));
        let busybox = busybox.into_iter().find(|path| path.exists());
        let (Some(kernel), Some(busybox)) = (kernels.max(), busybox) else { return Ok(None) };
        let program = fs::read(&busybox).with_context(|| busybox.display().to_string())?;
        let mut archive = Archive::default();
        for directory in ["bin", "dev", "proc", "sys"] {
            archive = archive.directory(directory);
        }
        let archive = archive.file("init", INIT.as_bytes())?.file("bin/busybox", &program)?;
        let initramfs = in_memory(&archive.finish()).context("making an initramfs")?;
        Ok(Some(LinuxGuest { kernel, initramfs }))
    }

    /// Returns a machine with 2 GiB and at most `max_memory` that boots it. It can be started for
    /// as long as `self` exists.
    #[must_use]
    pub fn config(&self, max_memory: Bytes) -> Config {
        let config = Config::new(self.kernel.clone(), max_memory);
        // QEMU opens the file by this path, and does not inherit it.
        let fd = self.initramfs.as_raw_fd();
        let initrd = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        // Messages are read by the first process, not written to the console by the kernel.
        let append = ["console=hvc0", "loglevel=1", "printk.time=1"].map(str::to_owned).into();
        Config { initrd: Some(initrd), append, boot_memory: Bytes::gib(2), ..config }
    }

    /// Starts the machine and waits until its first process runs.
    ///
    /// # Errors
    /// [`crate::qemu::Error`], also if that takes longer than the machine's patience.
    pub fn boot(&self, config: &Config) -> Result<Vm> {
        let mut vm = Vm::start(config)?;
        let ready = |line: &str| line.contains("LINUX-READY").then_some(());
        vm.wait_for_line("first process of Linux", config.patience, ready)?;
        Ok(vm)
    }

    /// Waits until the kernel has reported `what` ("hot-added") for `lmbs` LMBs.
    ///
    /// # Errors
    /// It does not report that within the limit.
    pub fn wait_for(&self, vm: &mut Vm, what: &str, lmbs: u32, limit: Duration) -> Result<Said> {
        let (mut first, mut seen, mut log) = (None, 0, Vec::new());
        let took = vm.wait_for_line(&format!("{lmbs} LMBs {what}"), limit, |line| {
            let (at, said) = message(line)?;
            if said.contains("Attempting to hot-") {
                (first, log) = (Some(at), Vec::new());
            }
            log.push(format!("[{at:.6}] {said}"));
            seen += u32::from(said.ends_with(&format!("was {what}")));
            (seen == lmbs).then(|| first.map(|first| at - first))
        });
        match took?.0 {
            Some(seconds) => Ok(Said { seconds, log }),
            None => bail!("Linux has not said when it began"),
        }
    }
}

/// Returns the time and the text of a message of `/proc/kmsg`: `<6>[ 12.345678] text`.
fn message(line: &str) -> Option<(f64, &str)> {
    let (time, text) = line.split_once('[')?.1.split_once(']')?;
    Some((time.trim().parse().ok()?, text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_and_the_text_of_a_message_are_parsed() {
        let line = "<6>[   12.345678] pseries-hotplug-mem: Memory at 40000000 was hot-added\r";
        let said = "pseries-hotplug-mem: Memory at 40000000 was hot-added";
        assert_eq!(message(line), Some((12.345_678, said)));
        assert_eq!(message("LINUX-READY"), None);
        assert_eq!(message("[x] y"), None);
    }
}
