//! `hotmem bench`: measurements, as a table for people and as JSON for what reads it.

mod compare;
mod contiguity;
mod dlpar;
mod frames;
mod heap;
mod memmap;
mod nvdimm;
mod packing;
pub mod record;
mod reporting;
mod subject;
mod teardown;
mod vm;

use anyhow::Result;

/// What can be measured.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Plugging and unplugging memory in a guest under QEMU
    Vm(vm::Args),
    /// Asking a zone whether it is contiguous while memory comes and goes, and scanning it
    Contiguity(contiguity::Args),
    /// Writing the page descriptors of a device, beside what the memory allows
    Memmap(memmap::Args),
    /// Binding persistent memory in a guest under QEMU, descriptors and all
    Nvdimm(nvdimm::Args),
    /// Adding and removing the LMBs of a pseries partition
    Dlpar(dlpar::Args),
    /// Allocating and freeing frames in this process, beside other allocators
    Frames(frames::Args),
    /// Small objects on a kernel's heap, beside other heaps
    Heap(heap::Args),
    /// Taking page tables down, on this processor and under Xen
    Teardown(teardown::Args),
    /// Giving free memory back to the host while it is used, and all of it at once
    Reporting(reporting::Args),
    /// One case of `reporting`, in a process of its own
    #[command(hide = true)]
    ReportingCase(reporting::CaseArgs),
    /// Guests on one host, each using its memory for a while and giving it back
    Packing(packing::Args),
    /// One case of `frames`, in a process of its own
    #[command(hide = true)]
    FramesCase(frames::CaseArgs),
}

/// Measures, prints the table, writes the JSON.
///
/// # Errors
/// The first thing that went wrong, as a sentence.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Vm(args) => vm::run(args),
        Command::Contiguity(args) => contiguity::run(args),
        Command::Memmap(args) => memmap::run(args),
        Command::Nvdimm(args) => nvdimm::run(args),
        Command::Dlpar(args) => dlpar::run(args),
        Command::Frames(args) => frames::run(args),
        Command::Heap(args) => heap::run(args),
        Command::Teardown(args) => teardown::run(args),
        Command::Reporting(args) => reporting::run(args),
        Command::ReportingCase(args) => reporting::run_case(args),
        Command::Packing(args) => packing::run(args),
        Command::FramesCase(args) => frames::run_case(args),
    }
}

/// Options as they are typed, for tests.
#[cfg(test)]
fn parsed<A: clap::Args>(line: &[impl AsRef<str>]) -> A {
    let command = A::augment_args(clap::Command::new("bench").no_binary_name(true));
    let matches = command.try_get_matches_from(line.iter().map(AsRef::as_ref));
    matches.and_then(|matches| A::from_arg_matches(&matches)).expect("options")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const BENCHMARKS: &str = include_str!("../../../docs/benchmarks.md");
    const README: &str = include_str!("../../../README.md");

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        _command: Command,
    }

    /// Whether they do what the row says, only a run shows.
    #[test]
    fn the_commands_in_the_benchmarks_are_understood() {
        let rows = BENCHMARKS.lines();
        let command = |row: &'static str| row.strip_suffix("` |")?.rsplit_once("| `");
        let commands: Vec<_> = rows.filter_map(command).map(|(_, command)| command).collect();
        assert!(commands.len() > 30, "{commands:?}");
        for command in commands {
            let line = ["bench"].into_iter().chain(command.split_whitespace());
            if let Err(error) = Line::try_parse_from(line) {
                panic!("{command}: {error}");
            }
        }
    }

    #[test]
    fn the_figures_in_the_readme_are_those_of_the_benchmarks() {
        let (_, table) =
            README.split_once("| what | hotmem | beside it |\n|---|---|---|\n").unwrap();
        let rows: Vec<_> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert!(rows.len() > 5, "{rows:?}");
        for row in rows {
            let figures: Vec<_> = row.trim_matches('|').split('|').skip(1).map(str::trim).collect();
            let has_all = |line: &str| figures.iter().all(|figure| line.contains(figure));
            assert!(BENCHMARKS.lines().any(has_all), "docs/benchmarks.md has no such row: {row}");
        }
    }
}
