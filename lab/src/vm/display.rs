//! Shows the progress of `hotmem vm`, or records it.

use super::Args;
use crate::qemu::Vm;
#[cfg(feature = "live")]
use crate::{live::LiveView, progress};
use anyhow::Result;
use indicatif::ProgressBar;

/// The display of the run's progress.
pub(super) enum Display {
    /// The live view of the memory.
    #[cfg(feature = "live")]
    Live(LiveView),
    /// A spinner with the name of the current step, which is drawn only in a terminal.
    Plain(ProgressBar),
}

impl Display {
    #[cfg_attr(not(feature = "live"), expect(unused_variables, reason = "there is no view"))]
    pub(super) fn start(args: &Args, progress: ProgressBar, vm: &mut Vm) -> Display {
        #[cfg(feature = "live")]
        if args.record.is_some() {
            return Display::Live(LiveView::record(vm));
        }
        #[cfg(feature = "live")]
        if !args.plain && !args.json {
            // The view draws in the spinner's line, so the spinner must end first.
            progress.finish_and_clear();
            return match LiveView::start(vm) {
                Some(live) => Display::Live(live),
                None => Display::Plain(progress::spinner()),
            };
        }
        Display::Plain(progress)
    }

    pub(super) fn set_message(&self, step: impl Into<String>) {
        match self {
            #[cfg(feature = "live")]
            Display::Live(live) => live.step(&step.into()),
            Display::Plain(progress) => progress.set_message(step.into()),
        }
    }

    /// Ends the display, and writes the recording if there is one.
    #[cfg_attr(not(feature = "live"), expect(unused_variables, reason = "there is no view"))]
    pub(super) fn finish(self, args: &Args) -> Result<()> {
        match self {
            #[cfg(feature = "live")]
            Display::Live(live) => {
                let recording = live.finish();
                if let Some(path) = &args.record {
                    std::fs::write(path, recording.to_string())?;
                }
            }
            Display::Plain(progress) => progress.finish_and_clear(),
        }
        Ok(())
    }
}
