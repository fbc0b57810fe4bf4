//! `hotmem bench`: runs measurements, prints a table, and writes the figures as JSON.

mod callgrind;
mod compare;
pub(crate) mod contiguity;
pub(crate) mod cxl;
pub(crate) mod dimms;
pub(crate) mod dlpar;
mod failures;
pub(crate) mod fragmentation;
pub mod frames;
pub(crate) mod heap;
mod measure;
pub(crate) mod memmap;
mod nvdimm;
mod packing;
pub(crate) mod ports;
mod random;
pub mod record;
pub(crate) mod reporting;
mod results;
#[cfg(feature = "report")]
pub(crate) mod section;
mod subject;
pub(crate) mod tails;
pub(crate) mod teardown;
mod valgrind;
pub(crate) mod vm;
pub(crate) mod zeroing;

use anyhow::Result;

/// The benches.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure plugging and unplugging memory in a guest under QEMU
    Vm(vm::Args),
    /// Measure queries whether a zone is contiguous, while memory is added and removed, and scans
    /// of the zone
    Contiguity(contiguity::Args),
    /// Measure writing the page descriptors of a device, and compare with the speed of the memory
    Memmap(memmap::Args),
    /// Measure binding persistent memory in a guest under QEMU, which includes writing its
    /// descriptors
    Nvdimm(nvdimm::Args),
    /// Measure making the memory of CXL devices RAM, and device memory again, in a guest under QEMU
    Cxl(cxl::Args),
    /// Measure the insertion of DIMMs and their removal, in a guest under QEMU
    Dimms(dimms::Args),
    /// Measure adding and removing the LMBs of a pseries partition
    Dlpar(dlpar::Args),
    /// Measure allocating and freeing frames in this process, and compare with other allocators
    Frames(frames::Args),
    /// Measure how much of the free memory stays in whole pageblocks, and compare with another
    /// allocator
    Fragmentation(fragmentation::Args),
    /// Measure the slowest allocations and frees while memory is added and removed, and the longest
    /// call of the control path
    Tails(tails::Args),
    /// Measure allocating small objects on a kernel's heap, and compare with other heaps
    Heap(heap::Args),
    /// Measure unmapping and tearing down page tables, on this processor and under Xen
    Teardown(teardown::Args),
    /// Measure reporting free memory to the host: bit by bit while memory is in use, and all of it at
    /// once
    Reporting(reporting::Args),
    /// Measure one case of `reporting` in a separate process
    #[command(hide = true)]
    ReportingCase(reporting::CaseArgs),
    /// Measure memory that must be zero and that the host has already zeroed
    Zeroing(zeroing::Args),
    /// Count the guests that fit on one host, if each uses its memory for a while and then frees it
    Packing(packing::Args),
    /// Measure the ports of Hotmem to other kernels, while the host changes the size of their memory
    Ports(ports::Args),
    /// Write the descriptors of a device once, in a separate process
    #[command(hide = true)]
    MemmapCase(memmap::CaseArgs),
    /// Measure one case of `frames` in a separate process
    #[command(hide = true)]
    FramesCase(frames::CaseArgs),
}

/// Runs a bench: measures, prints the table, and writes the JSON if a file is given.
///
/// # Errors
/// The first error of the bench.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Vm(args) => vm::run(args),
        Command::Contiguity(args) => contiguity::run(args),
        Command::Memmap(args) => memmap::run(args),
        Command::Nvdimm(args) => nvdimm::run(args),
        Command::Cxl(args) => cxl::run(args),
        Command::Dimms(args) => dimms::run(args),
        Command::Dlpar(args) => dlpar::run(args),
        Command::Frames(args) => frames::run(args),
        Command::Fragmentation(args) => fragmentation::run(args),
        Command::Tails(args) => tails::run(args),
        Command::Heap(args) => heap::run(args),
        Command::Teardown(args) => teardown::run(args),
        Command::Reporting(args) => reporting::run(args),
        Command::ReportingCase(args) => reporting::run_case(args),
        Command::Zeroing(args) => zeroing::run(args),
        Command::Packing(args) => packing::run(args),
        Command::Ports(args) => ports::run(args),
        Command::MemmapCase(args) => memmap::run_case(args),
        Command::FramesCase(args) => frames::run_case(args),
    }
}

/// Returns whether instructions can be counted: valgrind is installed.
#[must_use]
pub fn can_count_instructions() -> bool {
    callgrind::is_installed()
}

/// Returns the names of the ports that `bench ports` cannot measure, because their kernels were not
/// built.
#[must_use]
pub fn unbuilt_ports() -> Vec<String> {
    ports::unbuilt()
}

/// Parses the arguments that follow `hotmem bench`, and runs nothing.
///
/// # Errors
/// The error that `hotmem` would print.
pub fn check(line: &str) -> Result<(), clap::Error> {
    let command = <Command as clap::Subcommand>::augment_subcommands(clap::Command::new("bench"));
    command.no_binary_name(true).try_get_matches_from(line.split_whitespace()).map(|_| ())
}

/// Parses a bench's arguments, for tests.
#[cfg(test)]
fn parsed<A: clap::Args>(line: &[impl AsRef<str>]) -> A {
    let command = A::augment_args(clap::Command::new("bench").no_binary_name(true));
    let matches = command.try_get_matches_from(line.iter().map(AsRef::as_ref));
    matches.and_then(|matches| A::from_arg_matches(&matches)).expect("a test passes valid options")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCHMARKS: &str = include_str!("../../../docs/benchmarks.md");
    const FINDINGS: [&str; 3] = [
        include_str!("../../../docs/findings/allocators.md"),
        include_str!("../../../docs/findings/linux-mm.md"),
        include_str!("../../../docs/findings/xen-devel.md"),
    ];

    /// This checks only that the options are accepted.
    #[test]
    fn the_bench_commands_in_the_documents_parse() {
        let rows = BENCHMARKS.lines();
        let command = |row: &'static str| row.strip_suffix("` |")?.rsplit_once("| `");
        let rows = rows.filter_map(command).map(|(_, command)| command);
        let lines = FINDINGS.iter().flat_map(|text| text.lines());
        let lines = lines.filter_map(|line| Some(line.split_once("hotmem -- bench ")?.1));
        let commands: Vec<_> = rows.chain(lines).collect();
        assert!(commands.len() > 30, "{commands:?}");
        for command in commands {
            check(command).unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }
}
