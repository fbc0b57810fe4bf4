//! The start of a machine, and QEMU's arguments that are the same for all machines.

use super::commands::CommandSocket;
use hotmem::Bytes;
use std::{fs::File, io::PipeWriter, path::Path, process::Command, sync::Arc, time::Duration};

/// What is needed to start a machine.
pub struct Launch {
    /// QEMU's command with all arguments. Its standard streams are set when it starts.
    pub command: Command,
    /// The memory that the host must have available.
    pub host_memory: Bytes,
    /// The time limit of a wait for an event. After it, the guest counts as hung.
    pub patience: Duration,
    /// QEMU's exit status after the guest's verdict PASS.
    pub pass_status: i32,
    /// Whether the first line may be incomplete, because a migrated guest has printed the start of it
    /// on the source machine.
    pub is_line_cut: bool,
    /// The file `cgroup.procs` of the cgroup in which QEMU runs, open for writing.
    pub cgroup: Option<Arc<File>>,
    /// The socket by which the guest takes commands, if it does.
    pub commands: Option<CommandSocket>,
    /// Where QEMU writes its log, which is its standard error. Without it, errors quote the last lines.
    pub log: Option<PipeWriter>,
}

impl Launch {
    /// Returns the start of a machine by this command, which ends with status 0.
    #[must_use]
    pub fn new(command: Command, patience: Duration) -> Launch {
        let host_memory = Bytes::ZERO;
        let (pass_status, is_line_cut, cgroup, commands, log) = (0, false, None, None, None);
        Launch { command, host_memory, patience, pass_status, is_line_cut, cgroup, commands, log }
    }
}

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
