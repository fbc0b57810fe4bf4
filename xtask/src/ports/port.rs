//! A kernel beside the reference kernel: how it is built, and how its tests are run.

use crate::{
    setup,
    step::{Step, Steps, tests},
};

/// A kernel that uses Hotmem.
pub(super) struct Port {
    pub(super) name: &'static str,
    /// The first is built by `cargo xtask test`.
    pub(super) images: &'static [Image],
    /// The tests that are run then, and all.
    pub(super) first_tests: &'static str,
    pub(super) all_tests: &'static str,
    /// Installs what builds it, or else says what is missing.
    pub(super) prepare: fn() -> Result<(), Missing>,
    /// Makes the steps that build an image, or says why it cannot.
    pub(super) build: fn(&'static Image) -> Result<Vec<Step<'static>>, String>,
    /// Checks Hotmem's own code in it, once it is prepared.
    pub(super) lint: fn(&mut Steps),
}

/// A kernel's image.
pub(super) struct Image {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The arguments of cargo, or of the C compiler.
    pub(super) build: &'static str,
    pub(super) cpus: u32,
}

/// What a port cannot be built without.
pub(super) enum Missing {
    /// Everybody must have it.
    Needed(&'static str),
    /// It cannot be had everywhere.
    Optional(String),
}

impl Port {
    pub(super) fn is_prepared(&self, steps: &mut Steps) -> bool {
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

    pub(super) fn check(&self, steps: &mut Steps, images: &'static [Image], only: &str) {
        if !self.is_prepared(steps) {
            return;
        }
        self.build(steps, images);
        if setup::qemu() {
            let name = format!("{} under QEMU", images[0].name);
            let run = tests("ports", only);
            let run = Step::cargo(&name, &run);
            steps.run(&run.about("boots it, and has the host change its memory"));
        } else {
            steps.missing(setup::QEMU_WANTED);
        }
    }

    /// Builds images of a port that is prepared.
    pub(super) fn build(&self, steps: &mut Steps, images: &'static [Image]) {
        for image in images {
            match (self.build)(image) {
                Ok(mut build) => {
                    let image_itself = build.pop().map(|last| last.about(image.about));
                    build.iter().chain(&image_itself).for_each(|step| steps.run(step));
                }
                Err(why) => steps.fail(why),
            }
        }
    }
}

/// The target of the kernels.
pub(super) fn target() -> Result<(), Missing> {
    if setup::target() { Ok(()) } else { Err(Missing::Needed(setup::TARGET_WANTED)) }
}
