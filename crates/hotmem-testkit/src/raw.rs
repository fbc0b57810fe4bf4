//! The unsafe operations of a machine, made safe for tests.

use hotmem::{
    AddError, AllocError, AllocRequest, Allocation, Counts, Fault, Frames, Hooks, Hotplug, Mapping,
    OnlineType, PfnRange, Platform, RangeError,
};

/// Allocates and frees raw ranges, for tests that keep their own account of owners or that test
/// refusals.
pub trait Raw {
    /// Allocates a range and gives up its owner.
    ///
    /// # Errors
    /// As [`Frames::alloc`].
    fn take_raw(&self, want: AllocRequest) -> Result<PfnRange, AllocError>;
    /// Frees a range.
    ///
    /// # Errors
    /// As [`Frames::free_raw`].
    fn give_raw(&self, range: PfnRange) -> Result<(), RangeError>;
    /// Frees a range after filling it.
    ///
    /// # Errors
    /// As [`Frames::free_raw_filled`].
    fn give_raw_filled(&self, range: PfnRange) -> Result<(), RangeError>;
}

impl<P: Platform> Raw for Frames<P> {
    fn take_raw(&self, want: AllocRequest) -> Result<PfnRange, AllocError> {
        self.alloc(want).map(Allocation::into_raw)
    }

    fn give_raw(&self, range: PfnRange) -> Result<(), RangeError> {
        // SAFETY: a test frees a range that it allocated, or one that must be refused.
        unsafe { self.free_raw(range) }
    }

    fn give_raw_filled(&self, range: PfnRange) -> Result<(), RangeError> {
        // SAFETY: as above.
        unsafe { self.free_raw_filled(range) }
    }
}

/// The unsafe operations on reserved boot memory and device memory, made safe for tests.
pub trait RawReserved {
    /// Detaches device memory.
    ///
    /// # Errors
    /// As [`Hotplug::detach`].
    fn detach_raw(&mut self, range: PfnRange) -> Result<(), RangeError>;
    /// Turns device memory into RAM.
    ///
    /// # Errors
    /// As [`Hotplug::device_to_ram`].
    fn device_to_ram_raw(
        &mut self,
        range: PfnRange,
        kind: impl Into<Option<OnlineType>>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), AddError>;
    /// Frees memory that boot reserved.
    ///
    /// # Errors
    /// As [`Hotplug::free_reserved`].
    fn give_reserved(&mut self, range: PfnRange) -> Result<(), RangeError>;
}

impl<P: Platform, M: Mapping> RawReserved for Hotplug<'_, P, M> {
    fn give_reserved(&mut self, range: PfnRange) -> Result<(), RangeError> {
        // SAFETY: a test frees a range that it reserved, or one that must be refused.
        unsafe { self.free_reserved(range) }
    }

    fn detach_raw(&mut self, range: PfnRange) -> Result<(), RangeError> {
        // SAFETY: no test uses device memory.
        unsafe { self.detach(range) }
    }

    fn device_to_ram_raw(
        &mut self,
        range: PfnRange,
        kind: impl Into<Option<OnlineType>>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), AddError> {
        // SAFETY: as above.
        unsafe { self.device_to_ram(range, kind, hooks) }
    }
}

/// Cross-checks a machine in tests, which know that their other threads are idle.
pub trait Validated {
    /// [`Frames::validate`], while no other thread of the test uses the machine.
    ///
    /// # Errors
    /// The first [`Fault`].
    fn validated(&self) -> Result<Counts, Fault>;
}

impl<P: Platform> Validated for Frames<P> {
    fn validated(&self) -> Result<Counts, Fault> {
        // SAFETY: tests call this when no other call is in progress.
        unsafe { self.validate() }
    }
}
