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

/// The longest that QEMU takes to end when it has closed its console, or to pass on what was said
/// before: on a busy host some seconds.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(60);

/// QEMU's process and what it has to complain about. Dropped, it is killed.
pub(crate) struct Qemu {
    child: Child,
    complaints: Option<Console>,
}

impl Qemu {
    /// Runs it, in a control group if there is one. It is killed when the calling thread ends.
    pub(crate) fn start(mut command: Command, group: Option<Arc<File>>) -> Result<Qemu, Error> {
        die_with_parent(&mut command);
        if let Some(group) = group {
            start_in(&mut command, group);
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoQemu(command.get_program().into()),
            _ => Error::Start(error),
        })?;
        // The command holds copies of QEMU's ends, which would stay open after its death.
        drop(command);
        let complaints = child.stderr.take().map(Console::new);
        Ok(Qemu { child, complaints })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` if it does not.
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

    /// Returns the error for a QEMU that has ended, or is about to; `None` if it lives on.
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
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the child join a control group before it runs QEMU, so that all it uses counts there.
fn start_in(command: &mut Command, group: Arc<File>) {
    let in_child = move || {
        // The writer itself.
        rustix::io::write(&*group, b"0")?;
        Ok(())
    };
    // SAFETY: as below: one system call, and nothing allocates.
    unsafe { command.pre_exec(in_child) };
}

/// Has the kernel kill the child when the thread that starts it ends, however that comes about:
/// a release build aborts when it panics, and nobody can act on SIGKILL.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed: these are two system
    // calls, and nothing allocates.
    unsafe { command.pre_exec(in_child) };
}
