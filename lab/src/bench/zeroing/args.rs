//! Defines the arguments of the bench.

use crate::{qemu::Accel, size};
use hotmem::Bytes;
use std::path::PathBuf;

/// Arguments of `hotmem bench zeroing`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "touch,load,guest")]
    pub(super) cases: Vec<Case>,
    /// The amount of memory that is touched, in whole pageblocks of 2 MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    pub(super) size: Bytes,
    /// The number of runs for each median of touching memory of this process
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,
    /// The size of the memory under the mixed load
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "2G")]
    pub(super) load_size: Bytes,
    /// The number of requests of the mixed load, which take 10 simulated minutes
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub(super) requests: u64,
    /// The numbers of CPUs that make the requests; one thread acts as all of them
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) cpus: Vec<u16>,
    /// The number of runs for each median of the mixed load; each run uses the next seed
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) load_runs: u32,
    /// Boots for each median of a guest
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) boots: u32,
    /// Measure times of a guest that this runs [default: count the guest's instructions, by TCG]
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
    /// Memory of this process is touched
    Touch,
    /// Mixed requests are made while free memory is reported
    Load,
    /// Memory of the reference guest is touched
    Guest,
}
