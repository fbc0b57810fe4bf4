//! A view of a guest's memory in the terminal, while it changes.

mod state;
mod view;

use self::state::State;
use crate::{
    qemu::{Seen, Vm},
    resident::resident,
};
use ratatui::{Terminal, TerminalOptions, Viewport, backend::CrosstermBackend};
use std::{
    io::{self, IsTerminal, Stderr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time between two frames of the drawing.
const EVERY: Duration = Duration::from_millis(100);

/// A thread that draws until this is dropped.
pub struct Live {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    step: Mutex<String>,
    stop: AtomicBool,
    started: Instant,
    pid: u32,
}

impl Live {
    /// Starts to draw the memory of `vm`. Returns `None` if standard error is no terminal, or one
    /// that does not report its cursor's position.
    #[must_use]
    pub fn start(vm: &mut Vm) -> Option<Live> {
        if !io::stderr().is_terminal() || !io::stdin().is_terminal() {
            return None;
        }
        let options = TerminalOptions { viewport: Viewport::Inline(view::HEIGHT) };
        let terminal = Terminal::with_options(CrosstermBackend::new(io::stderr()), options).ok()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            step: Mutex::default(),
            stop: AtomicBool::new(false),
            started: vm.started(),
            pid: vm.pid(),
        });
        let seer = Arc::clone(&shared);
        vm.watch(move |seen: Seen<'_>| {
            let mut state = seer.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.see(seer.started.elapsed(), &seen);
        });
        let drawer = Arc::clone(&shared);
        let thread = thread::spawn(move || drawer.draw(terminal));
        Some(Live { shared, thread: Some(thread) })
    }

    /// Sets the name of the current step.
    pub fn step(&self, step: &str) {
        let mut named = self.shared.step.lock().unwrap_or_else(PoisonError::into_inner);
        step.clone_into(&mut named);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, it has printed the panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Draws at regular intervals and leaves the last drawing. It stops if the terminal fails.
    fn draw(&self, mut terminal: Terminal<CrosstermBackend<Stderr>>) {
        loop {
            let is_last = self.stop.load(Relaxed);
            let state = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                // After the process has ended, its last figure stays.
                if let Some(resident) = resident(self.pid) {
                    state.resident = resident;
                }
                state.clone()
            };
            let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let now = self.started.elapsed();
            let drawn = terminal.draw(|frame| view::draw(frame, &state, &step, now));
            if is_last || drawn.is_err() {
                return;
            }
            thread::sleep(EVERY);
        }
    }
}
