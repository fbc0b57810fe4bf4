/* Drives the virtio-mem device. */
#include "kernel.h"

/* The size of a response of the device. */
#define RESPONSE_SIZE 10

static struct device device;
static struct queue queue;
static struct hotmem_virtio_mem driver;
static struct hotmem_virtio_mem_config config;

/* Reads the device's configuration. The node has 2 bytes, and padding follows it. Repeats the read
   if the device has changed the configuration meanwhile. */
static void read_config(void)
{
    unsigned reads = 0;
    uint8_t before;

    do {
        before = generation(&device);
        for (unsigned at = 0; at < sizeof config; at += 4)
            if (at != 8 && at != 12)
                ((uint32_t *)&config)[at / 4] = config32(&device, at);
        config.node_id = config16(&device, 8);
    } while (config_changed(&device, ++reads, before));
}

bool start_virtio_mem(void)
{
    if (!find_device(&device, HOTMEM_VIRTIO_MEM_DEVICE_ID))
        return false;
    uint64_t features = offered_features(&device) & HOTMEM_VIRTIO_MEM_FEATURES;
    accept_features(&device, features);
    set_up_queue(&device, &queue, 0);
    set_running(&device);
    read_config();
    must(hotmem_virtio_mem_init(&driver, &machine, &config, features, HOTMEM_ONLINE_KERNEL, 0),
         "the virtio-mem device");
    return true;
}

void explain_virtio_mem(char *text, size_t size)
{
    hotmem_virtio_mem_explain(&driver, text, size);
}

/* Steps the driver until the driver has nothing to do. */
void poll_virtio_mem(struct hotmem_virtio_mem_status *status)
{
    struct hotmem_virtio_mem_request request;
    uint8_t *messages = queue.page + MESSAGES;
    int step;

    do {
        const uint8_t *response = answered(&queue) ? messages + 32 : NULL;

        must_run(&device);
        read_config();
        step = hotmem_virtio_mem_step(&driver, now(), &config, response, RESPONSE_SIZE, &request);
        if (step == HOTMEM_STEP_SEND) {
            const struct buffer buffers[] = {
                { queue.paddr + MESSAGES, sizeof request.bytes, false },
                { queue.paddr + MESSAGES + 32, RESPONSE_SIZE, true },
            };

            for (unsigned at = 0; at < sizeof request.bytes; at++)
                messages[at] = request.bytes[at];
            send(&queue, buffers, 2);
        }
    } while (step == HOTMEM_STEP_SEND || step == HOTMEM_STEP_AGAIN);
    hotmem_virtio_mem_get_status(&driver, status);
    if (step < 0) {
        char why[80];

        explain_virtio_mem(why, sizeof why);
        fail(why, step);
    }
}
