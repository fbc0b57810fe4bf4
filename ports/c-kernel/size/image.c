/* An image that contains nothing but parts of Hotmem, so that the size of these parts can be
   measured. HOTMEM_PARTS is 0 for no parts, 1 for frames, 2 for frames and hotplug, and 3 for these and
   a virtio-mem device. `cargo xtask text` links and measures the image. There is no `hotmem_panic`, so
   that the image does not link if one of these parts can panic: the text of a panic, and what formats it,
   would take 4 KiB. */
#include "hotmem.h"

#if HOTMEM_PARTS > 0
static struct hotmem machine;
static struct hotmem_config config;
static struct hotmem_request want;
static struct hotmem_counts counts;
static uint64_t number;

static int frames(void)
{
    return hotmem_configure(&machine, &config) + hotmem_boot_add(&machine, 0, 0, HOTMEM_RAM)
        + hotmem_boot(&machine, NULL, 0) + hotmem_alloc(&machine, &want, &number)
        + hotmem_free(&machine, 0, 1) + (int)hotmem_alloc_frame(&machine)
        + hotmem_free_frame(&machine, 0) + hotmem_get_counts(&machine, &counts);
}
#endif

#if HOTMEM_PARTS > 1
static struct hotmem_removal removal;

static int hotplug(void)
{
    return hotmem_announce(&machine, 0, 0, 0) + hotmem_add(&machine, 0, 0)
        + hotmem_online(&machine, 0, 0, 0) + hotmem_remove(&machine, 0, 0, &removal)
        + hotmem_withdraw(&machine, 0, 0) + hotmem_state(&machine, 0, 0, &number);
}
#endif

#if HOTMEM_PARTS > 2
static struct hotmem_virtio_mem device;
static struct hotmem_virtio_mem_config device_config;
static struct hotmem_virtio_mem_request request;
static struct hotmem_virtio_mem_status status;
static char text[80];

static int virtio_mem(void)
{
    return hotmem_virtio_mem_init(&device, &machine, &device_config, 0, 0, 0)
        + hotmem_virtio_mem_step(&device, 0, &device_config, NULL, 0, &request)
        + hotmem_virtio_mem_get_status(&device, &status) + hotmem_virtio_mem_explain(&device, text, 80);
}
#endif

int start(void);

int start(void)
{
    int code = 0;

#if HOTMEM_PARTS > 0
    code += frames();
#endif
#if HOTMEM_PARTS > 1
    code += hotplug();
#endif
#if HOTMEM_PARTS > 2
    code += virtio_mem();
#endif
    return code;
}
