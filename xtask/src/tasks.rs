//! The tasks: their names, arguments, explanations and usual times.

use crate::{
    alloc_free_instructions, api, check, demo, embed, figures, header, lines, lint, ports, setup,
    stack,
    steps::Steps,
    test, text_size,
    times::{RecordedTimes, rounded},
};
use clap::{
    CommandFactory, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::{ffi::OsString, io, process::ExitCode, time::Instant};

/// Tasks of the workspace. A time is the usual time on this machine, or, if the task has not run here, the
/// time on another machine with two CPUs.
#[derive(clap::Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_version_flag = true)]
pub(crate) enum Task {
    /// Formats what has changed since origin/main, runs clippy and its unit tests
    Check {
        /// A package or its directory, such as `hotmem-virtio`
        package: Option<String>,
    },
    /// Runs every test that a change must pass; the last lines name the skipped steps
    Test,
    /// Checks formatting, clippy, documentation, packages, the oldest supported Rust versions,
    /// cycles of files, and the list of the engine's public interface
    Lint,
    /// Runs longer model checks and random tests, all QEMU tests on two versions of QEMU, the tests
    /// of each package without the repository, fuzzing, and all tests on a busy host and on one CPU
    Deep,
    /// Runs all tests three times on a busy host and once on one CPU, which is the last part of `deep`
    Busy,
    /// Installs targets, QEMU, Xen, valgrind and Linux, below `target/` where possible
    Setup,
    /// Boots the reference guest, plugs 64 GiB into it and unplugs them
    Demo,
    /// Builds the reference guest for each architecture into target/images
    Guest,
    /// Boots the kernels of docs/embedding.md and prints their sizes
    Embed,
    /// Builds another kernel with Hotmem, boots it, and plugs and unplugs memory
    Ports {
        /// The kernel; `build` builds all of them, for `hotmem bench ports`
        #[arg(value_parser = ["arceos", "tgoskits", "ostd", "c-kernel", "build"])]
        port: String,
    },
    /// Writes the tables of docs/benchmarks.md and README.md from docs/records.json
    Figures {
        #[command(subcommand)]
        first: Option<BeforeFigures>,
    },
    /// Writes docs/api.txt, the list of the engine's public interface
    Api,
    /// Writes crates/hotmem-c/include/hotmem.h, the C interface
    Header,
    /// Prints how many KiB Hotmem adds to the image of a kernel in C
    Text,
    /// Counts the instructions that an allocation and a free of one frame execute, in C and in Rust,
    /// and those of runs, beside other allocators
    Pair,
    /// Checks that no function takes more than 4 KiB of stack, or 8 KiB in a debug build
    Stack,
    /// Prints the lines of code of each package: not blank, no comment, not in a module of tests
    Lines {
        /// A directory, each of whose entries is counted
        directory: Option<String>,
    },
}

/// What `cargo xtask figures` does first.
#[derive(clap::Subcommand)]
pub(crate) enum BeforeFigures {
    /// Measures, and replaces the records
    Take {
        /// The benches that are measured; the other records stay
        #[arg(value_name = "NAME,…")]
        benches: Option<String>,
    },
}

/// The CPU time of each task after earlier runs, where it was measured; of `test`, which waits for
/// machines, the time on two CPUs.
const USUAL_TIMES: [(&str, &str); 7] = [
    ("check", "20 s"),
    ("test", "13 min"),
    ("lint", "3 min"),
    ("setup", "1 s"),
    ("api", "1 s"),
    ("header", "1 s"),
    ("lines", "1 s"),
];

/// Returns the time of a task in [`USUAL_TIMES`].
fn usual_time(task: &str) -> Option<String> {
    USUAL_TIMES.iter().find(|(name, _)| *name == task).map(|&(_, time)| time.to_owned())
}

/// Parses the arguments of `cargo xtask`, and runs the task.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut times = RecordedTimes::of_this_machine();
    let matches = match command(&times).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    let name = format!("cargo xtask {}", matches.subcommand_name().unwrap_or_default());
    let start = Instant::now();
    let code = match Task::from_arg_matches(&matches) {
        Ok(task) => task.run(),
        Err(error) => return refuse(&error),
    };
    if code == ExitCode::SUCCESS {
        times = RecordedTimes::of_this_machine();
        times.record(&name, start.elapsed().as_secs_f64());
    }
    code
}

/// Returns the parser, whose help names the usual time of each task.
fn command(times: &RecordedTimes) -> clap::Command {
    Task::command().arg_required_else_help(true).mut_subcommands(|task| {
        let here = times.median(&format!("cargo xtask {}", task.get_name())).map(rounded);
        let usual = here.or_else(|| usual_time(task.get_name()));
        let usual = usual.map(|time| format!(" ({time})")).unwrap_or_default();
        let about = task.get_about().map(ToString::to_string).unwrap_or_default();
        task.about(about + &usual)
    })
}

/// Prints help, or why the arguments are refused.
fn refuse(error: &clap::Error) -> ExitCode {
    match unknown_task(error) {
        Some(message) => eprintln!("{message}; `cargo xtask help` lists the tasks"),
        // Standard output and standard error may be closed.
        None => _ = error.print(),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Returns the message about a task that does not exist, with the task that was probably meant.
fn unknown_task(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let text = |kind| match error.get(kind)? {
        ContextValue::String(name) => Some(name.clone()),
        // The last suggestion is the most similar one.
        ContextValue::Strings(names) => names.last().cloned(),
        _ => None,
    };
    let meant = text(ContextKind::SuggestedSubcommand);
    let meant = meant.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    Some(format!("no task `{}`{meant}", text(ContextKind::InvalidSubcommand)?))
}

impl Task {
    fn run(self) -> ExitCode {
        match self {
            Task::Check { package } => check::run(package.as_deref()),
            Task::Test => test::run(),
            Task::Lint => lint::run(),
            Task::Deep => test::run_deep(),
            Task::Busy => test::run_busy(),
            Task::Setup => setup::run(),
            Task::Demo => demo::run(),
            Task::Guest => guest_images(),
            Task::Embed => embed::run(),
            Task::Ports { port } => ports::run(&port),
            Task::Figures { first: None } => figures::write(),
            Task::Figures { first: Some(BeforeFigures::Take { benches }) } => {
                figures::measure(benches.as_deref())
            }
            Task::Api => report(api::LIST, api::write()),
            Task::Header => report(header::HEADER, header::write()),
            Task::Text => text_size::run(),
            Task::Pair => alloc_free_instructions::run(),
            Task::Stack => stack::run(),
            Task::Lines { directory } => report("lines of code", lines::run(directory.as_deref())),
        }
    }
}

/// Builds the images of the reference guest.
fn guest_images() -> ExitCode {
    let mut steps = Steps::default();
    steps.run_group("guest");
    steps.conclude()
}

/// Prints the error of a task, and what it is about.
fn report(what: &str, outcome: io::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{what}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::root;

    fn parse(line: &str) -> Result<(), clap::Error> {
        let times = RecordedTimes::read(root().join("target/no-such-file"));
        let args = ["cargo xtask"].into_iter().chain(line.split_whitespace());
        command(&times).try_get_matches_from(args).map(|_| ())
    }

    #[test]
    fn an_unknown_task_is_refused_with_the_task_that_was_meant() {
        let message = |line| unknown_task(&parse(line).unwrap_err()).unwrap();
        assert_eq!(message("tset"), "no task `tset`; did you mean `test`?");
        assert_eq!(message("xyzzy"), "no task `xyzzy`");
    }

    #[test]
    fn unknown_arguments_are_refused() {
        for line in ["", "setup now", "ports", "ports no", "ports arceos again", "test --fast"] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in ["figures", "figures take", "figures take frames,tails", "check hotmem"] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn a_task_with_help_is_not_run() {
        for line in ["help", "--help", "ports arceos --help", "test -h"] {
            assert_eq!(parse(line).unwrap_err().kind(), ErrorKind::DisplayHelp, "{line}");
        }
    }

    /// CONTRIBUTING.md and the help have the same tasks, explanations and times.
    #[test]
    fn the_table_of_contributing_lists_all_tasks() {
        let contributing = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        let command = Task::command();
        let tasks: Vec<_> = command.get_subcommands().collect();
        for (name, _) in USUAL_TIMES {
            assert!(tasks.iter().any(|task| task.get_name() == name), "no task {name}");
        }
        for task in tasks {
            let name = task.get_name();
            let usual = usual_time(name).unwrap_or_default();
            let row = contributing.lines().find(|line| {
                line.starts_with(&format!("| `cargo xtask {name}`"))
                    || line.starts_with(&format!("| `cargo xtask {name} "))
            });
            let row = row.unwrap_or_else(|| panic!("no row of {name}"));
            let about = task.get_about().unwrap().to_string();
            let mut about = about.chars();
            let about = about.next().unwrap().to_lowercase().collect::<String>() + about.as_str();
            let expected = format!("| {about} | {usual} |").replace("|  |", "| |");
            assert!(row.contains(&expected), "{row}\n{expected}");
        }
    }
}
