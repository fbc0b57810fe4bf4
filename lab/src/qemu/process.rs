//! Starts and ends QEMU's process.

use super::{Error, console::Console, error::Tail};
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

/// The time limit for QEMU to exit after it has closed its console, and to pass on the guest's last
/// output. On a busy host it takes some seconds.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(60);

/// QEMU's process and its error output. It is killed when this is dropped.
pub(crate) struct Qemu {
    child: Child,
    complaints: Option<Console>,
}

impl Qemu {
    /// Starts QEMU, in the control group if one is given. QEMU is killed when the calling thread
    /// ends.
    pub(crate) fn start(mut command: Command, group: Option<Arc<File>>) -> Result<Qemu, Error> {
        die_with_parent(&mut command);
        if let Some(group) = group {
            start_in(&mut command, group);
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoQemu(command.get_program().into()),
            _ => Error::Start(error),
        })?;
        // The command holds copies of QEMU's ends of the socket and the pipes. They would stay open
        // after QEMU's exit.
        drop(command);
        let complaints = child.stderr.take().map(Console::new);
        Ok(Qemu { child, complaints })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its exit status, or `None` if it does not end in time.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < LAST_WORDS {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Returns an error if QEMU has ended or is about to end, and `None` if it keeps running.
    pub(crate) fn explain(&mut self, what: &str, console: &Console) -> Option<Error> {
        let status = self.exit_status()?;
        let Tail(mut said) = console.tail();
        if let Some(complaints) = &mut self.complaints {
            while complaints.next(LAST_WORDS).is_ok() {}
            said.extend(complaints.tail().0);
        }
        Some(Error::Ended { what: what.into(), status, said: Tail(said) })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the child join a control group before it runs QEMU, so that all its memory is counted
/// there.
fn start_in(command: &mut Command, group: Arc<File>) {
    let in_child = move || {
        // `0` stands for the writing process itself.
        rustix::io::write(&*group, b"0")?;
        Ok(())
    };
    // SAFETY: as in `die_with_parent`, this makes one system call and does not allocate.
    unsafe { command.pre_exec(in_child) };
}

/// Makes the kernel kill the child when the thread that starts it ends for any reason. A release
/// build aborts when it panics, and SIGKILL cannot be handled.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the call above.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed: these are two system
    // calls, and nothing allocates.
    unsafe { command.pre_exec(in_child) };
}
