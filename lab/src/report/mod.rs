//! `hotmem report`: runs the benches of Hotmem and its peers, and writes a page with plots and a
//! file of records.

mod axes;
mod compare;
mod docs;
mod external_figures;
mod file;
mod html;
mod machine;
mod plan;
mod plot;
mod rows;
mod run;
mod scaling;
mod sections;
mod series;

use self::{
    docs::DocsAction,
    external_figures::ExternalFigures,
    file::{Records, fnv, write_atomically},
    machine::Machine,
    run::{PARTIAL_RECORDS_FILE, PartialFile},
    sections::{SECTIONS, Section, Step},
};
use anyhow::{Context, Result, bail};
use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

/// Arguments of `hotmem report`.
#[derive(clap::Args)]
pub struct Args {
    /// Run a smaller set of benches, in under 5 minutes
    #[arg(long)]
    quick: bool,
    /// Measure and show only these sections or benches
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure the benches of `--only` again, and take all other figures from these records, which
    /// must be of this machine if a bench of `--only` measures times
    #[arg(long, value_name = "FILE", requires = "only")]
    replace_in: Option<PathBuf>,
    /// The directory for report.html and records.json. An interrupted run continues from its
    /// records there
    #[arg(long, value_name = "DIR", default_value = "target/report")]
    out: PathBuf,
    /// Measure nothing, and write the report of these records
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Measure nothing, and show which figures improved or worsened beyond the spread since these
    /// records of this machine
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Write or check the tables of docs/benchmarks.md and README.md, from docs/records.json
    #[arg(long, value_enum, hide = true, exclusive = true)]
    docs: Option<DocsAction>,
}

/// The name of a complete file of records.
const RECORDS_FILE: &str = "records.json";

/// Runs the benches that have no records yet, and writes the report.
///
/// # Errors
/// A name of `--only` that does not exist; records that cannot be used or written.
pub fn run(args: &Args) -> Result<()> {
    if let Some(docs) = args.docs {
        return docs.run(&docs::root());
    }
    let external_figures = ExternalFigures::llfree()?;
    if let Some(old) = &args.compare {
        let this_host = Machine::of_this_host();
        let old = Records::read_from(old, &this_host)?;
        let new = args.from.clone().unwrap_or_else(|| args.out.join(RECORDS_FILE));
        return compare::print(&old, &Records::read_from(&new, &this_host)?, &external_figures);
    }
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let records = match &args.from {
        Some(from) => Records::read(from)?,
        None => args.measure()?,
    };
    let page = html::page(&records, &external_figures)?;
    let path = args.out.join("report.html");
    write_atomically(&path, page.as_bytes()).with_context(|| path.display().to_string())?;
    say!("{}", path.display())?;
    for missing in &records.missing {
        say!("not measured: {}, {}: {}", missing.step, missing.subject, missing.reason)?;
    }
    Ok(())
}

impl Args {
    fn measure(&self) -> Result<Records> {
        let unknown = self.only.iter().find(|name| !plan::steps().any(|step| is_named(step, name)));
        if let Some(unknown) = unknown {
            let sections = SECTIONS.iter().map(|section| section.id);
            let names: BTreeSet<_> = sections.chain(plan::steps().map(|step| step.name)).collect();
            let names: Vec<_> = names.into_iter().collect();
            bail!(
                "--only {unknown}: no section or bench has this name; the names are {}",
                names.join(", ")
            );
        }
        let wants =
            |step: &Step| self.only.is_empty() || self.only.iter().any(|name| is_named(step, name));
        let plan = plan::plan(self.quick, wants);
        let path = self.out.join(PARTIAL_RECORDS_FILE);
        let new_records = Records {
            version: env!("CARGO_PKG_VERSION").into(),
            build: executable_id()?,
            machine: Machine::of_this_host(),
            set: self.set_name(),
            date: utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
            later_runs: Vec::new(),
            steps: Vec::new(),
            missing: Vec::new(),
        };
        let mut records = match &self.replace_in {
            Some(file) => {
                let mut records = if plan.iter().all(|planned| plan::is_count(planned.step)) {
                    Records::read(file)?
                } else {
                    Records::read_from(file, &new_records.machine)?
                };
                if records.set != self.base_set_name() {
                    bail!("{}: records of the set `{}`", file.display(), records.set);
                }
                // The plan contains a step that runs twice as two runs, but it is replaced once.
                let steps: BTreeSet<_> = plan.iter().map(|planned| planned.step).collect();
                records.replace(&steps, &new_records);
                records
            }
            None if path.exists() => resume(&path, new_records),
            None => new_records,
        };
        let mut file = PartialFile::new(path);
        run::run(&plan, &mut records, &mut file)?;
        file.finish(&records, &self.out.join(RECORDS_FILE))?;
        Ok(records)
    }

    /// Returns the name of the set of benches without `--only`.
    fn base_set_name(&self) -> &'static str {
        if self.quick { "quick" } else { "standard" }
    }

    /// Returns the name of the set of benches that the arguments select.
    fn set_name(&self) -> String {
        let set = self.base_set_name();
        if self.only.is_empty() { set.into() } else { format!("{set}: {}", self.only.join(",")) }
    }
}

/// Returns whether `name` is the name of this step or of its section.
fn is_named(step: &Step, name: &str) -> bool {
    let has_step = |section: &Section| section.id == name && section.steps.contains(step);
    step.name == name || SECTIONS.iter().any(has_step)
}

/// Returns the records of an interrupted run, if they are of the same set, machine and build.
/// Otherwise prints the reason and returns `new`.
fn resume(path: &std::path::Path, new: Records) -> Records {
    let reason = match Records::read_from(path, &new.machine) {
        Err(error) => format!("{error}"),
        Ok(old) if old.build != new.build => "the interrupted run is of another build".into(),
        Ok(old) if old.set != new.set => format!("the interrupted run is of the set `{}`", old.set),
        Ok(old) => {
            let done = old.steps.len();
            crate::out::remark(format_args!("continuing after {done} steps of {}", old.date));
            return old;
        }
    };
    crate::out::remark(format_args!("{reason}; measuring everything again"));
    new
}

/// Returns a number that identifies this executable.
fn executable_id() -> Result<String> {
    let program = std::env::current_exe().context("the path of this program")?;
    let bytes = fs::read(&program).with_context(|| program.display().to_string())?;
    Ok(format!("{:016x}", fnv(&bytes)))
}

/// Formats seconds since 1970 as a date and a time of day.
fn utc(seconds: u64) -> String {
    let (day, minute) = (seconds / 86_400, seconds / 60 % 1440);
    // Days since 0000-03-01, in eras of 400 years (Hinnant, "chrono-compatible low-level date
    // algorithms").
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let (date, month) =
        (of_year - (153 * march + 2) / 5 + 1, if march < 10 { march + 3 } else { march - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{date:02} {:02}:{:02} UTC", minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_converted_to_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_868_740), "2000-02-29 23:59 UTC");
        assert_eq!(utc(1_795_435_200), "2026-11-23 12:00 UTC");
    }
}
