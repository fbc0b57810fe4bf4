//! Arguments that the command lines of all machines have in common.

use std::{path::Path, process::Command};

/// The options of a machine's boot. Its monitor is QEMU's standard input and must be a socket; its
/// console is QEMU's standard output and must be a pipe.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: Option<&'a Path>,
    /// The kernel's command line, word by word.
    pub(crate) append: &'a [String],
}

impl Boot<'_> {
    /// Adds the options, and disables default devices.
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
        // A pipe buffers 65536 single-byte writes, a socket only about 270 before it drops some.
        command.args([
            "-chardev",
            "file,id=console,path=/dev/stdout",
            "-serial",
            "chardev:console",
        ]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    }
}
