//! `cargo xtask ports`: builds other kernels with Hotmem as their frame allocator, and boots them.

mod arceos;
mod ostd;

use crate::{
    c_kernel, setup,
    step::{Step, Steps},
};
use std::process::ExitCode;

/// A kernel that exists without Hotmem.
struct Port {
    name: &'static str,
    /// The first is built by `cargo xtask test`.
    images: &'static [Image],
    /// The tests that are run then, and all.
    first_tests: &'static str,
    all_tests: &'static str,
    /// Installs what builds it, or else says what is missing.
    prepare: fn() -> Result<(), Missing>,
    /// Makes the step that builds an image, or says why it cannot.
    build: fn(&'static Image) -> Result<Step<'static>, String>,
    /// Checks Hotmem's own code in it, once it is prepared.
    lint: fn(&mut Steps),
}

/// A kernel's image.
struct Image {
    name: &'static str,
    about: &'static str,
    /// The arguments of cargo.
    build: &'static str,
    cpus: u32,
}

/// What a port cannot be built without.
enum Missing {
    /// Everybody must have it.
    Needed(&'static str),
    /// It cannot be had everywhere.
    Optional(String),
}

const PORTS: [Port; 2] = [arceos::PORT, ostd::PORT];

/// Installs what builds the ports.
pub(crate) fn prepare(steps: &mut Steps) {
    for port in &PORTS {
        port.is_prepared(steps);
    }
}

/// Builds the kernels of a port, and runs their tests.
pub(crate) fn run(name: &str) -> Option<ExitCode> {
    if name == "c-kernel" {
        return Some(c_kernel::run());
    }
    let port = PORTS.iter().find(|port| port.name == name)?;
    let mut steps = Steps::default();
    port.check(&mut steps, port.images, port.all_tests);
    Some(steps.conclude_tests())
}

/// Builds the first kernel of each port, and runs its tests.
pub(crate) fn check(steps: &mut Steps) {
    PORTS.iter().for_each(|port| port.check(steps, &port.images[..1], port.first_tests));
    c_kernel::check(steps);
}

/// Builds all kernels, and runs all their tests.
pub(crate) fn check_all(steps: &mut Steps) {
    PORTS.iter().for_each(|port| port.check(steps, port.images, port.all_tests));
    c_kernel::check_all(steps);
}

/// Checks Hotmem's own code in the ports.
pub(crate) fn lint(steps: &mut Steps) {
    for port in &PORTS {
        if port.is_prepared(steps) {
            (port.lint)(steps);
        }
    }
}

impl Port {
    fn is_prepared(&self, steps: &mut Steps) -> bool {
        match (self.prepare)() {
            Ok(()) => true,
            Err(Missing::Needed(what)) => {
                steps.missing(what);
                false
            }
            Err(Missing::Optional(what)) => {
                steps.skip(what);
                false
            }
        }
    }

    fn check(&self, steps: &mut Steps, images: &'static [Image], tests: &str) {
        if !self.is_prepared(steps) {
            return;
        }
        for image in images {
            match (self.build)(image) {
                Ok(build) => steps.run(&build.about(image.about)),
                Err(why) => steps.fail(why),
            }
        }
        if setup::qemu() {
            let name = format!("{} under QEMU", images[0].name);
            let tests = format!("test -p hotmem-lab --no-fail-fast --test ports {tests}");
            let tests = Step::cargo(&name, &tests);
            steps.run(&tests.about("boots it, and has the host change its memory"));
        } else {
            steps.missing(setup::QEMU_WANTED);
        }
    }
}

/// The target of the kernels.
fn target() -> Result<(), Missing> {
    if setup::target() { Ok(()) } else { Err(Missing::Needed(setup::TARGET_WANTED)) }
}
