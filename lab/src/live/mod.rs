//! The live view of `hotmem vm`, which draws a guest's memory in the terminal while the memory
//! changes.

mod recording;
mod state;
mod view;

pub use self::recording::Recording;
use self::state::State;
use crate::{
    qemu::{Observation, Vm},
    resident::resident,
};
use ratatui::{
    Terminal, TerminalOptions, Viewport,
    backend::{CrosstermBackend, TestBackend},
};
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
/// The number of columns of a recording.
const RECORDED_COLUMNS: u16 = 78;

/// A thread that draws the view. Dropping this value stops the thread.
pub struct LiveView {
    shared: Arc<SharedView>,
    thread: Option<JoinHandle<Recording>>,
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
    /// Starts to draw the memory of `vm` in the terminal. Returns `None` if standard input or standard
    /// error is not a terminal, or if the terminal does not report the position of its cursor.
    #[must_use]
    pub fn start(vm: &mut Vm) -> Option<LiveView> {
        if !io::stderr().is_terminal() || !io::stdin().is_terminal() {
            return None;
        }
        let options = TerminalOptions { viewport: Viewport::Inline(view::HEIGHT) };
        let terminal = Terminal::with_options(CrosstermBackend::new(io::stderr()), options).ok()?;
        Some(LiveView::start_thread(vm, move |shared| {
            shared.draw_in(terminal);
            Recording::default()
        }))
    }

    /// Starts to record the memory of `vm`, without a terminal.
    #[must_use]
    pub fn record(vm: &mut Vm) -> LiveView {
        LiveView::start_thread(vm, SharedView::record)
    }

    fn start_thread(
        vm: &mut Vm,
        draw: impl FnOnce(&SharedView) -> Recording + Send + 'static,
    ) -> LiveView {
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
        let thread = thread::spawn(move || draw(&drawer));
        LiveView { shared, thread: Some(thread) }
    }

    /// Stops to draw. Returns the recording, which is empty if the view was drawn in the terminal.
    #[must_use]
    pub fn finish(mut self) -> Recording {
        self.shared.must_stop.store(true, Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
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
    /// Draws until [`LiveView`] is dropped or the terminal fails. The last drawing stays in the
    /// terminal.
    fn draw_in(&self, mut terminal: Terminal<CrosstermBackend<Stderr>>) {
        self.at_intervals(|state, step, now| {
            terminal.draw(|frame| view::draw(frame, state, step, now)).is_ok()
        });
    }

    /// Records until [`LiveView`] is dropped.
    fn record(&self) -> Recording {
        let mut recording = Recording::default();
        let Ok(mut terminal) = Terminal::new(TestBackend::new(RECORDED_COLUMNS, view::HEIGHT));
        self.at_intervals(|state, step, now| {
            let Ok(drawing) = terminal.draw(|frame| view::draw(frame, state, step, now));
            recording.add(now, drawing.buffer);
            true
        });
        recording
    }

    /// Calls `draw` at regular intervals with the state, the step and the time since QEMU's start, until
    /// [`LiveView`] is dropped or `draw` returns false.
    fn at_intervals(&self, mut draw: impl FnMut(&State, &str, Duration) -> bool) {
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
            if !draw(&state, &step, self.start.elapsed()) || is_last {
                return;
            }
            thread::sleep(DRAW_INTERVAL);
        }
    }
}
