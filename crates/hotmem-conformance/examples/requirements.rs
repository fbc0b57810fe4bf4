//! Writes `docs/device-requirements.md`: what each point checks, and the requirements without a point.
//!
//! `cargo run -p hotmem-conformance --example requirements > docs/device-requirements.md`

use hotmem_conformance::{BALLOON_POINTS, MEMORY_POINTS, Point};
use std::fmt::Write;

const TITLE: &str = "# What `hotmem-conformance` requires of a device

Each point of the suite, as its source lists it: the section of VIRTIO 1.3, who requires it, and what a device
that passes does. `MUST` is the specification's word. A `convention` is what drivers rely on although no MUST
demands it. If PCI requires a point in another section than virtio-mmio, both are given.

[vmm.md](vmm.md) describes how to run the suite. Besides its own statement, each point checks
[what every point checks](vmm.md#what-every-point-checks). This page is written by
`cargo run -p hotmem-conformance --example requirements`, and a test compares it.
";

/// A section, what a device MUST do, and why no point checks it.
type Unchecked = (&'static str, &'static str, &'static str);

const UNCHECKED_OF_MEMORY: &[Unchecked] = &[
    (
        "5.15.4.2",
        "set `region_size` to 0 or greater",
        "every value is; a region without a whole block fails every point",
    ),
    (
        "5.15.4.2",
        "not shrink `usable_region_size` otherwise than by UNPLUG ALL or a system reset",
        "the last step of every point compares it",
    ),
    (
        "5.15.6.2",
        "give the memory the properties of comparable RAM, and keep those of plugged blocks",
        "a property is that of a processor's access, which the suite does not make",
    ),
    (
        "5.15.6.2",
        "with `PERSISTENT_SUSPEND`, keep the state of blocks over a suspension",
        "the suite cannot suspend a machine, and does not accept the feature",
    ),
    (
        "5.15.6.3.2, 5.15.6.4.2, 5.15.6.5.2",
        "ignore the padding of PLUG, UNPLUG and UNPLUG ALL",
        "only `mem/state/padding-ignored` does so, because a request that is refused for another reason \
         cannot be told apart",
    ),
    (
        "5.15.6.3.2 to 5.15.6.6.2",
        "ignore what a request has behind the data of its type",
        "the requests of the suite have the data of the longest type, and nothing behind",
    ),
    (
        "5.15.6.6.2",
        "reject STATE of no block, from the middle of a block on, and behind the usable region",
        "only `mem/state/below-region` exists yet",
    ),
];

const UNCHECKED_OF_BALLOON: &[Unchecked] = &[
    (
        "5.5.6.3.2",
        "accept statistics in any order",
        "`balloon/stats/unknown-tag` sends one order; the VMM must show values to compare more",
    ),
    (
        "5.5.6.5.2",
        "not reuse a command ID before it has received the ID STOP",
        "the suite starts one round of hints in each point",
    ),
    (
        "5.5.6.5.2",
        "not modify hinted pages after the ID DONE, and report DONE when it needs them no longer",
        "a round ends with a migration, which the suite cannot start",
    ),
    (
        "5.5.3.2, 5.5.6.1, 5.5.6.3.3",
        "serve drivers of the legacy interface",
        "the suite is a driver of version 1",
    ),
];

fn main() {
    print!("{}", page());
}

fn page() -> String {
    let mut page = TITLE.to_owned();
    for (device, points, unchecked) in [
        ("Memory device (5.15)", MEMORY_POINTS, UNCHECKED_OF_MEMORY),
        ("Balloon (5.5)", BALLOON_POINTS, UNCHECKED_OF_BALLOON),
    ] {
        write_points(&mut page, device, points);
        write_unchecked(&mut page, unchecked);
    }
    page
}

fn write_points(page: &mut String, device: &str, points: &[Point]) {
    let count = points.len();
    let _ = write!(page, "\n## {device}: {count} points\n\n");
    page.push_str(
        "| point | section | who requires it | what the device does |\n|---|---|---|---|\n",
    );
    for point in points {
        let Point { name, section, requirement, statement, .. } = point;
        let pci = point.over_pci();
        let mut by = requirement.to_string();
        let mut at = (*section).to_owned();
        if pci.section != *section {
            let _ = write!(at, "; PCI: {}", pci.section);
        }
        if pci.requirement != *requirement {
            let _ = write!(by, "; PCI: {}", pci.requirement);
        }
        let _ = writeln!(page, "| `{name}` | {at} | {by} | {statement} |");
    }
}

fn write_unchecked(page: &mut String, unchecked: &[Unchecked]) {
    page.push_str("\nWhat a device MUST do and no point of its own checks:\n\n");
    page.push_str("| section | the device MUST | why there is no point |\n|---|---|---|\n");
    for (section, must, why) in unchecked {
        let _ = writeln!(page, "| {section} | {must} | {why} |");
    }
}

#[test]
fn the_document_has_what_the_points_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/device-requirements.md");
    let document = std::fs::read_to_string(path).unwrap();
    assert!(document == page(), "docs/device-requirements.md is not what this example writes");
}
