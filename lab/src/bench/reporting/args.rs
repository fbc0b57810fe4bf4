//! Defines the arguments of the bench, and makes the plans of `page_fault` from them.

use super::page_fault::{Machine, Plan};
use crate::{qemu::Accel, size};
use hotmem::{Bytes, report::ReporterSettings};
use std::{path::PathBuf, time::Duration};

/// Arguments of `hotmem bench reporting`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "page_fault,give_back")]
    pub(super) cases: Vec<Case>,
    /// The machines on which page_fault runs
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hosted,guest")]
    pub(super) machines: Vec<Machine>,
    /// The numbers of threads of page_fault. A guest has one CPU more than threads
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u16).range(1..=48))]
    pub(super) threads: Vec<u16>,
    /// How often a thread allocates and frees its 128 MiB before it rests
    #[arg(long, value_name = "R,…", value_delimiter = ',', default_value = "1,16",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: Vec<u32>,
    /// The number of timed bursts of a run, which follow one burst that is not timed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) bursts: u32,
    /// How long a thread rests between two bursts, in milliseconds. The rest must be longer than
    /// memory stays free before it is reported
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(min_rest_ms()..))]
    pub(super) rest: u32,
    /// Boots for each median of a guest
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) boots: u32,
    /// The amounts of memory that give_back frees and reports [default: 8G, or half of the host's
    /// available memory if that is less]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse)]
    pub(super) give_back: Vec<Bytes>,
    /// The number of runs for each median that is not of a guest
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// Do not count instructions
    #[arg(long)]
    pub(super) no_instructions: bool,
    /// What runs the guest's instructions when time is measured [default: KVM, if a guest boots
    /// under it within a second; otherwise TCG, which also counts instructions]
    #[arg(long, value_enum)]
    pub(super) accel: Option<Accel>,
    /// The reference guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    pub(super) guest_image: Option<PathBuf>,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Case {
    /// Memory is allocated and freed repeatedly while free memory is reported
    PageFault,
    /// All memory is freed, and then reported
    GiveBack,
}

/// Returns the shortest rest in milliseconds during which memory is reported. A reporter scans
/// once in each `min_free_time`, and reports memory that two scans have found free.
fn min_rest_ms() -> i64 {
    let ReporterSettings { wake_delay, min_free_time, .. } = ReporterSettings::default();
    i64::try_from((wake_delay + 2 * min_free_time).as_millis()).unwrap_or(i64::MAX)
}

impl Args {
    /// Returns a plan for each number of threads and each number of rounds.
    pub(super) fn plans(&self) -> impl Iterator<Item = Plan> + '_ {
        let rest_time = Duration::from_millis(self.rest.into());
        let bursts = self.bursts;
        self.threads.iter().flat_map(move |&threads| {
            self.rounds.iter().map(move |&rounds| Plan { threads, rounds, bursts, rest_time })
        })
    }
}
