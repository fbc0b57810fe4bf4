//! The tables of `xtask/tables/`: the tools, and the steps of the tasks.

use crate::{
    step::{Step, root},
    tool::Tool,
};
use serde::Deserialize;
use std::{collections::BTreeMap, num::NonZero, sync::LazyLock, thread};

#[derive(Deserialize)]
struct Tables {
    words: BTreeMap<String, String>,
    tool: Vec<Tool>,
    /// The steps of each group.
    #[serde(flatten)]
    steps: BTreeMap<String, Vec<Step>>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let text = concat!(
        include_str!("../tables/words.toml"),
        include_str!("../tables/tools.toml"),
        include_str!("../tables/lint.toml"),
        include_str!("../tables/test.toml"),
        include_str!("../tables/deep.toml"),
        include_str!("../tables/ports.toml"),
        include_str!("../tables/images.toml"),
    );
    toml::from_str(text).unwrap_or_else(|error| panic!("xtask/tables: {error}"))
});

/// Returns all tools, in the order in which they are installed.
pub(crate) fn tools() -> &'static [Tool] {
    &TABLES.tool
}

/// Returns the tool with this name.
///
/// # Panics
/// The table has no such tool.
pub(crate) fn tool(name: &str) -> &'static Tool {
    let tool = TABLES.tool.iter().find(|tool| tool.name == name);
    tool.unwrap_or_else(|| panic!("xtask/tables: no tool {name}"))
}

/// Returns whether the tables have this group of steps.
pub(crate) fn has_steps(group: &str) -> bool {
    TABLES.steps.contains_key(group)
}

/// Returns the steps of a group, with these words replaced as well.
///
/// # Panics
/// The tables have no such group.
pub(crate) fn steps(group: &str, words: &[(&str, &str)]) -> Vec<Step> {
    let threads = 2 * thread::available_parallelism().map_or(1, NonZero::get);
    let (threads, root) = (threads.to_string(), root().display().to_string());
    let in_tables = TABLES.words.iter().map(|(word, text)| (word.as_str(), text.as_str()));
    let own = [("threads", threads.as_str()), ("root", &root)];
    // The words of the tables may contain each other.
    let words: Vec<_> =
        in_tables.clone().chain(in_tables).chain(own).chain(words.iter().copied()).collect();
    let fill = |text: &mut String| {
        for (word, replacement) in &words {
            *text = text.replace(&format!("{{{word}}}"), replacement);
        }
    };
    let steps = TABLES.steps.get(group).cloned();
    let mut steps = steps.unwrap_or_else(|| panic!("xtask/tables: no group {group}"));
    for step in &mut steps {
        if step.deep {
            step.env.insert("HOTMEM_DEEP".to_owned(), "1".to_owned());
            step.env.insert("PROPTEST_RNG_SEED".to_owned(), "{seed}".to_owned());
            step.time_limit_s = Some(3600);
        }
        step.env.values_mut().chain([&mut step.name, &mut step.run]).for_each(fill);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_a_name_a_command_and_tools_that_exist() {
        for group in TABLES.steps.keys() {
            for step in steps(group, &[("seed", "1"), ("level", "s")]) {
                assert!(!step.name.is_empty() && !step.run.is_empty(), "{group}: {}", step.name);
                let tools = step.needs.iter().chain(&step.wants).chain(&step.lacks);
                tools.for_each(|name| _ = tool(name));
                let texts = step.env.values().chain([&step.name, &step.run]);
                // A pair of braces of the shell has a space behind the first one.
                let is_open = |text: &String| text.contains('{');
                assert!(!texts.clone().any(is_open), "{group}: {}: a word is missing", step.name);
            }
        }
    }

    #[test]
    fn the_tables_have_no_tool_twice_and_no_unused_word() {
        let mut names: Vec<_> = tools().iter().map(|tool| &tool.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), tools().len());
        let groups = TABLES.steps.values().flatten();
        let texts: Vec<_> = groups
            .flat_map(|step| step.env.values().chain([&step.run]))
            .chain(TABLES.words.values())
            .collect();
        for word in TABLES.words.keys() {
            let word = format!("{{{word}}}");
            assert!(texts.iter().any(|text| text.contains(&word)), "{word} is not used");
        }
    }
}
