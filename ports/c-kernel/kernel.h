/* Declares what the files of the kernel use of each other. */
#pragma once

#include "hotmem.h"

#define FRAME 4096UL
#define MIB (1UL << 20)
/* The physical memory that the boot code maps: 4 GiB from address 0 up. */
#define MAPPED_AT_BOOT (4096 * MIB)
/* The virtual address of physical address 0. */
#define DIRECT_MAP 0xffff800000000000UL

/* The engine's state, which main.c defines. */
extern struct hotmem machine;

/* Returns the address of physical memory in the direct map. */
static inline void *pointer(uint64_t paddr)
{
    return (void *)(DIRECT_MAP + paddr);
}

#define OUT(size, port, value) __asm__ volatile("out" size " %0, %1" : : "a"(value), "Nd"(port))
#define IN(size, port, value) __asm__ volatile("in" size " %1, %0" : "=a"(value) : "Nd"(port))
static inline void out8(uint16_t port, uint8_t value) { OUT("b", port, value); }
static inline void out32(uint16_t port, uint32_t value) { OUT("l", port, value); }
static inline uint8_t in8(uint16_t port) { uint8_t value; IN("b", port, value); return value; }
static inline uint32_t in32(uint16_t port) { uint32_t value; IN("l", port, value); return value; }

/* serial.c: `print` supports %s (text) and %u (uint64_t). `end` ends the machine. `fail` prints an
   error and ends the machine. */
void print(const char *format, ...);
_Noreturn void end(bool passed);
_Noreturn void fail(const char *why, int code);
/* Ends the machine if `code` is an error. `what` names the call that returned it. */
static inline void must(int code, const char *what) { if (code < 0) fail(what, code); }
/* Allocates a frame. Ends the machine if no frame is free. `what` names the frame's purpose. */
static inline uint64_t frame_for(const char *what)
{
    int64_t frame = hotmem_alloc_frame(&machine);

    must(frame < 0 ? (int)frame : 0, what);
    return (uint64_t)frame;
}

/* time.c: `now` returns the nanoseconds since `start_clock`. */
void start_clock(void);
uint64_t now(void);

/* mapping.c: maps hotplugged memory, and registers above 4 GiB, in the direct map. */
extern const struct hotmem_hooks mapping_hooks;
void map_registers(uint64_t paddr, uint64_t len);

/* virtio.c: drives virtio devices on PCI. A queue has at most one request at a time. */
#define QUEUE_SIZE 32
/* The offset in a queue's page at which messages begin. */
#define MESSAGES 3072

struct device {
    uint16_t id;
    volatile uint8_t *common, *notify, *config;
    uint32_t notify_multiplier;
};

struct queue {
    /* The page with the descriptors at offset 0, the available ring at 1024, the used ring at 2048,
       and messages at MESSAGES. NULL if the queue is not set up. */
    uint8_t *page;
    uint64_t paddr;
    volatile uint16_t *doorbell;
    uint16_t number, used;
};

struct buffer {
    uint64_t paddr;
    uint32_t len;
    bool device_writes;
};

bool find_device(struct device *device, uint16_t id);
uint64_t offered_features(struct device *device);
void accept_features(struct device *device, uint64_t features);
void set_up_queue(struct device *device, struct queue *queue, uint16_t number);
void set_running(struct device *device);
/* Fails if the device has failed, needs a reset or has reset itself. */
void must_run(struct device *device);
void send(struct queue *queue, const struct buffer *buffers, unsigned count);
bool answered(struct queue *queue);
uint32_t config32(struct device *device, unsigned at);
uint16_t config16(struct device *device, unsigned at);
uint8_t generation(struct device *device);
/* Returns whether the device has changed its configuration since its generation was `before`. Fails
   if it still changes after that many `reads`. */
bool config_changed(struct device *device, unsigned reads, uint8_t before);

/* virtio_mem.c: drives the virtio-mem device. */
bool start_virtio_mem(void);
void poll_virtio_mem(struct hotmem_virtio_mem_status *status);
void explain_virtio_mem(char *text, size_t size);

/* reporting.c: reports free memory if there is a virtio-balloon device. */
void start_reporting(void);
void poll_reporting(void);
/* Requests frames for page tables back from the balloon, if there is one. 0 ends the request. */
void request_from_balloon(uint64_t frames);
