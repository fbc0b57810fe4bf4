/* Calls everything, as C and as C++. It is compiled, not run. */
#include "hotmem.h"

static struct hotmem instance;
static struct hotmem_virtio_mem virtio_mem;
static struct hotmem_balloon balloon;
static struct hotmem_config config;
static struct hotmem_hooks hooks;
static struct hotmem_request frame_request;
static struct hotmem_counts counts;
static struct hotmem_removal removal;
static struct hotmem_virtio_mem_config mem_config;
static struct hotmem_virtio_mem_request request;
static struct hotmem_virtio_mem_status mem_status;
static struct hotmem_balloon_config balloon_config;
static struct hotmem_balloon_options options;
static struct hotmem_balloon_answer balloon_answer;
static struct hotmem_balloon_message message;
static struct hotmem_balloon_status balloon_status;

static uint32_t cpu(void *ctx)
{
    return ctx == NULL;
}

static void map(void *ctx, uint64_t paddr, uint64_t len, struct hotmem_tables *tables)
{
    (void)ctx, (void)paddr, (void)len;
    while (hotmem_take_table(tables) != HOTMEM_NONE) {
    }
}

static void release(void *ctx, uint64_t paddr, uint64_t len, struct hotmem_released *tables)
{
    (void)ctx, (void)len;
    hotmem_free_table(tables, paddr);
}

static int32_t going_online(void *ctx, uint64_t paddr, uint64_t len, bool movable)
{
    return ctx == NULL && paddr == len && movable;
}

static int32_t migrate(void *ctx, uint64_t paddr, uint64_t len)
{
    (void)ctx;
    return hotmem_balloon_migrate(&balloon, paddr, len);
}

void hotmem_panic(const char *text, size_t len)
{
    (void)text, (void)len;
    for (;;) {
    }
}

int call(void *direct_map, char *text);

int call(void *direct_map, char *text)
{
    uint64_t paddr = 0, same_state_len = 0;
    uint8_t answer[10] = {0};
    bool is_zero = false;

    hooks.cpu = cpu;
    hooks.map = map;
    hooks.release_tables = release;
    hooks.going_online = going_online;
    hooks.migrate = migrate;
    config.hooks = &hooks;
    frame_request.frames = 512;
    frame_request.flags = HOTMEM_MOVABLE | HOTMEM_NEAR;
    return hotmem_configure(&instance, &config)
        || hotmem_boot_add(&instance, 0, 4096, HOTMEM_RAM)
        || hotmem_boot(&instance, direct_map, 0)
        || hotmem_alloc(&instance, &frame_request, &paddr)
        || hotmem_free(&instance, paddr, 512)
        || hotmem_alloc_frame(&instance) < 0
        || hotmem_free_frame(&instance, paddr)
        || hotmem_get_counts(&instance, &counts)
        || hotmem_keep_zero_marks(&instance)
        || hotmem_alloc_with_contents(&instance, &frame_request, &paddr, &is_zero)
        || hotmem_alloc_zeroed(&instance, &frame_request, &paddr)
        || hotmem_alloc_unzeroed(&instance, &paddr)
        || hotmem_free_zeroed(&instance, paddr, 512)
        || hotmem_announce(&instance, 0, 0, 0)
        || hotmem_add(&instance, 0, 0)
        || hotmem_add_zeroed(&instance, 0, 0)
        || hotmem_online(&instance, 0, 0, HOTMEM_ONLINE_MOVABLE)
        || hotmem_remove(&instance, 0, 0, &removal)
        || hotmem_state(&instance, 0, 0, &same_state_len) != HOTMEM_STATE_ABSENT
        || hotmem_withdraw(&instance, 0, 0)
        || hotmem_virtio_mem_init(&virtio_mem, &instance, &mem_config, HOTMEM_VIRTIO_MEM_FEATURES, 0, 0)
        || hotmem_virtio_mem_step(&virtio_mem, 0, &mem_config, answer, 10, &request) < 0
        || hotmem_virtio_mem_reset(&virtio_mem, &mem_config)
        || hotmem_virtio_mem_withdraw(&virtio_mem) != HOTMEM_STEP_IDLE
        || hotmem_virtio_mem_get_status(&virtio_mem, &mem_status)
        || hotmem_virtio_mem_explain(&virtio_mem, text, 80)
        || hotmem_balloon_accept(HOTMEM_BALLOON_FEATURES, &options) == 0
        || hotmem_balloon_init(&balloon, &instance, &balloon_config, 0, &options)
        || hotmem_balloon_step(&balloon, 0, &balloon_config, &balloon_answer, &message) < 0
        || hotmem_balloon_reset(&balloon, &balloon_config)
        || hotmem_balloon_need(&balloon, 1)
        || hotmem_balloon_get_status(&balloon, &balloon_status);
}
