//! virtio-mem and virtio-balloon drivers as state machines without I/O.
#![no_std]
