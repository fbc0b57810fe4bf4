//! The live view of `hotmem vm`, which draws a guest's memory in the terminal while the memory
//! changes.

mod state;
mod view;

use self::state::State;
use crate::{
    qemu::{Observation, Vm},
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

/// The time between two drawings.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// A thread that draws the view. Dropping this value stops the thread.
pub struct LiveView {
    shared: Arc<SharedView>,
    thread: Option<JoinHandle<()>>,
}

/// What the drawing thread shares with the command.
struct SharedView {
    state: Mutex<State>,
    step: Mutex<String>,
    must_stop: AtomicBool,
    start: Instant,
    pid: u32,
}

impl LiveView {
    /// Starts to draw the memory of `vm`. Returns `None` if standard input or standard error is not
    /// a terminal, or if the terminal does not report the position of its cursor.
    #[must_use]
    pub fn start(vm: &mut Vm) -> Option<LiveView> {
        if !io::stderr().is_terminal() || !io::stdin().is_terminal() {
            return None;
        }
        let options = TerminalOptions { viewport: Viewport::Inline(view::HEIGHT) };
        let terminal = Terminal::with_options(CrosstermBackend::new(io::stderr()), options).ok()?;
        let shared = Arc::new(SharedView {
            state: Mutex::default(),
            step: Mutex::default(),
            must_stop: AtomicBool::new(false),
            start: vm.started(),
            pid: vm.pid(),
        });
        let observer = Arc::clone(&shared);
        vm.watch(move |observation: Observation<'_>| {
            let mut state = observer.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.record(observer.start.elapsed(), &observation);
        });
        let drawer = Arc::clone(&shared);
        let thread = thread::spawn(move || drawer.draw(terminal));
        Some(LiveView { shared, thread: Some(thread) })
    }

    /// Sets the name of the current step.
    pub fn step(&self, step: &str) {
        let mut name = self.shared.step.lock().unwrap_or_else(PoisonError::into_inner);
        step.clone_into(&mut name);
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.shared.must_stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, it has printed the panic.
            let _ = thread.join();
        }
    }
}

impl SharedView {
    /// Draws at regular intervals until [`LiveView`] is dropped or the terminal fails. The last drawing
    /// stays in the terminal.
    fn draw(&self, mut terminal: Terminal<CrosstermBackend<Stderr>>) {
        loop {
            let is_last = self.must_stop.load(Relaxed);
            let state = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                // After QEMU has ended, the last size stays in the state.
                if let Some(resident) = resident(self.pid) {
                    state.resident_memory = resident;
                }
                state.clone()
            };
            let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let now = self.start.elapsed();
            let drawn = terminal.draw(|frame| view::draw(frame, &state, &step, now));
            if is_last || drawn.is_err() {
                return;
            }
            thread::sleep(DRAW_INTERVAL);
        }
    }
}
