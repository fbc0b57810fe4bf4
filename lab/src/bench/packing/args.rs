//! Defines the arguments of the bench.

use crate::{
    guest::{AccelAndImage, Guest},
    qemu::Architecture,
    size,
};
use hotmem::Bytes;
use std::path::PathBuf;

/// Arguments of `hotmem bench packing`.
#[derive(clap::Args)]
pub struct Args {
    /// The machine of the guests
    #[arg(long, value_enum, default_value_t)]
    pub(super) arch: Architecture,
    /// The memory of the host, which is the limit of a memory cgroup. If this process may not make
    /// a cgroup, the bench compares the resident memory of all guests with the limit
    #[arg(long, value_name = "SIZE", default_value = "15G", value_parser = size::parse)]
    pub(super) host: Bytes,
    /// The memory of a guest
    #[arg(long, value_name = "SIZE", default_value = "5G", value_parser = size::parse)]
    pub(super) guest: Bytes,
    /// The amount of memory that guests write to, from the least to the most: `4G..5G`
    #[arg(long, value_name = "SIZE..SIZE", default_value = "4G..5G", value_parser = parse_size_range)]
    pub(super) touch: (Bytes, Bytes),
    /// The kinds of guests to pack, one after the other; hotmem is packed with and without reports
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem-64B,linux,hotmem")]
    pub(super) guests: Vec<Guest>,
    /// The maximal number of guests
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_guests: u32,
    /// The time limit for a guest to give its memory back
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: u32,
    #[command(flatten)]
    pub(super) accel_and_image: AccelAndImage,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

impl Args {
    /// Returns the name of the case: the size of the host and of a guest.
    pub(super) fn case(&self, has_cgroup: bool) -> String {
        let simulated = if has_cgroup { "" } else { "-simulated" };
        format!("{}{simulated}/{}", size::short(self.host), size::short(self.guest))
    }
}

/// Parses two sizes separated by `..`, or one size.
fn parse_size_range(text: &str) -> Result<(Bytes, Bytes), String> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let (least, most) = (size::parse(least)?, size::parse(most)?);
    if least > most || least == Bytes::ZERO {
        return Err(format!("{text} must be a range from the least to the most, such as 4G..5G"));
    }
    Ok((least, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parsed;

    #[test]
    fn a_range_is_one_size_or_two_ascending_sizes() {
        let gib = |n| Bytes::gib(n);
        assert_eq!(parse_size_range("4G..5G"), Ok((gib(4), gib(5))));
        assert_eq!(parse_size_range("4G"), Ok((gib(4), gib(4))));
        for text in ["5G..4G", "..5G", "4G..", "0..1G", ""] {
            assert!(parse_size_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_name_of_a_case_says_whether_the_host_is_simulated() {
        let args: Args = parsed(&["--host", "6G", "--guest", "2G"]);
        assert_eq!(args.case(true), "6G/2G");
        assert_eq!(args.case(false), "6G-simulated/2G");
    }
}
