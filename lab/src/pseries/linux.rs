//! Boots Debian's Linux on the pseries machine as a peer of the reference guest. This kernel adds
//! and removes LMBs when it receives an event, without a program in user mode.

use super::{Config, Vm};
use crate::anonymous_file::anonymous_file;
use crate::linux::cpio::Archive;
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

/// The first process of Linux. It makes the kernel bring added memory online for movable
/// allocations, and prints the kernel's messages.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
echo online_movable > /sys/devices/system/memory/auto_online_blocks
echo LINUX-READY
exec /bin/busybox cat /proc/kmsg
";

/// The kernel's messages about a request.
pub struct KernelLog {
    /// The time from the first message to the last message.
    pub seconds: f64,
    /// The messages.
    pub lines: Vec<String>,
}

/// The images of a Linux that can be booted.
pub struct LinuxGuest {
    kernel: PathBuf,
    /// An anonymous file, which is removed when it is closed.
    initramfs: File,
}

impl LinuxGuest {
    /// Finds the unpacked packages and makes an initramfs from them. Returns `None` if the packages
    /// are not unpacked.
    ///
    /// # Errors
    /// A file of the packages cannot be read.
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
        let initramfs = anonymous_file(&archive.finish()).context("making an initramfs")?;
        Ok(Some(LinuxGuest { kernel, initramfs }))
    }

    /// Returns a machine with 2 GiB of boot memory that boots Linux. The machine can be started
    /// only while `self` exists.
    #[must_use]
    pub fn config(&self, max_memory: Bytes) -> Config {
        let config = Config::new(self.kernel.clone(), max_memory);
        // QEMU opens the anonymous file by this path, because it does not inherit the descriptor.
        let fd = self.initramfs.as_raw_fd();
        let initrd = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        // With `loglevel=1` the kernel writes no messages to the console, so that only the first
        // process prints them.
        let append = ["console=hvc0", "loglevel=1", "printk.time=1"].map(str::to_owned).into();
        Config { initrd: Some(initrd), append, boot_memory: Bytes::gib(2), ..config }
    }

    /// Starts the machine and waits until its first process runs.
    ///
    /// # Errors
    /// [`crate::qemu::Error`]. The time limit is `config.patience`.
    pub fn boot(&self, config: &Config) -> Result<Vm> {
        let mut vm = Vm::start(config)?;
        let ready = |line: &str| line.contains("LINUX-READY").then_some(());
        vm.wait_for_line("first process of Linux", config.patience, ready)?;
        Ok(vm)
    }

    /// Waits until the kernel has printed `change` ("hot-added" or "hot-removed") for `lmbs` LMBs.
    ///
    /// # Errors
    /// The kernel has not printed these messages within the limit.
    pub fn wait_for(
        &self,
        vm: &mut Vm,
        change: &str,
        lmbs: u32,
        limit: Duration,
    ) -> Result<KernelLog> {
        let (mut first, mut count, mut lines) = (None, 0, Vec::new());
        let seconds = vm.wait_for_line(&format!("{lmbs} LMBs {change}"), limit, |line| {
            let (time, text) = parse_message(line)?;
            if text.contains("Attempting to hot-") {
                (first, lines) = (Some(time), Vec::new());
            }
            lines.push(format!("[{time:.6}] {text}"));
            count += u32::from(text.ends_with(&format!("was {change}")));
            (count == lmbs).then(|| first.map(|first| time - first))
        });
        match seconds?.0 {
            Some(seconds) => Ok(KernelLog { seconds, lines }),
            None => bail!("Linux has printed no message at the start of the request"),
        }
    }
}

/// Returns the time and the text of a message of `/proc/kmsg`: `<6>[ 12.345678] text`.
fn parse_message(line: &str) -> Option<(f64, &str)> {
    let (time, text) = line.split_once('[')?.1.split_once(']')?;
    Some((time.trim().parse().ok()?, text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_and_the_text_of_a_message_are_parsed() {
        let line = "<6>[   12.345678] pseries-hotplug-mem: Memory at 40000000 was hot-added\r";
        let text = "pseries-hotplug-mem: Memory at 40000000 was hot-added";
        assert_eq!(parse_message(line), Some((12.345_678, text)));
        assert_eq!(parse_message("LINUX-READY"), None);
        assert_eq!(parse_message("[x] y"), None);
    }
}
