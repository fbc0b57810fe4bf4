//! `hotmem xen`, which boots Xen with a reference kernel as its dom0. The kernel maps and unmaps
//! another domain's memory, as the program `xfm_scale` of Edwin Torok's RFC does (xen-devel,
//! February 2026).

mod machine;
mod xpti;

pub use crate::qemu::{Figure, Race};
pub use machine::{Clock, Interrupts, Machine, Outcome};
pub use xpti::Xpti;

use crate::{
    out, progress, size,
    table::{figures, table},
};
use anyhow::{Result, bail};
use hotmem::{Bytes, geometry::FRAME_SIZE};
use serde::Serialize;
use std::path::PathBuf;

/// The largest size that the guest can map.
pub const MAX_SIZE: Bytes = Bytes::mib(64);

/// Arguments of `hotmem xen`.
#[derive(clap::Args)]
pub struct Args {
    /// Whether Xen's page-table isolation (XPTI) is on
    #[arg(long, value_enum, default_value = "on")]
    xpti: Xpti,
    /// The number of pages that a hypercall maps or unmaps
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=512))]
    batch: u16,
    /// The size of the other domain's memory, at most 64M
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    size: Bytes,
    /// The number of times that the memory is mapped and unmapped
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
    /// Print JSON (docs/command.md)
    #[arg(long)]
    json: bool,
}

/// The cost of an operation, for JSON.
#[derive(Serialize)]
struct JsonFigure<'a> {
    case: &'a str,
    subject: &'a str,
    pages: u64,
    instructions_per_page: f64,
    hypercalls: u64,
    flushes: u64,
}

impl<'a> From<&'a Figure> for JsonFigure<'a> {
    fn from(figure: &'a Figure) -> JsonFigure<'a> {
        JsonFigure {
            case: &figure.case,
            subject: &figure.subject,
            pages: figure.entries,
            instructions_per_page: figure.per_entry(),
            hypercalls: figure.hypercalls,
            flushes: figure.flushes,
        }
    }
}

/// Boots Xen, in which the guest maps and unmaps memory, and prints the cost.
///
/// # Errors
/// Xen is not installed, or the guest fails.
pub fn run(args: &Args) -> Result<()> {
    if args.size > MAX_SIZE || args.size < Bytes::mib(2) {
        bail!("--size {}: the guest can map 2MiB to {MAX_SIZE}", args.size);
    }
    let machine = Machine::find(args.guest_image.as_deref())?;
    let progress = progress::spinner();
    let pages = args.size.0 / FRAME_SIZE;
    let options = format!("mode=foreign pages={pages} batch={} runs={}", args.batch, args.runs);
    let outcome = machine.boot(args.xpti, Clock::Instructions, &options)?;
    progress.finish_and_clear();
    if args.json {
        let figures: Vec<_> = outcome.figures.iter().map(JsonFigure::from).collect();
        return out::write_json(&serde_json::json!({ "figures": figures }));
    }
    let mut table =
        table(&["case", "subject", "pages", "instr. a page", "hypercalls", "flushes"], 2);
    for figure in &outcome.figures {
        table.add_row([
            figure.case.clone(),
            figure.subject.clone(),
            figure.entries.to_string(),
            figures(figure.per_entry()),
            figure.hypercalls.to_string(),
            figure.flushes.to_string(),
        ]);
    }
    say!("{table}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_each_key_of_a_figure() {
        let figure = Figure {
            case: "xen-munmap".into(),
            subject: "hotmem".into(),
            batch: 32,
            entries: 512,
            cycles: 1024,
            in_xen: 0,
            hypercalls: 16,
            flushes: 1,
        };
        let json = serde_json::to_value(JsonFigure::from(&figure)).unwrap();
        assert_eq!(json["instructions_per_page"], 2.0);
        let document = include_str!("../../../docs/command.md");
        for key in json.as_object().unwrap().keys() {
            assert!(document.contains(&format!("`{key}`")), "{key}");
        }
    }
}
