/*
 * Memory hotplug for kernels: Hotmem's C interface. Link with libhotmem.a.
 *
 * A call returns 0 or what it says, or a negative HOTMEM_E* code; it has then changed nothing, unless
 * it says otherwise. Addresses are physical, lengths are in bytes, frames have 4 KiB, pageblocks 2 MiB.
 *
 * hotmem_alloc, hotmem_free and hotmem_get_counts can be called in any context, interrupt handlers
 * included, by any CPU, without a lock. All other calls for a machine take one lock of the kernel's,
 * which is held during the call; hotmem_balloon_* may have one of its own.
 *
 * The text under "Safety" is what the kernel promises. The rest is checked.
 *
 * Made by cbindgen from crates/hotmem-c. Do not edit: cargo xtask header.
 */

#ifndef HOTMEM_H
#define HOTMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define HOTMEM_ALIGNED(n) __attribute__((aligned(n)))

#ifdef __cplusplus
extern "C"
#endif
// The kernel's function for a bug in the engine. It does not return. The text has len bytes, and no
// zero at its end.
void hotmem_panic(const char *text, size_t len);

// Such memory does not exist: it was not announced, is not present, or is not allocated.
#define HOTMEM_ENOENT -2

// The driver has stopped, because its device cannot be trusted.
#define HOTMEM_EIO -5

// The memory is not online memory of this machine.
#define HOTMEM_ENXIO -6

// Another CPU is in the middle of an allocation or a free of this memory: try again.
#define HOTMEM_EAGAIN -11

// There is no such memory, or none for metadata and page tables.
#define HOTMEM_ENOMEM -12

// A hook refused.
#define HOTMEM_EACCES -13

// A pointer is null that must not be.
#define HOTMEM_EFAULT -14

// The memory is in use, or held by another request; or the control path was entered twice.
#define HOTMEM_EBUSY -16

// The memory is announced, present or online already, or another part of it is.
#define HOTMEM_EEXIST -17

// An argument is wrong: a size, an alignment, a flag, or a struct that was not set up.
#define HOTMEM_EINVAL -22

// There is no space for another range of boot memory.
#define HOTMEM_ENOSPC -28

// A range wraps, or lies beyond the physical limit or the reach of the kernel's mapping.
#define HOTMEM_ERANGE -34

// This can be done only once, and was done before.
#define HOTMEM_EALREADY -114

// `migrate` has moved and freed some or all of the frames.
#define HOTMEM_MIGRATE_MOVED 0

// The owner has freed the frames.
#define HOTMEM_MIGRATE_FREED 1

// The frames cannot be moved now; a later try may succeed.
#define HOTMEM_MIGRATE_RETRY 2

// The frames can never be moved.
#define HOTMEM_MIGRATE_UNMOVABLE 3

// `hotmem_take_table` has no frame left.
#define HOTMEM_NONE UINT64_MAX

// The size of `struct hotmem` in bytes.
#define HOTMEM_SIZE (21 * 1024)

// The alignment of `struct hotmem` in bytes.
#define HOTMEM_ALIGN 128

// The largest number of ranges of RAM, and likewise of reserved memory, after ranges that touch
// are merged.
#define HOTMEM_BOOT_RANGES 32

// RAM that may be used.
#define HOTMEM_RAM 1

// Memory that is in use, such as the kernel's image, or that must not be used. Where it overlaps
// with RAM, the memory is reserved. `hotmem_free` frees it later.
#define HOTMEM_RESERVED 2

// Movable memory is preferred. The kernel promises to migrate the frames.
#define HOTMEM_MOVABLE 1

// The frames start exactly at `at`.
#define HOTMEM_AT 2

// The frames are near `node`, if there are such frames, instead of near the CPU.
#define HOTMEM_NEAR 4

// The frames are on `node`.
#define HOTMEM_ONLY 8

// The frames are on another node than `node`, if there are such: for `hotmem_hooks.migrate`.
#define HOTMEM_AVOIDING 16

// Puts the memory online in the zone that the policy chooses.
#define HOTMEM_ONLINE_DEFAULT 0

// Online for any allocation.
#define HOTMEM_ONLINE_KERNEL 1

// Puts the memory online for movable allocations, so that it can be removed again.
#define HOTMEM_ONLINE_MOVABLE 2

// Leaves the memory offline.
#define HOTMEM_ONLINE_NOT 3

// Frames that the kernel cannot move.
#define HOTMEM_WHY_UNMOVABLE 1

// Frames that the kernel could not move now.
#define HOTMEM_WHY_RETRY 2

// The engine's metadata, or descriptors of memory that stays.
#define HOTMEM_WHY_METADATA 3

// An allocation or a free is in progress, or another request has the memory.
#define HOTMEM_WHY_BUSY 4

// The memory is being reported to the host.
#define HOTMEM_WHY_REPORTING 5

// A hook refused.
#define HOTMEM_WHY_VETO 6

// There is not enough free memory elsewhere for the frames in use.
#define HOTMEM_WHY_NOT_ENOUGH_FREE 7

// The memory is not online.
#define HOTMEM_WHY_NOT_ONLINE 8

// Not announced.
#define HOTMEM_STATE_UNKNOWN 0

// Announced, and not present.
#define HOTMEM_STATE_ABSENT 1

// Present, and not given to the allocator.
#define HOTMEM_STATE_OFFLINE 2

// Online for any allocation.
#define HOTMEM_STATE_ONLINE 3

// Online for movable allocations only.
#define HOTMEM_STATE_MOVABLE 4

// Owned by a device.
#define HOTMEM_STATE_DEVICE 5

// The size of `struct hotmem_vmem` in bytes.
#define HOTMEM_VMEM_SIZE 1024

// The device type of virtio-mem.
#define HOTMEM_VMEM_DEVICE_ID 24

// The feature bits that the driver supports.
#define HOTMEM_VMEM_FEATURES 12884901895

// Nothing to do until the device interrupts (for a balloon also: or memory is freed).
#define HOTMEM_STEP_IDLE 0

// Put the request on the queue, then step again.
#define HOTMEM_STEP_SEND 1

// There is more to do: step again when convenient.
#define HOTMEM_STEP_AGAIN 2

// Nothing to do until `until_ns`, or until the device interrupts.
#define HOTMEM_STEP_WAIT 3

// The driver asks the device which blocks are plugged.
#define HOTMEM_VMEM_SYNCHRONISING 0

// The driver plugs or unplugs.
#define HOTMEM_VMEM_RESIZING 1

// The requested size is plugged and online.
#define HOTMEM_VMEM_REACHED 2

// The requested size cannot be reached now: `hotmem_vmem_explain` says why.
#define HOTMEM_VMEM_PENDING 3

// The driver has stopped: `hotmem_vmem_explain` says why. Plugged memory stays usable.
#define HOTMEM_VMEM_FAILED 4

// The size of `struct hotmem_balloon` in bytes.
#define HOTMEM_BALLOON_SIZE 8192

// The device type of virtio-balloon.
#define HOTMEM_BALLOON_DEVICE_ID 5

// The feature bits that the driver supports.
#define HOTMEM_BALLOON_FEATURES 4294967359

// Write `value` to the configuration's `actual`, then step again.
#define HOTMEM_STEP_SET_ACTUAL 4

// The device has not answered for too long: reset it, negotiate the same features, call
// `hotmem_balloon_reset`, and go on.
#define HOTMEM_STEP_RESET 5

// No queue.
#define HOTMEM_QUEUE_NONE -1

// Inflate requests.
#define HOTMEM_QUEUE_INFLATE 0

// Deflate requests.
#define HOTMEM_QUEUE_DEFLATE 1

// Statistics, with VIRTIO_BALLOON_F_STATS_VQ.
#define HOTMEM_QUEUE_STATISTICS 2

// Free page hints, with VIRTIO_BALLOON_F_FREE_PAGE_HINT.
#define HOTMEM_QUEUE_HINTS 3

// Free page reports, with VIRTIO_BALLOON_F_PAGE_REPORTING.
#define HOTMEM_QUEUE_REPORTS 4

// The balloon has the size that the host requests.
#define HOTMEM_BALLOON_SETTLED 0

// The balloon is being inflated or deflated.
#define HOTMEM_BALLOON_RESIZING 1

// The size cannot be reached now.
#define HOTMEM_BALLOON_PENDING 2

// The driver has stopped.
#define HOTMEM_BALLOON_FAILED 3

// Report as much as possible at once, and keep nothing back.
#define HOTMEM_REPORT_EAGERLY 1

// The kernel fills freed memory with `poison`, and relies on it.
#define HOTMEM_POISON 2

// The largest number of bytes that the device reads: 256 frame numbers.
#define HOTMEM_BALLOON_BYTES 1024

// The largest number of ranges in a report.
#define HOTMEM_BALLOON_RANGES 32

// Takes frames of page tables back from `hotmem_hooks.release_tables`.
struct hotmem_released;

// Frames for page tables, lent to `hotmem_hooks.map`.
struct hotmem_tables;

// A machine. It begins as zeroes, is neither moved nor copied, and lives as long as the kernel.
struct HOTMEM_ALIGNED(128) hotmem {
    uint8_t opaque[HOTMEM_SIZE];
};

// The kernel's functions. NULL stands for the default, which is given with each. All get `ctx`,
// and all ranges are in bytes.
//
// `cpu`, `node` and `wake_reporter` are called in any context. The others are called by the calls
// of the control path, in their context and under the caller's lock: they may allocate and free
// frames, but a call of the control path returns HOTMEM_EBUSY.
struct hotmem_hooks {
    // Passed to each function.
    void *ctx;
    // Returns the number of the CPU that runs the caller: a hint, which may be wrong. Default: 0.
    uint32_t (*cpu)(void *ctx);
    // Returns the NUMA node that is nearest to the caller: a hint as well. Default: 0.
    uint32_t (*node)(void *ctx);
    // Called when memory waits to be reported: the kernel must call `hotmem_balloon_step` soon.
    // This function may only set a flag or wake a thread. Default: nothing.
    void (*wake_reporter)(void *ctx);
    // Returns how many frames for page tables (and descriptors) mapping the range needs at most.
    // Default: 0.
    uint64_t (*tables_needed)(void *ctx, uint64_t paddr, uint64_t len);
    // Maps the range in the direct map, readable and writable. Takes frames for page tables by
    // `hotmem_take_table(tables)`, at most as many as `tables_needed` has returned. Cannot fail.
    // `tables` is valid during the call. Default: the range is mapped already.
    void (*map)(void *ctx, uint64_t paddr, uint64_t len, struct hotmem_tables *tables);
    // Unmaps the range and flushes it from every TLB. Keeps the page tables. Default: nothing.
    void (*unmap)(void *ctx, uint64_t paddr, uint64_t len);
    // Maps the range again, by the page tables that `unmap` has kept, because the device did not
    // take the memory. Default: nothing.
    void (*remap)(void *ctx, uint64_t paddr, uint64_t len);
    // Passes the page tables that mapped only the range to `hotmem_free_table(tables)`, because the
    // range was removed. `tables` is valid during the call. Default: the kernel keeps them.
    void (*release_tables)(void *ctx,
                           uint64_t paddr,
                           uint64_t len,
                           struct hotmem_released *tables);
    // Returns 0 if the range may go online, or anything else to refuse. Default: 0.
    int32_t (*going_online)(void *ctx, uint64_t paddr, uint64_t len, bool movable);
    // Called when a range stays offline although `going_online` has agreed. Default: nothing.
    void (*online_cancelled)(void *ctx, uint64_t paddr, uint64_t len);
    // Called when the range is online. Default: nothing.
    void (*onlined)(void *ctx, uint64_t paddr, uint64_t len);
    // Returns 0 if the range, which is isolated, may go offline, or anything else to refuse.
    // Default: 0.
    int32_t (*going_offline)(void *ctx, uint64_t paddr, uint64_t len);
    // Called when a range stays online although `going_offline` has agreed. Default: nothing.
    void (*offline_cancelled)(void *ctx, uint64_t paddr, uint64_t len);
    // Called when the range is offline. Default: nothing.
    void (*offlined)(void *ctx, uint64_t paddr, uint64_t len);
    // Frees memory in the range that the kernel can do without. It must not allocate. Default:
    // nothing.
    void (*discard)(void *ctx, uint64_t paddr, uint64_t len);
    // Moves the contents of the range, which is allocated, to other frames and frees the range.
    // Returns one of HOTMEM_MIGRATE_*. Default: HOTMEM_MIGRATE_UNMOVABLE.
    int32_t (*migrate)(void *ctx, uint64_t paddr, uint64_t len);
};

// What the kernel may choose before boot. Zeroes are the defaults.
struct hotmem_config {
    // The kernel's functions, which are copied, or NULL for the defaults of all.
    const struct hotmem_hooks *hooks;
    // The end of the memory that can ever be mapped, a physical address. 0: there is no limit.
    uint64_t reach;
    // The end of the memory that every device can address, 4 GiB on a PC: allocations without a
    // bound use it last. 0: there is no such memory.
    uint64_t low_end;
    // The number of CPUs; `cpu` returns smaller numbers. 0 stands for 8.
    uint32_t cpus;
};

// A request for frames. Zero is the default of every field but `frames`.
struct hotmem_request {
    // The number of contiguous frames (4 KiB).
    uint64_t frames;
    // The alignment of the start in frames, a power of two. 0 stands for 1.
    uint64_t align;
    // The lowest physical address of the start.
    uint64_t min;
    // The highest physical address of the end. 0: there is no bound.
    uint64_t max;
    // The physical address of the start, with HOTMEM_AT.
    uint64_t at;
    // HOTMEM_MOVABLE and others, or 0.
    uint32_t flags;
    // The NUMA node, with HOTMEM_NEAR, HOTMEM_ONLY or HOTMEM_AVOIDING.
    uint32_t node;
};

// The number of frames in each state.
struct hotmem_counts {
    // Announced.
    uint64_t announced;
    // Added, whether online or not.
    uint64_t present;
    // Given to the allocator.
    uint64_t online;
    // Online for movable allocations only.
    uint64_t movable;
    // Free: could be allocated now.
    uint64_t free;
    // Free, and given to the host until they are used again.
    uint64_t reported;
    // Isolated.
    uint64_t isolated;
    // Allocated.
    uint64_t used;
};

// The progress of a removal.
struct hotmem_removal {
    // Bytes that were removed.
    uint64_t removed;
    // The physical address of the first memory that could not be removed, if some is left.
    uint64_t paddr;
    // The length of that memory in bytes.
    uint64_t len;
    // The reason, one of HOTMEM_WHY_*, or 0.
    uint32_t why;
    // Reserved, 0.
    uint32_t reserved;
};

// The driver of a virtio-mem device. It begins as zeroes, is neither moved nor copied, and lives
// as long as the machine.
struct HOTMEM_ALIGNED(16) hotmem_vmem {
    uint8_t opaque[HOTMEM_VMEM_SIZE];
};

// The device's configuration space, VIRTIO 1.3, 5.15.4, in the CPU's byte order. It is not
// trusted.
struct hotmem_vmem_config {
    // Bytes of a block.
    uint64_t block_size;
    // The NUMA node, with VIRTIO_MEM_F_ACPI_PXM.
    uint16_t node_id;
    // Ignored.
    uint8_t padding[6];
    // The region's physical address.
    uint64_t addr;
    // The region's bytes.
    uint64_t region_size;
    // Bytes in which blocks can be plugged.
    uint64_t usable_region_size;
    // Bytes that are plugged.
    uint64_t plugged_size;
    // Bytes that the host wants plugged.
    uint64_t requested_size;
};

// What the kernel must do after a step.
struct hotmem_vmem_request {
    // After HOTMEM_STEP_WAIT: the time.
    uint64_t until_ns;
    // After HOTMEM_STEP_SEND: the bytes for the device to read. Its answer, 10 bytes, goes into a
    // second buffer.
    uint8_t bytes[24];
};

// The state of a device.
struct hotmem_vmem_status {
    // One of HOTMEM_VMEM_SYNCHRONISING and so on.
    uint32_t state;
    // Reserved, 0.
    uint32_t reserved;
    // Bytes that the host wants plugged.
    uint64_t requested;
    // Bytes that are plugged.
    uint64_t plugged;
    // Requests that were sent.
    uint64_t requests;
};

// What the kernel chooses. Zeroes are the defaults.
struct hotmem_balloon_options {
    // Frames that stay with the kernel, however much the host requests.
    uint64_t floor;
    // The time that the device may take to answer. 0 stands for 10 seconds.
    uint64_t patience_ns;
    // HOTMEM_REPORT_EAGERLY, HOTMEM_POISON.
    uint32_t flags;
    // With HOTMEM_POISON: the 32-bit pattern that fills freed memory.
    uint32_t poison;
    // The maximum number of ranges in a report. The queue of reports must have a descriptor for
    // each. 0 stands for HOTMEM_BALLOON_RANGES.
    uint32_t report_ranges;
    // Reserved, 0.
    uint32_t reserved;
};

// The driver of a virtio-balloon device. It begins as zeroes, is neither moved nor copied, and
// lives as long as the machine.
struct HOTMEM_ALIGNED(16) hotmem_balloon {
    uint8_t opaque[HOTMEM_BALLOON_SIZE];
};

// The device's configuration space, as far as the driver reads it, in the CPU's byte order. It is
// not trusted.
struct hotmem_balloon_config {
    // Offset 0: the size of the balloon that the host requests, in frames.
    uint32_t num_pages;
    // Offset 8, with VIRTIO_BALLOON_F_FREE_PAGE_HINT; 0 otherwise.
    uint32_t free_page_hint_cmd_id;
    // The configuration generation, read before the others.
    uint32_t generation;
};

// A range in bytes.
struct hotmem_range {
    // The physical address.
    uint64_t paddr;
    // The length in bytes.
    uint64_t len;
};

// What the kernel must do after a step.
struct hotmem_balloon_message {
    // After HOTMEM_STEP_WAIT: the time of the next step.
    uint64_t until_ns;
    // After HOTMEM_STEP_SEND: the queue; after HOTMEM_STEP_RESET: the queue on which the device
    // has not answered.
    int32_t queue;
    // After HOTMEM_STEP_SET_ACTUAL: the value.
    uint32_t value;
    // After HOTMEM_STEP_SEND: the length of the buffer that the device reads. Copy `bytes` into
    // the buffer, and do not change it until the device has used it. If `len` is 0, the buffers
    // are `ranges`.
    uint32_t len;
    // After HOTMEM_STEP_SEND: the number of ranges, each a buffer for the device to write.
    uint32_t count;
    // The bytes of the buffer to read.
    uint8_t bytes[HOTMEM_BALLOON_BYTES];
    // The buffers to write.
    struct hotmem_range ranges[HOTMEM_BALLOON_RANGES];
};

// The state of a balloon. Counters wrap.
struct hotmem_balloon_status {
    // One of HOTMEM_BALLOON_SETTLED and so on.
    uint32_t state;
    // Reserved, 0.
    uint32_t reserved;
    // Frames in the balloon.
    uint64_t held;
    // Frames that the host wants in it.
    uint64_t target;
    // Reports that the device took.
    uint64_t reports;
    // Frames in these reports.
    uint64_t reported;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Takes a frame for a page table, with undefined contents. Returns its physical address, or
// HOTMEM_NONE if there is none left.
//
// # Safety
// `tables` is null, or the argument of the call of `map` that is running.
uint64_t hotmem_take_table(struct hotmem_tables *tables);

// Frees the frame of a page table, which came from `hotmem_take_table` or was allocated.
//
// # Safety
// `tables` is null, or the argument of the call of `release_tables` that is running. Nobody uses
// the frame any more.
void hotmem_free_table(struct hotmem_released *tables,
                       uint64_t paddr);

// Sets the hooks and the limits of a machine, before boot.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_EALREADY: it has booted.
//
// # Safety
// `h` is NULL or a `struct hotmem` that was zeroes at first. `config` is NULL or a configuration.
// The hooks can be called with their `ctx` as long as the machine lives, and keep their promises.
int32_t hotmem_configure(struct hotmem *h,
                         const struct hotmem_config *config);

// Names a range of boot memory: `kind` is HOTMEM_RAM or HOTMEM_RESERVED. Ranges need not be
// aligned or sorted and may overlap; an empty one is ignored.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_ERANGE: the range wraps; HOTMEM_ENOSPC: there are
// HOTMEM_BOOT_RANGES already; HOTMEM_EALREADY: the machine has booted.
//
// # Safety
// `h` is NULL or a `struct hotmem` that was zeroes at first.
int32_t hotmem_boot_add(struct hotmem *h,
                        uint64_t paddr,
                        uint64_t len,
                        uint32_t kind);

// Starts the machine with the memory that was named. `direct_map` is where physical address 0 is
// mapped, or would be: virtual address = `direct_map` + physical address. Memory below
// `mapped_below` is mapped there already; 0 stands for all memory. The caller maps the rest before
// anything is allocated.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_ENOMEM: no RAM, or none for the engine's metadata;
// HOTMEM_ERANGE: RAM lies beyond the limits; HOTMEM_EALREADY: the machine has booted. After an
// error more memory can be named, and boot tried again.
//
// # Safety
// `h` is NULL or a `struct hotmem` that was zeroes at first. The ranges that were named are
// correct: all RAM is mapped as described, and nobody uses RAM that is not reserved.
int32_t hotmem_boot(struct hotmem *h,
                    void *direct_map,
                    uint64_t mapped_below);

// Allocates one frame for any purpose, and returns its physical address, which is not negative, or
// an error. The contents are undefined. Context: any; never waits.
//
// # Errors
// HOTMEM_ENOMEM, HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_EAGAIN: memory was changing hands for long.
//
// # Safety
// `h` is NULL or a `struct hotmem`.
int64_t hotmem_alloc_frame(struct hotmem *h);

// Allocates what `request` describes, or one frame for any purpose if it is NULL, and stores the
// physical address. The contents are undefined. Context: any; never waits.
//
// # Errors
// HOTMEM_ENOMEM, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_EBUSY: `at` is not free;
// HOTMEM_EAGAIN: other CPUs were in the middle of allocations and frees at each of several tries.
//
// # Safety
// `h` is NULL or a `struct hotmem`; `request` is NULL or a request; `paddr` is NULL or can be written.
int32_t hotmem_alloc(struct hotmem *h,
                     const struct hotmem_request *request,
                     uint64_t *paddr);

// Frees one frame, as `hotmem_free` does. Context: any; never waits.
//
// # Errors
// As for `hotmem_free`.
//
// # Safety
// As for `hotmem_free`.
int32_t hotmem_free_frame(struct hotmem *h, uint64_t paddr);

// Frees frames: all or a part of one allocation or of several, or boot memory that was reserved.
// Context: any; never waits.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_ENOENT: a frame is not allocated;
// HOTMEM_ENXIO: a frame is not online memory of this machine.
//
// # Safety
// `h` is NULL or a `struct hotmem`. Each frame that is allocated is the caller's, and nobody uses
// it any more.
int32_t hotmem_free(struct hotmem *h,
                    uint64_t paddr,
                    uint64_t frames);

// Counts the frames of the machine. Context: any. Cost: proportional to the memory that was added.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL.
//
// # Safety
// `h` is NULL or a `struct hotmem`; `counts` is NULL or can be written.
int32_t hotmem_get_counts(struct hotmem *h,
                          struct hotmem_counts *counts);

// Announces that memory of this NUMA node may be plugged in the range, which consists of whole
// pageblocks (2 MiB).
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_ENOMEM, HOTMEM_EBUSY.
//
// # Safety
// `h` is NULL or a `struct hotmem`.
int32_t hotmem_announce(struct hotmem *h,
                        uint64_t paddr,
                        uint64_t len,
                        uint32_t node);

// Withdraws the announcement of exactly this range, in which nothing is present.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_ENOENT: it was not announced; HOTMEM_EBUSY:
// some of it is present.
//
// # Safety
// `h` is NULL or a `struct hotmem`.
int32_t hotmem_withdraw(struct hotmem *h,
                        uint64_t paddr,
                        uint64_t len);

// Adds memory that was plugged: maps it, and leaves it offline. The range consists of whole
// pageblocks of one announcement.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_ENOMEM, HOTMEM_EBUSY;
// HOTMEM_ENOENT: it was not announced.
//
// # Safety
// `h` is NULL or a `struct hotmem`. A device has put memory there, which nobody else uses.
int32_t hotmem_add(struct hotmem *h,
                   uint64_t paddr,
                   uint64_t len);

// Puts all of the range online for `kind`, one of HOTMEM_ONLINE_*, or nothing of it.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_EBUSY; HOTMEM_ENOENT: some
// of it is not present; HOTMEM_EACCES: `going_online` refused.
//
// # Safety
// `h` is NULL or a `struct hotmem`.
int32_t hotmem_online(struct hotmem *h,
                      uint64_t paddr,
                      uint64_t len,
                      uint32_t kind);

// Removes as much of the range as can be removed, pageblock by pageblock and the highest first,
// whether it is online or not. `removal` is NULL, or receives the progress.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_EBUSY: some of it could not be removed, see
// `removal`, or the control path was entered twice.
//
// # Safety
// `h` is NULL or a `struct hotmem`; `removal` is NULL or can be written.
int32_t hotmem_remove(struct hotmem *h,
                      uint64_t paddr,
                      uint64_t len,
                      struct hotmem_removal *removal);

// Returns the state (HOTMEM_STATE_*) of the memory at the start of the range, and stores in `same`
// how many bytes of the range, from its start on, have this state.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EBUSY.
//
// # Safety
// `h` is NULL or a `struct hotmem`; `same` is NULL or can be written.
int32_t hotmem_state(struct hotmem *h,
                     uint64_t paddr,
                     uint64_t len,
                     uint64_t *same);

// Makes the driver of a device that was reset and has negotiated `features`. Its memory is put
// online for `kind`, one of HOTMEM_ONLINE_*. When it shrinks, a step isolates at most `budget`
// pageblocks (2 MiB); 0 stands for 64.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE (of the configuration, too), HOTMEM_EALREADY.
//
// # Safety
// `d` is NULL or a `struct hotmem_vmem` that was zeroes at first, `h` is NULL or a `struct hotmem`,
// `config` is NULL or a configuration. The device's memory is used by nobody else.
int32_t hotmem_vmem_init(struct hotmem_vmem *d,
                         struct hotmem *h,
                         const struct hotmem_vmem_config *config,
                         uint64_t features,
                         uint32_t kind,
                         uint64_t budget);

// Continues with what the host requests, up to the next request to the device. `now_ns` is the
// time since any fixed moment. `config` was read after the answer was taken off the queue.
// `answer` holds the `len` bytes of the answer to the last request if there is a new one, and is
// NULL otherwise.
//
// Call it when the device interrupts, and at the time `until_ns` that it has returned. Returns one
// of HOTMEM_STEP_*, and fills `request` accordingly. At most one request is on the queue; its
// buffers belong to the device until it has answered.
//
// # Errors
// HOTMEM_EIO: the driver has stopped. HOTMEM_EFAULT, HOTMEM_EINVAL; HOTMEM_EBUSY: the control path
// was entered twice. After these three nothing has changed.
//
// # Safety
// `d` is NULL or a `struct hotmem_vmem`; the other pointers are NULL or fit their types and `len`.
int32_t hotmem_vmem_step(struct hotmem_vmem *d,
                         uint64_t now_ns,
                         const struct hotmem_vmem_config *config,
                         const uint8_t *answer,
                         size_t len,
                         struct hotmem_vmem_request *request);

// Writes the state of a device to `status`.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
//
// # Safety
// `d` is NULL or a `struct hotmem_vmem`; `status` is NULL or can be written.
int32_t hotmem_vmem_get_status(struct hotmem_vmem *d,
                               struct hotmem_vmem_status *status);

// Writes why the requested size is not reached, or why the driver has stopped, to the `size` bytes
// at `text`, with a terminating NUL; an empty text if there is no reason.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY; HOTMEM_ENOSPC: `size` is 0.
//
// # Safety
// `d` is NULL or a `struct hotmem_vmem`; `text` is NULL or `size` bytes can be written there.
int32_t hotmem_vmem_explain(struct hotmem_vmem *d,
                            char *text,
                            size_t size);

// Returns the features to accept of those that the device offers, given what the kernel does with
// freed memory. `options` may be NULL.
//
// # Safety
// `options` is NULL or options.
uint64_t hotmem_balloon_accept(uint64_t offered,
                               const struct hotmem_balloon_options *options);

// Makes the driver of a device that was reset and has negotiated `features`, a subset of
// HOTMEM_BALLOON_FEATURES (`hotmem_balloon_accept`). `options` may be NULL.
//
// # Errors
// HOTMEM_EFAULT; HOTMEM_EINVAL, also if the host could destroy what the kernel relies on in free
// memory; HOTMEM_EALREADY: `b` has a driver already, or the machine has another reporter.
//
// # Safety
// `b` is NULL or a `struct hotmem_balloon` that was zeroes at first, `h` is NULL or a `struct
// hotmem`, `config` is NULL or a configuration, `options` is NULL or options.
int32_t hotmem_balloon_init(struct hotmem_balloon *b,
                            struct hotmem *h,
                            const struct hotmem_balloon_config *config,
                            uint64_t features,
                            const struct hotmem_balloon_options *options);

// Continues with what the host requests. `used` is a queue on which the device has used its
// buffer, or HOTMEM_QUEUE_NONE. Returns one of HOTMEM_STEP_*, and fills `message` accordingly.
//
// Call it when the device interrupts, when `wake_reporter` was called, and at the time `until_ns`
// that it has returned. It allocates and frees frames, but does not enter the control path, so the
// caller may use another lock for it.
//
// # Errors
// HOTMEM_EIO: the driver has stopped. HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY: nothing has
// changed.
//
// # Safety
// `b` is NULL or a `struct hotmem_balloon`; the other pointers are NULL or fit their types.
int32_t hotmem_balloon_step(struct hotmem_balloon *b,
                            uint64_t now_ns,
                            const struct hotmem_balloon_config *config,
                            int32_t used,
                            struct hotmem_balloon_message *message);

// Takes back all memory that the device had, and starts the driver again. The device was reset and
// has negotiated the same features.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
//
// # Safety
// `b` is NULL or a `struct hotmem_balloon` whose device was reset, so that it does not access
// memory any more; `config` is NULL or a configuration.
int32_t hotmem_balloon_reset(struct hotmem_balloon *b,
                             const struct hotmem_balloon_config *config);

// For `hotmem_hooks.migrate`: exchanges memory in the balloon for other memory. Returns what
// `migrate` is to return, one of HOTMEM_MIGRATE_*.
//
// # Errors
// HOTMEM_ENOENT: the range is not in the balloon. HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE,
// HOTMEM_EBUSY.
//
// # Safety
// `b` is NULL or a `struct hotmem_balloon`.
int32_t hotmem_balloon_migrate(struct hotmem_balloon *b,
                               uint64_t paddr,
                               uint64_t len);

// Requests `frames` frames back from the balloon, because the kernel runs out of memory; 0 ends
// the request. Call `hotmem_balloon_step`, then try the allocation again. The host must allow this
// (VIRTIO_BALLOON_F_DEFLATE_ON_OOM).
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
//
// # Safety
// `b` is NULL or a `struct hotmem_balloon`.
int32_t hotmem_balloon_need(struct hotmem_balloon *b,
                            uint64_t frames);

// Writes the state of a balloon to `status`.
//
// # Errors
// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_EBUSY.
//
// # Safety
// `b` is NULL or a `struct hotmem_balloon`; `status` is NULL or can be written.
int32_t hotmem_balloon_get_status(struct hotmem_balloon *b,
                                  struct hotmem_balloon_status *status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOTMEM_H */
