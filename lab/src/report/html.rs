//! Writes the report as one page, without scripts and without external files.

use super::{
    external_figures::ExternalFigures,
    file::{BenchRun, Records},
    plot,
    rows::{FoundRow, Lookup, median, spread},
    sections::{Plot, SECTIONS, Section},
    series::{Series, series},
};
use crate::bench::record::RanOn;
use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeSet;

const STYLE: &str = include_str!("style.css");

/// Returns the page.
///
/// # Errors
/// A plot cannot be drawn.
pub(super) fn page(records: &Records, external_figures: &ExternalFigures) -> Result<String> {
    let external_step = external_figures.as_step();
    let lookup = Lookup::new(records, &external_step);
    let sections: Vec<_> = SECTIONS
        .iter()
        .map(|section| (section, lookup.rows(section)))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    let bodies = sections
        .iter()
        .map(|(section, rows)| section_markup(section, rows, records, external_figures, &lookup));
    let bodies = bodies.collect::<Result<Vec<_>>>()?;
    let machine = &records.machine;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Hotmem: every figure beside its peers" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Hotmem: every figure beside its peers" }
                    p {
                        "Memory hotplug for kernels other than Linux. Each figure was measured by the "
                        "command below its table, on one machine, in one run of the report."
                    }
                    dl {
                        dt { "machine" } dd { (machine.hardware()) }
                        dt { "programs" } dd { "hotmem " (records.version) "; " (machine.programs()) }
                        dt { "guests ran under" } dd { (accelerators(records)) }
                        dt { "measured" } dd { (records.date) ", set: " (records.set) }
                        @for run in &records.later_runs {
                            dt { "measured again" } dd { (run.date) ": " (run.steps.join(", ")) }
                        }
                        dt { "to repeat" } dd { code { "hotmem report" @if records.set.starts_with("quick") { " --quick" } } }
                    }
                    p {
                        "Figures are medians, with the least and the most of the runs in parentheses. "
                        "Some commands ran twice, at different times of the report. Then the median is the mean "
                        "of both medians, and the least and the most are those of all runs. A "
                        "ratio is the peer's figure divided by Hotmem's, or the other way round where more "
                        "is better. Above 1, Hotmem is better. The spread of a ratio comes from the least "
                        "and the most of both figures."
                    }
                    (missing(records))
                }
                nav {
                    ul {
                        @for (section, _) in &sections {
                            li { a href={ "#" (section.id) } { (section.title) } }
                        }
                    }
                }
                main { @for body in &bodies { (body) } }
                footer {
                    p { "The raw records lie beside this page: " code { "records.json" } "." }
                }
            }
        }
    };
    Ok(page.into_string())
}

/// Lists the subjects that could not be measured.
fn missing(records: &Records) -> Markup {
    html! {
        @if !records.missing.is_empty() {
            section class="missing" {
                h2 { "Not measured" }
                ul {
                    @for missing in &records.missing {
                        li { (missing.step) ", " (missing.subject) ": " (missing.reason) }
                    }
                }
            }
        }
    }
}

/// Names the accelerators of the guests.
fn accelerators(records: &Records) -> String {
    let kinds: BTreeSet<_> = records.all().map(|record| record.ran_on).collect();
    let guests: Vec<_> = kinds.iter().filter(|&&kind| kind != RanOn::Process).collect();
    match &guests[..] {
        [] => "no guests".into(),
        [RanOn::Tcg] => "TCG (no KVM works here)".into(),
        guests => guests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
    }
}

/// Returns a section: its texts, table, plots and commands.
fn section_markup<'a>(
    section: &'a Section,
    rows: &[FoundRow<'_>],
    records: &Records,
    external_figures: &ExternalFigures,
    lookup: &Lookup<'a>,
) -> Result<Markup> {
    let is_external = |name: &str| name == external_figures.subject;
    let mut peers = rows.iter().flat_map(|row| &row.peers);
    let shows_external = peers.any(|peer| is_external(peer.name));
    let plots = section.plots.iter().map(|plot| figure(plot, lookup));
    let plots = plots.collect::<Result<Vec<_>>>()?;
    let has_step = |name: &str| section.steps.iter().any(|step| step.name == name);
    let steps = records.steps.iter().filter(|bench_run| has_step(&bench_run.step));
    let not_measured: Vec<_> =
        records.missing.iter().filter(|missing| has_step(&missing.step)).collect();
    Ok(html! {
        section id=(section.id) {
            h2 { (section.title) }
            p class="question" { (section.question) }
            p { b { "Published figures. " } (section.published) }
            (table(rows))
            div class="plots" { @for plot in plots.iter().flatten() { (plot) } }
            @for missing in not_measured {
                p class="missing" { "Not measured: " (missing.subject) ": " (missing.reason) }
            }
            p { b { "Explanation. " } (section.explanation) }
            p { b { "Not measured. " } (section.not_measured) }
            @if shows_external {
                p {
                    b { (external_figures.subject) " was measured by hand" } " on " (external_figures.date) ", "
                    (external_figures.version) ", on " (external_figures.machine) ". " (external_figures.differences)
                }
                ul class="commands" { @for command in &external_figures.commands { li { code { (command) } } } }
            }
            details open {
                summary { "How it was measured" }
                ul class="commands" {
                    @for bench_run in steps {
                        li {
                            code { "hotmem " (bench_run.command) }
                            " " span class="note" { (executors(bench_run)) ", " @if bench_run.visits > 1 { (bench_run.visits) " times, " } (bench_run.seconds) " s" }
                        }
                    }
                }
            }
        }
    })
}

/// Says where the subjects of a step ran: in a process, or in guests.
fn executors(bench_run: &BenchRun) -> String {
    let kinds: BTreeSet<_> = bench_run.records.iter().map(|record| record.ran_on).collect();
    let name = |kind: &RanOn| match kind {
        RanOn::Process => "in a process".to_owned(),
        guest => format!("guests under {guest}"),
    };
    kinds.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn table(rows: &[FoundRow<'_>]) -> Markup {
    let has_limit = rows.iter().any(|row| row.limit.is_some());
    html! {
        table {
            thead {
                tr {
                    th { "what" } th { "hotmem" } th { "compared with" } th { "ratio" }
                    @if has_limit { th { "limit" } }
                }
            }
            tbody {
                @for row in rows {
                    tr {
                        th scope="row" { (row.title) }
                        td data-label="hotmem" title={ (row.hotmem.runs) " runs" } { (spread(row.hotmem)) }
                        td data-label="compared with" {
                            @for peer in &row.peers {
                                div { (peer.name) " " b { (spread(peer.record)) } }
                            }
                        }
                        td data-label="ratio" {
                            @for peer in &row.peers {
                                div { @if let Some(ratio) = peer.ratio { (ratio) } @else { "–" } }
                            }
                        }
                        @if has_limit {
                            td data-label="limit" {
                                @if let Some((limit, ratio)) = &row.limit {
                                    (median(limit)) div class="note" { (ratio) " of it" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a plot, its legend and its figures. Returns `None` if there is nothing to draw.
fn figure<'a>(plot: &'a Plot, lookup: &Lookup<'a>) -> Result<Option<Markup>> {
    let series = series(plot, lookup);
    let Some(svg) = plot::svg(plot, &series)? else { return Ok(None) };
    let markers = ["●", "▲", "✖"];
    Ok(Some(html! {
        figure {
            figcaption { (plot.title) }
            ul class="legend" {
                @for (nth, Series { name, .. }) in series.iter().enumerate() {
                    li {
                        span style={ "color:var(--s" (nth % plot::COLOURS) ")" } {
                            (markers[nth % markers.len()])
                        }
                        " " (name)
                    }
                }
            }
            (PreEscaped(svg))
            details {
                summary { "figures" }
                table class="raw" {
                    tbody {
                        @for Series { name, points } in &series {
                            @for (position, record) in points {
                                tr {
                                    th scope="row" { (name) ", " (plot.position_name(*position)) }
                                    td { (spread(record)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::{
        super::file::{Missing, tests::records},
        *,
    };

    fn example_page() -> String {
        let mut all = records(&[
            ("4G/online_movable/plug", "hotmem-64B", 0.1),
            ("16G/online_movable/plug", "hotmem-64B", 0.2),
            ("16G/online_movable/plug", "linux", 4.0),
        ]);
        let reason = "it <gave> up & left";
        all.missing.push(Missing {
            step: "nvdimm".into(),
            subject: "linux".into(),
            reason: reason.into(),
        });
        page(&all, &ExternalFigures::llfree().unwrap()).unwrap()
    }

    #[test]
    fn the_page_refers_to_no_external_files() {
        let page = example_page();
        for outside in ["http:", "https:", "//", "<script", "<link", "url(", "@import", "src="] {
            assert!(!page.contains(outside), "`{outside}` in\n{page}");
        }
        let targets = page.split("href=\"").skip(1);
        assert!(targets.clone().count() > 0 && targets.clone().all(|href| href.starts_with('#')));
        for part in ["<svg", "prefers-color-scheme: dark", "@media print", "max-width"] {
            assert!(page.contains(part), "no `{part}`");
        }
    }

    #[test]
    fn the_page_has_figures_commands_and_missing_subjects() {
        let page = example_page();
        for part in [
            "16G plugged into a guest, 64 bytes written for each frame",
            "Linux <b>4 s</b>",
            "<code>hotmem bench vm --sizes 1G</code>",
            "guests under TCG",
            "nvdimm, linux: it &lt;gave&gt; up &amp; left",
        ] {
            assert!(page.contains(part), "no `{part}` in\n{page}");
        }
        assert!(!page.contains("pseries"), "sections without figures are left out");
    }
}
