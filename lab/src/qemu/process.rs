//! Starts and ends QEMU's process.

use super::{Error, console::Console, error::Tail};
use hotmem_time_limit::scaled;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Returns the time limit for QEMU to write the guest's last output and to exit.
pub(super) fn exit_limit() -> Duration {
    scaled(Duration::from_secs(60))
}

/// QEMU's process and its standard error. Dropping this value kills the process.
pub(crate) struct Qemu {
    child: Child,
    standard_error: Option<Console>,
}

impl Qemu {
    /// Starts QEMU, in the cgroup if one is given. QEMU is killed when the calling thread
    /// ends.
    pub(crate) fn start(mut command: Command, cgroup: Option<Arc<File>>) -> Result<Qemu, Error> {
        die_with_parent(&mut command);
        if let Some(cgroup) = cgroup {
            join_cgroup(&mut command, cgroup);
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoQemu(command.get_program().into()),
            _ => Error::Start(error),
        })?;
        // The command holds copies of QEMU's ends of the socket and the pipes. They would stay open
        // after QEMU's exit.
        drop(command);
        let standard_error = child.stderr.take().map(Console::new);
        Ok(Qemu { child, standard_error })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until QEMU ends, and returns its exit status. Returns `None` if QEMU does not end
    /// within [`exit_limit`].
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < exit_limit() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Returns the error that QEMU ended before the event `awaited`, or `None` if QEMU does not end
    /// within [`exit_limit`].
    pub(crate) fn exit_error(&mut self, awaited: &str, console: &Console) -> Option<Error> {
        let status = self.exit_status()?;
        let Tail(mut output) = console.tail();
        if let Some(standard_error) = &mut self.standard_error {
            while standard_error.next(exit_limit()).is_ok() {}
            output.extend(standard_error.tail().0);
        }
        Some(Error::Ended { awaited: awaited.into(), status, output: Tail(output) })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the child join a cgroup before the child runs QEMU, so that the cgroup counts all
/// memory of QEMU.
fn join_cgroup(command: &mut Command, cgroup: Arc<File>) {
    let in_child = move || {
        // `0` means the process that writes it.
        rustix::io::write(&*cgroup, b"0")?;
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes one
    // system call and allocates nothing.
    unsafe { command.pre_exec(in_child) };
}

/// Makes the kernel kill the child when the thread that starts the child ends, also if this process
/// is killed or aborts, so that no destructor runs.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the call above.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes two
    // system calls and allocates nothing.
    unsafe { command.pre_exec(in_child) };
}
