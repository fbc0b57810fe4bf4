//! Wraps the unsafe operations of an instance in safe methods for tests.

use hotmem::{
    AddError, AllocError, AllocRequest, Allocation, Counts, Frames, Hooks, Hotplug, Inconsistency,
    Map, OnlineType, PfnRange, Platform, RangeError,
};

/// Methods that allocate and free raw ranges, for tests that record owners themselves or that test
/// refusals.
pub trait RawRanges {
    /// Allocates a raw range, which the test must free.
    ///
    /// # Errors
    /// As [`Frames::alloc`].
    fn alloc_range(&self, request: AllocRequest) -> Result<PfnRange, AllocError>;
    /// Frees a raw range.
    ///
    /// # Errors
    /// As [`Frames::free_raw`].
    fn free_range(&self, range: PfnRange) -> Result<(), RangeError>;
    /// Fills a raw range with the promised contents and frees it.
    ///
    /// # Errors
    /// As [`Frames::fill_and_free_raw`].
    fn fill_and_free_range(&self, range: PfnRange) -> Result<(), RangeError>;
}

impl<P: Platform> RawRanges for Frames<P> {
    fn alloc_range(&self, request: AllocRequest) -> Result<PfnRange, AllocError> {
        self.alloc(request).map(Allocation::into_raw)
    }

    fn free_range(&self, range: PfnRange) -> Result<(), RangeError> {
        // SAFETY: a test frees a range that it allocated, or one that must be refused.
        unsafe { self.free_raw(range) }
    }

    fn fill_and_free_range(&self, range: PfnRange) -> Result<(), RangeError> {
        // SAFETY: a test frees a range that it allocated, or one that must be refused.
        unsafe { self.fill_and_free_raw(range) }
    }
}

/// Safe methods for the unsafe calls of [`Hotplug`], which concern device memory.
pub trait RawHotplugCalls {
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
}

impl<P: Platform, M: Map> RawHotplugCalls for Hotplug<'_, P, M> {
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
        // SAFETY: no test uses device memory.
        unsafe { self.device_to_ram(range, kind, hooks) }
    }
}

/// A method that validates an instance.
pub trait Validated {
    /// Validates the instance by [`Frames::validate`]. Call this while no other thread of the test
    /// uses the instance.
    ///
    /// # Errors
    /// The first [`Inconsistency`].
    fn validated(&self) -> Result<Counts, Inconsistency>;
}

impl<P: Platform> Validated for Frames<P> {
    fn validated(&self) -> Result<Counts, Inconsistency> {
        // SAFETY: tests call this when no other call is in progress.
        unsafe { self.validate() }
    }
}
