//! Builds and tests a kernel that uses Hotmem, other than the reference kernel.

use crate::{
    setup,
    step::{Step, Steps, tests},
};

/// A kernel that uses Hotmem.
pub(super) struct Port {
    pub(super) name: &'static str,
    /// The images that are built. `cargo xtask test` builds only the first one.
    pub(super) images: &'static [Image],
    /// The arguments of the test program for tests of the first image.
    pub(super) first_tests: &'static str,
    /// The arguments of the test program for all tests.
    pub(super) all_tests: &'static str,
    /// Installs the toolchain that builds the port. Returns what is missing if that is impossible.
    pub(super) prepare: fn() -> Result<(), Missing>,
    /// Returns the steps that build an image, the last of which makes the image itself. Fails with
    /// the reason if there are none.
    pub(super) build: fn(&'static Image) -> Result<Vec<Step<'static>>, String>,
    /// Runs formatting checks and clippy on Hotmem's own code in the port. `prepare` must have
    /// succeeded.
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

/// A program that a port needs and that is missing. Contains the message.
pub(super) enum Missing {
    /// The task must fail without it.
    Required(&'static str),
    /// The port is skipped without it, because not every machine can have it.
    Optional(String),
}

impl Port {
    /// Installs the port's toolchain. Returns whether it is installed, and records what is missing.
    pub(super) fn is_prepared(&self, steps: &mut Steps) -> bool {
        match (self.prepare)() {
            Ok(()) => true,
            Err(Missing::Required(what)) => {
                steps.missing(what);
                false
            }
            Err(Missing::Optional(what)) => {
                steps.skip(what);
                false
            }
        }
    }

    /// Builds these images and runs the tests that `only` selects.
    pub(super) fn check(&self, steps: &mut Steps, images: &'static [Image], only: &str) {
        if !self.is_prepared(steps) {
            return;
        }
        self.build(steps, images);
        if setup::qemu() {
            let name = format!("{} under QEMU", images[0].name);
            let run = tests("ports", only);
            let run = Step::cargo(&name, &run);
            steps.run(&run.about("boots it, and plugs and unplugs memory"));
        } else {
            steps.missing(setup::QEMU_WANTED);
        }
    }

    /// Builds these images. The toolchain must be installed.
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

/// Installs the target of the kernels.
pub(super) fn target() -> Result<(), Missing> {
    if setup::target() { Ok(()) } else { Err(Missing::Required(setup::TARGET_WANTED)) }
}
