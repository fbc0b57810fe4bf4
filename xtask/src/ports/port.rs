//! Builds and tests a port, which is another kernel with Hotmem as its frame allocator.

use crate::{
    setup,
    step::{Step, tests},
    steps::Steps,
};

/// A port.
pub(super) struct Port {
    pub(super) name: &'static str,
    /// The images that are built. `cargo xtask test` builds only the first one.
    pub(super) images: &'static [Image],
    /// The arguments of the test program for tests of the first image.
    pub(super) smoke_tests: &'static str,
    /// The arguments of the test program for all tests.
    pub(super) all_tests: &'static str,
    /// Installs the toolchain that builds the port. Returns the missing program if the toolchain
    /// cannot be installed.
    pub(super) prepare: fn() -> Result<(), Missing>,
    /// Returns the steps that build an image. The last step makes the image itself. Returns an
    /// error if a file that the steps need cannot be written.
    pub(super) build: fn(&'static Image) -> Result<Vec<Step>, String>,
    /// Checks the formatting of Hotmem's own code in the port, and runs clippy on it. `prepare`
    /// must have succeeded.
    pub(super) lint: fn(&mut Steps),
}

/// A kernel's image.
pub(super) struct Image {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// The arguments of cargo, or of the C compiler.
    pub(super) build: &'static str,
    /// The number of CPUs that the kernel is built for.
    pub(super) guest_cpus: u32,
}

/// A missing program that a port needs, with the message about it.
pub(super) enum Missing {
    /// The task fails without this program.
    Required(&'static str),
    /// The port is skipped without this program, because some machines cannot have it.
    Optional(String),
}

impl Port {
    /// Installs the port's toolchain. Returns whether the toolchain is installed, and records in
    /// `steps` if it is not.
    pub(super) fn prepare(&self, steps: &mut Steps) -> bool {
        match (self.prepare)() {
            Ok(()) => true,
            Err(Missing::Required(message)) => {
                steps.missing(message);
                false
            }
            Err(Missing::Optional(message)) => {
                steps.skip(message);
                false
            }
        }
    }

    /// Builds these images and runs the tests that the test program's arguments select.
    pub(super) fn check(&self, steps: &mut Steps, images: &'static [Image], test_args: &str) {
        if !self.prepare(steps) {
            return;
        }
        self.build(steps, images);
        if setup::qemu() {
            let name = format!("{} under QEMU", images[0].name);
            let tests = tests("ports", test_args);
            let step = Step::cargo(&name, &tests);
            steps.run(&step.description("boots the kernel, and plugs and unplugs memory"));
        } else {
            steps.missing(setup::QEMU_WANTED);
        }
    }

    /// Builds these images. The toolchain must be installed.
    pub(super) fn build(&self, steps: &mut Steps, images: &'static [Image]) {
        for image in images {
            match (self.build)(image) {
                Ok(mut build) => {
                    let image_itself = build.pop().map(|last| last.description(image.description));
                    build.iter().chain(&image_itself).for_each(|step| steps.run(step));
                }
                Err(error) => steps.fail(error),
            }
        }
    }
}

/// Installs the target of the kernels.
pub(super) fn target() -> Result<(), Missing> {
    if setup::target() { Ok(()) } else { Err(Missing::Required(setup::TARGET_WANTED)) }
}
