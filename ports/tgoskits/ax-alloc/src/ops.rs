//! Defines the operations of ArceOS's allocators.

/// Defines each method twice, as ArceOS does: in the trait `AllocatorOps`, and as an inherent method of
/// [`GlobalAllocator`](crate::GlobalAllocator), which callers use without the trait.
macro_rules! allocator_ops {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(&$self:ident $(, $arg:ident: $type:ty)* $(,)?) $(-> $result:ty)? $body:block
    )*) => {
        /// The interface of ArceOS's allocators.
        pub trait AllocatorOps {
            $($(#[$doc])* fn $name(&self $(, $arg: $type)*) $(-> $result)?;)*
        }

        impl GlobalAllocator {
            $($(#[$doc])* pub fn $name(&$self $(, $arg: $type)*) $(-> $result)? $body)*
        }

        impl AllocatorOps for GlobalAllocator {
            $(fn $name(&self $(, $arg: $type)*) $(-> $result)? {
                GlobalAllocator::$name(self $(, $arg)*)
            })*
        }
    };
}

pub(crate) use allocator_ops;
