/* Drives virtio devices on PCI (virtio 1.3, 4.1) with split queues (virtio 1.3, 2.7). */
#include "kernel.h"

#define VIRTIO 0x1af4
/* The number of PCI functions on 32 buses, 256 on each. */
#define FUNCTIONS (32 << 8)
/* The number of capabilities that fit in configuration space. A longer list has a cycle. */
#define MAX_CAPABILITIES 48
/* The time that a device may take to reset itself, and the number of reads in which its
   configuration may change. */
#define RESET_NS 1000000000
#define MAX_CHANGES 100
/* The offsets of fields of the common configuration. */
enum { FEATURE_SELECT = 0, FEATURES = 4, ACCEPT_SELECT = 8, ACCEPT = 12, STATUS = 20,
       GENERATION = 21, SELECT = 22, SIZE = 24, ENABLE = 28, NOTIFY_OFFSET = 30, DESCRIPTORS = 32,
       AVAILABLE = 40, USED = 48 };
/* Bits of the device's status. Some devices accept only one new bit in a write. */
enum { ACKNOWLEDGE = 1, DRIVER = 2, DRIVER_OK = 4, FEATURES_OK = 8, NEEDS_RESET = 64, FAILED = 128 };

static void write8(volatile uint8_t *at, uint8_t value) { *at = value; }
static void write16(volatile uint8_t *at, uint16_t value) { *(volatile uint16_t *)at = value; }
static void write32(volatile uint8_t *at, uint32_t value) { *(volatile uint32_t *)at = value; }
static uint16_t read16(volatile uint8_t *at) { return *(volatile uint16_t *)at; }
static uint32_t read32(volatile uint8_t *at) { return *(volatile uint32_t *)at; }

static void write64(volatile uint8_t *at, uint64_t value)
{
    write32(at, (uint32_t)value);
    write32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t pci_read(unsigned function, unsigned at)
{
    out32(0xcf8, 1u << 31 | function << 8 | (at & ~3u));
    return in32(0xcfc);
}

static void pci_write(unsigned function, unsigned at, uint32_t value)
{
    out32(0xcf8, 1u << 31 | function << 8 | at);
    out32(0xcfc, value);
}

/* Maps the registers that a capability describes, and returns their address. */
static volatile uint8_t *map_structure(unsigned function, unsigned capability)
{
    unsigned bar = 0x10 + 4 * (pci_read(function, capability + 4) & 7);
    uint32_t low = pci_read(function, bar), len = pci_read(function, capability + 12);
    uint64_t paddr = low & ~15u;

    if ((low & 6) == 4)
        paddr |= (uint64_t)pci_read(function, bar + 4) << 32;
    paddr += pci_read(function, capability + 8);
    map_registers(paddr, len);
    return pointer(paddr);
}

bool find_device(struct device *device, uint16_t id)
{
    unsigned function = 0, left = MAX_CAPABILITIES, at;

    /* A transitional device has another ID. The ID of a transitional balloon is 0x1002. */
    while (pci_read(function, 0) != ((0x1040u + id) << 16 | VIRTIO)
           && (id != 5 || pci_read(function, 0) != (0x1002u << 16 | VIRTIO)))
        if (++function == FUNCTIONS)
            return false;
    /* Enable memory decoding and bus mastering. */
    pci_write(function, 4, pci_read(function, 4) | 6);
    device->id = id;
    for (at = pci_read(function, 0x34) & 0xfc; at; at = pci_read(function, at) >> 8 & 0xfc) {
        uint32_t kind = pci_read(function, at) & 0xff0000ff;

        if (!left--)
            fail("the list of the device's capabilities has a cycle", -device->id);
        if (kind == (1 << 24 | 9))
            device->common = map_structure(function, at);
        if (kind == (2 << 24 | 9)) {
            device->notify = map_structure(function, at);
            device->notify_multiplier = pci_read(function, at + 16);
        }
        if (kind == (4 << 24 | 9))
            device->config = map_structure(function, at);
    }
    if (!device->common || !device->notify || !device->config)
        fail("the device is not of virtio 1.0", -device->id);
    return true;
}

uint64_t offered_features(struct device *device)
{
    uint64_t features, began = now();

    write8(device->common + STATUS, 0);
    while (device->common[STATUS])
        if (now() - began > RESET_NS)
            fail("the device does not reset itself", -device->id);
    write8(device->common + STATUS, ACKNOWLEDGE);
    write8(device->common + STATUS, ACKNOWLEDGE | DRIVER);
    write32(device->common + FEATURE_SELECT, 0);
    features = read32(device->common + FEATURES);
    write32(device->common + FEATURE_SELECT, 1);
    return features | (uint64_t)read32(device->common + FEATURES) << 32;
}

void accept_features(struct device *device, uint64_t features)
{
    write32(device->common + ACCEPT_SELECT, 0);
    write32(device->common + ACCEPT, (uint32_t)features);
    write32(device->common + ACCEPT_SELECT, 1);
    write32(device->common + ACCEPT, (uint32_t)(features >> 32));
    write8(device->common + STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
    if (!(device->common[STATUS] & FEATURES_OK))
        fail("the device refuses its features", -device->id);
}

void set_up_queue(struct device *device, struct queue *queue, uint16_t number)
{
    volatile uint8_t *common = device->common;

    queue->paddr = frame_for("a frame for a queue");
    queue->page = pointer(queue->paddr);
    for (unsigned at = 0; at < FRAME; at++)
        write8(queue->page + at, 0);
    /* Set the flag of the available ring that disables interrupts. */
    queue->page[1024] = 1;
    queue->number = number;
    write16(common + SELECT, number);
    if (read16(common + SIZE) < QUEUE_SIZE)
        fail("a queue is too small", -device->id);
    write16(common + SIZE, QUEUE_SIZE);
    write64(common + DESCRIPTORS, queue->paddr);
    write64(common + AVAILABLE, queue->paddr + 1024);
    write64(common + USED, queue->paddr + 2048);
    queue->doorbell = (volatile uint16_t *)(device->notify
        + read16(common + NOTIFY_OFFSET) * device->notify_multiplier);
    write16(common + ENABLE, 1);
}

void set_running(struct device *device)
{
    write8(device->common + STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    must_run(device);
}

void must_run(struct device *device)
{
    if ((device->common[STATUS] & (DRIVER_OK | NEEDS_RESET | FAILED)) != DRIVER_OK)
        fail("the device does not run", -device->id);
}

void send(struct queue *queue, const struct buffer *buffers, unsigned count)
{
    volatile uint16_t *available = (volatile uint16_t *)(queue->page + 1024);

    for (unsigned at = 0; at < count; at++) {
        volatile uint8_t *descriptor = queue->page + 16 * at;

        write64(descriptor, buffers[at].paddr);
        write32(descriptor + 8, buffers[at].len);
        /* Flag 1 means that another descriptor follows, flag 2 that the device writes. */
        write16(descriptor + 12, (at + 1 < count) | buffers[at].device_writes << 1);
        write16(descriptor + 14, (uint16_t)(at + 1));
    }
    available[2 + available[1] % QUEUE_SIZE] = 0;
    __atomic_store_n(&available[1], available[1] + 1, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    *queue->doorbell = queue->number;
}

bool answered(struct queue *queue)
{
    uint16_t *used = (uint16_t *)(queue->page + 2050);

    if (!queue->page || __atomic_load_n(used, __ATOMIC_ACQUIRE) == queue->used)
        return false;
    queue->used++;
    return true;
}

uint32_t config32(struct device *device, unsigned at)
{
    return read32(device->config + at);
}

uint16_t config16(struct device *device, unsigned at)
{
    return read16(device->config + at);
}

bool config_changed(struct device *device, unsigned reads, uint8_t before)
{
    if (device->common[GENERATION] == before)
        return false;
    if (reads > MAX_CHANGES)
        fail("the device's configuration keeps changing", -device->id);
    return true;
}

uint8_t generation(struct device *device)
{
    return device->common[GENERATION];
}
