/* A kernel in C whose memory grows and shrinks as its host requests. The kernel uses all plugged
   memory and checks every word of it. It prints events on the serial port, each as a line of JSON
   in the format that Hotmem's lab reads. */
#include "kernel.h"

/* The size that the host requests to signal that it has no more requests. */
#define END_SIZE (2 * MIB)
/* If the requested size is not a multiple of this size, the kernel keeps all memory in use until an
   unplug is blocked by it. Otherwise the kernel frees the memory after the check. */
#define FREED_MULTIPLE (64 * MIB)
/* The size of an allocation. */
#define ALLOCATION_SIZE (64 * MIB)
#define MAX_ALLOCATIONS 256

/* The beginning of PVH's start_info, and an entry of its memory map. */
struct start_info {
    uint32_t magic, version, flags, modules;
    uint64_t module_list, command_line, rsdp, memory_map;
    uint32_t entries;
};
struct memory {
    uint64_t paddr, len;
    uint32_t kind, reserved;
};

extern char image_start[], image_end[];

struct hotmem machine;
static uint64_t allocations[MAX_ALLOCATIONS];
static unsigned allocation_count;

static uint64_t lower_of(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* Adds RAM that the boot code has not mapped. Its page tables come from the RAM that is mapped. */
static void add_ram(uint64_t paddr, uint64_t end)
{
    const uint64_t pageblock = 2 * MIB;
    uint64_t len;

    paddr = (paddr + pageblock - 1) & -pageblock;
    end &= -pageblock;
    if (paddr >= end)
        return;
    len = end - paddr;
    must(hotmem_announce(&machine, paddr, len, 0), "RAM above 4 GiB: announce");
    must(hotmem_add(&machine, paddr, len), "RAM above 4 GiB: add");
    must(hotmem_online(&machine, paddr, len, HOTMEM_ONLINE_KERNEL), "RAM above 4 GiB: online");
}

static void boot(const struct start_info *info)
{
    const struct hotmem_config config = { .hooks = &mapping_hooks, .low_end = 4096 * MIB };
    const struct memory *map = pointer(info->memory_map);

    must(hotmem_configure(&machine, &config), "the configuration");
    for (unsigned at = 0; at < info->entries; at++)
        if (map[at].kind == 1 && map[at].paddr < MAPPED_AT_BOOT)
            must(hotmem_boot_add(&machine, map[at].paddr,
                                 lower_of(map[at].len, MAPPED_AT_BOOT - map[at].paddr), HOTMEM_RAM),
                 "RAM");
    must(hotmem_boot_add(&machine, 0, MIB, HOTMEM_RESERVED), "the first MiB");
    must(hotmem_boot_add(&machine, (uint64_t)image_start, (uint64_t)(image_end - image_start),
                         HOTMEM_RESERVED), "the image");
    must(hotmem_boot(&machine, pointer(0), MAPPED_AT_BOOT), "boot");
    for (unsigned at = 0; at < info->entries; at++) {
        uint64_t end = map[at].paddr + map[at].len;

        if (map[at].kind == 1 && end > MAPPED_AT_BOOT)
            add_ram(map[at].paddr > MAPPED_AT_BOOT ? map[at].paddr : MAPPED_AT_BOOT, end);
    }
}

static struct hotmem_counts current_counts(void)
{
    struct hotmem_counts counts;

    hotmem_get_counts(&machine, &counts);
    return counts;
}

/* Fails unless each word of the allocations holds its own number. */
static void check_contents(void)
{
    for (unsigned number = 0; number < allocation_count; number++) {
        const uint64_t *words = pointer(allocations[number]);
        uint64_t wrong = 0;

        for (uint64_t at = 0; at < ALLOCATION_SIZE / 8; at++)
            wrong |= words[at] ^ (allocations[number] + at);
        if (wrong)
            fail("memory lost its contents", HOTMEM_EIO);
    }
}

static void free_all(void)
{
    while (allocation_count)
        must(hotmem_free(&machine, allocations[--allocation_count], ALLOCATION_SIZE / FRAME), "free");
}

/* Allocates all free memory, writes each word of it, and checks the contents. */
static void use_memory(void)
{
    const struct hotmem_request want = { .frames = ALLOCATION_SIZE / FRAME };

    while (allocation_count < MAX_ALLOCATIONS
           && !hotmem_alloc(&machine, &want, &allocations[allocation_count])) {
        uint64_t *words = pointer(allocations[allocation_count]);

        for (uint64_t at = 0; at < ALLOCATION_SIZE / 8; at++)
            words[at] = allocations[allocation_count] + at;
        allocation_count++;
    }
    check_contents();
}

/* Plugs and unplugs memory until the host has no more requests. */
static void run(void)
{
    struct hotmem_virtio_mem_status status;
    uint64_t reached = 0, explained_size = END_SIZE, began, bytes;

    for (;;) {
        began = now();
        do {
            poll_virtio_mem(&status);
            /* Request whole pageblocks, so that the next additions need not ask again. */
            if (status.missing_frames)
                request_from_balloon((status.missing_frames + 511) & ~511UL);
            else if (status.state == HOTMEM_VIRTIO_MEM_REACHED)
                request_from_balloon(0);
            if (status.requested == reached)
                began = now();
            /* Print the event only once for each request. */
            if (status.state == HOTMEM_VIRTIO_MEM_PENDING && status.requested != explained_size) {
                char why[80];

                explained_size = status.requested;
                explain_virtio_mem(why, sizeof why);
                check_contents();
                free_all();
                print("{\"event\":\"pending\",\"target\":%u,\"plugged\":%u,\"why\":\"%s\"}\n",
                      status.requested, status.plugged, why);
            }
            poll_reporting();
        } while (status.requested == reached || status.state != HOTMEM_VIRTIO_MEM_REACHED);
        print("{\"event\":\"resized\",\"target\":%u,\"plugged\":%u,\"online\":%u,\"free\":%u,"
              "\"requests\":%u,\"us\":%u}\n", status.requested, status.plugged,
              current_counts().online * FRAME, current_counts().free * FRAME, status.requests,
              (now() - began) / 1000);
        if (status.requested == END_SIZE)
            return;
        if (status.requested > reached) {
            use_memory();
            bytes = allocation_count * ALLOCATION_SIZE;
            if (status.requested % FREED_MULTIPLE == 0)
                free_all();
            print("{\"event\":\"verified\",\"bytes\":%u}\n", bytes);
        }
        reached = status.requested;
    }
}

_Noreturn void kernel_main(uint32_t start_info)
{
    start_clock();
    boot(pointer(start_info));
    bool device = start_virtio_mem();

    start_reporting();
    print("\n{\"event\":\"boot\",\"ms\":%u,\"boot_memory\":%u,\"cpus\":%u}\n", now() / 1000000,
          current_counts().present * FRAME, 1UL);
    if (device)
        run();
    end(true);
}
