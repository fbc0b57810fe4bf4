//! QEMU's arguments that are the same for all machines.

use std::{path::Path, process::Command};

/// The options of a machine's boot. Its monitor is QEMU's standard input and must be a socket; its
/// console is QEMU's standard output and must be a pipe.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: Option<&'a Path>,
    /// The words of the kernel's command line.
    pub(crate) append: &'a [String],
}

impl Boot<'_> {
    /// Adds the options to a command, and disables QEMU's default devices.
    pub(crate) fn add_to(&self, command: &mut Command) {
        command.arg("-kernel").arg(self.kernel);
        if let Some(initrd) = self.initrd {
            command.arg("-initrd").arg(initrd);
        }
        command.args(["-append", &self.append.join(" ")]);
        command.args(["-display", "none"]);
        command.args([
            "-chardev",
            "socket,id=monitor,fd=0",
            "-mon",
            "chardev=monitor,mode=control",
        ]);
        // The console is a pipe, because a pipe buffers 65536 single-byte writes. A socket drops
        // bytes after about 270 of them.
        command.args([
            "-chardev",
            "file,id=console,path=/dev/stdout",
            "-serial",
            "chardev:console",
        ]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    }
}
