//! Writes the tables of docs/benchmarks.md and README.md from records that are checked in.
//!
//! A table stands between two comments. Writing replaces it. The check fails if a table differs from
//! the one that the records give.

use super::{
    external_figures::ExternalFigures,
    file::{Records, write_atomically},
    plan::is_count,
    rows::{FoundRow, Lookup, median, spread},
    scaling::Scaling,
    sections::SECTIONS,
};
use anyhow::{Context, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The records that the documents show.
pub(super) const RECORDS: &str = "docs/records.json";
const BENCHMARKS: &str = "docs/benchmarks.md";
const README: &str = "README.md";

/// Whether to write or to check the documents' tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum DocsAction {
    /// Write the tables
    Write,
    /// Fail if a table differs from the one that the records give
    Check,
}

impl DocsAction {
    pub(super) fn run(self, root: &Path) -> Result<()> {
        let records = Records::read(&root.join(RECORDS))?;
        let external_figures = ExternalFigures::llfree()?;
        let scaling = Scaling::read()?;
        for (name, tables) in tables(&records, &external_figures, &scaling) {
            let path = root.join(name);
            let old = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let new = replace_tables(&old, &tables).with_context(|| name.to_owned())?;
            match self {
                DocsAction::Write if new != old => {
                    write_atomically(&path, new.as_bytes())
                        .with_context(|| path.display().to_string())?;
                }
                DocsAction::Check if new != old => {
                    let line = old.lines().zip(new.lines()).position(|(old, new)| old != new);
                    let line = line.unwrap_or(old.lines().count().min(new.lines().count())) + 1;
                    bail!(
                        "{name}:{line}: differs from {RECORDS}; `cargo xtask figures` writes the tables"
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the root directory of this command's workspace.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// A table's name in the comments around it, and its lines.
type Table = (String, String);

/// Returns the tables of each document.
fn tables(
    records: &Records,
    external_figures: &ExternalFigures,
    scaling: &Scaling,
) -> [(&'static str, Vec<Table>); 2] {
    let external_step = external_figures.as_step();
    let lookup = Lookup::new(records, &external_step);
    let rows = SECTIONS.iter().map(|section| (section, lookup.rows(section)));
    let rows: Vec<_> = rows.filter(|(_, rows)| !rows.is_empty()).collect();
    let machine = &records.machine;
    let mut taken = format!(
        "Taken on {} on {}; {}.\n",
        day(&records.date),
        machine.hardware(),
        machine.programs()
    );
    for run in &records.later_runs {
        let (day, steps) = (day(&run.date), run.steps.join(", "));
        taken += &if run.steps.iter().all(|step| is_count(step)) {
            format!("Instructions counted again on {day}: {steps}.\n")
        } else {
            format!("Measured again on {day}, on a machine like this: {steps}.\n")
        };
    }
    let sections = rows.iter().map(|(section, rows)| {
        let mut text = format!("## {}\n\n{}\n\n", section.title, wrapped(section.explanation));
        text += "| what | hotmem | compared with | ratio | command |\n|---|---|---|---|---|\n";
        text.extend(rows.iter().map(benchmarks_row));
        text + "\n"
    });
    let missing: String = records
        .missing
        .iter()
        .map(|missing| format!("Not measured: {}, {}.\n", missing.step, missing.subject))
        .collect();
    let benchmarks = sections.collect::<String>();
    let headlines = rows.iter().flat_map(|(_, rows)| rows).filter(|row| row.is_headline);
    let mut headline_table = "| what | hotmem | compared with |\n|---|---|---|\n".to_owned();
    headline_table.extend(headlines.map(readme_row));
    [
        (
            BENCHMARKS,
            vec![
                ("taken".into(), wrapped(&(taken.clone() + &missing)) + "\n"),
                ("figures".into(), benchmarks.trim_end().to_owned() + "\n"),
                ("scaling".into(), scaling.table()),
            ],
        ),
        (README, vec![("headline".into(), headline_table)]),
    ]
}

/// Returns the day of a time such as `2026-11-23 12:00 UTC`.
fn day(time: &str) -> &str {
    time.split(' ').next().unwrap_or_default()
}

fn benchmarks_row(row: &FoundRow<'_>) -> String {
    let peers: Vec<_> =
        row.peers.iter().map(|peer| format!("{}: {}", peer.name, spread(peer.record))).collect();
    let limit = row.limit.as_ref().map(|(limit, _)| format!("limit: {}", median(limit)));
    let compared: Vec<_> = peers.into_iter().chain(limit).collect();
    let ratios = row.peers.iter().filter_map(|peer| peer.ratio).map(|ratio| ratio.to_string());
    let ratios: Vec<_> = ratios.collect();
    format!(
        "| {} | {} | {} | {} | `{}` |\n",
        row.title,
        spread(row.hotmem),
        compared.join("; "),
        ratios.join("; "),
        row.command.trim_start_matches("bench ")
    )
}

fn readme_row(row: &FoundRow<'_>) -> String {
    let peers: Vec<_> =
        row.peers.iter().map(|peer| format!("{}: {}", peer.name, spread(peer.record))).collect();
    format!("| {} | {} | {} |\n", row.title, spread(row.hotmem), peers.join("; "))
}

/// Breaks a paragraph into lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > 100 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// Replaces the text between the comments of each table.
fn replace_tables(text: &str, tables: &[Table]) -> Result<String> {
    let mut text = text.to_owned();
    for (name, table) in tables {
        let begin = format!("<!-- {name}: written by `cargo xtask figures` -->\n");
        let end = format!("<!-- end of {name} -->");
        let from = text.find(&begin).with_context(|| format!("no line `{}`", begin.trim()))?;
        let from = from + begin.len();
        let to = text[from..].find(&end).with_context(|| format!("no line `{end}`"))? + from;
        text.replace_range(from..to, &format!("\n{table}\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{
        super::file::tests::{Scratch, records},
        *,
    };

    #[test]
    fn the_documents_have_the_tables_of_the_records() {
        DocsAction::Check.run(&root()).unwrap();
    }

    /// Makes a directory with documents whose tables are old, and with records.
    fn documents(name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        fs::create_dir(scratch.0.join("docs")).unwrap();
        let old_table = |name: &str| {
            format!(
                "<!-- {name}: written by `cargo xtask figures` -->\nold\n<!-- end of {name} -->\n"
            )
        };
        let tables: String = ["taken", "figures", "scaling"].map(old_table).join("text\n");
        let benchmarks = format!("# Title\n\n{tables}");
        fs::write(scratch.0.join(BENCHMARKS), benchmarks).unwrap();
        fs::write(scratch.0.join(README), old_table("headline") + "more\n").unwrap();
        let mut all = records(&[
            ("64G/online_movable/plug", "hotmem-64B", 0.187),
            ("64G/online_movable/plug", "linux", 4.73),
            ("16G/online_movable/plug", "hotmem-64B", 0.05),
        ]);
        all.steps[0].step = "vm".into();
        all.write(&scratch.0.join(RECORDS)).unwrap();
        scratch
    }

    #[test]
    fn tables_are_written_between_their_comments() {
        let scratch = documents("docs");
        assert!(DocsAction::Check.run(&scratch.0).is_err());
        DocsAction::Write.run(&scratch.0).unwrap();
        DocsAction::Check.run(&scratch.0).unwrap();
        let readme = fs::read_to_string(scratch.0.join(README)).unwrap();
        let title = "64G plugged into a guest, 64 bytes written for each frame";
        let row = format!("| {title} | 187 ms | Linux: 4.73 s |\n");
        assert!(readme.contains(&row) && readme.ends_with("more\n"), "{readme}");
        assert!(!readme.contains("16G") && !readme.contains("old"), "{readme}");
        let benchmarks = fs::read_to_string(scratch.0.join(BENCHMARKS)).unwrap();
        let row = "| 187 ms | Linux: 4.73 s | 25.3 | `vm --sizes 1G` |\n";
        assert!(benchmarks.contains(row) && benchmarks.contains("text"), "{benchmarks}");
    }

    #[test]
    fn the_check_fails_if_a_figure_was_changed_by_hand() {
        let scratch = documents("hand");
        DocsAction::Write.run(&scratch.0).unwrap();
        // Checks the documents after a change to one file, and undoes the change.
        let error_after_change = |name: &str, old: &str, new: &str| {
            let path = scratch.0.join(name);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(old), "{text}");
            fs::write(&path, text.replacen(old, new, 1)).unwrap();
            let error = DocsAction::Check.run(&scratch.0).unwrap_err().to_string();
            fs::write(path, text).unwrap();
            error
        };
        let error = error_after_change(README, "187 ms", "87 ms");
        assert!(error.contains("README.md:5: differs from docs/records.json"), "{error}");
        let error = error_after_change(RECORDS, "0.187", "0.087");
        assert!(error.contains("records.json: damaged"), "{error}");
    }

    #[test]
    fn paragraphs_are_wrapped_at_100_characters() {
        let text = wrapped(&"word ".repeat(50));
        assert!(text.lines().all(|line| line.len() <= 100) && text.lines().count() == 3, "{text}");
    }
}
