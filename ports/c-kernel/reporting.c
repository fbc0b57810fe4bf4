/* Reports free memory to the host by the virtio-balloon device. */
#include "kernel.h"

enum { STATS_VQ = 1 << 1, HINT = 1 << 3, REPORTING = 1 << 5 };

static struct device device;
static struct queue queues[5];
static struct hotmem_balloon driver;
static struct hotmem_balloon_config config;
static struct hotmem_balloon_message message;
/* The total number of reported frames when the last event was printed. */
static uint64_t printed;

void start_reporting(void)
{
    const struct hotmem_balloon_options options = { .flags = HOTMEM_REPORT_EAGERLY };

    if (!find_device(&device, HOTMEM_BALLOON_DEVICE_ID))
        return;
    uint64_t offered = offered_features(&device);
    uint64_t features = hotmem_balloon_accept(offered, &options) & ~(uint64_t)(STATS_VQ | HINT);
    accept_features(&device, features);
    set_up_queue(&device, &queues[HOTMEM_QUEUE_INFLATE], 0);
    set_up_queue(&device, &queues[HOTMEM_QUEUE_DEFLATE], 1);
    /* Queue numbers have no gaps: only features that the device offers have a queue. */
    if (features & REPORTING)
        set_up_queue(&device, &queues[HOTMEM_QUEUE_REPORTS],
                     2 + !!(offered & STATS_VQ) + !!(offered & HINT));
    set_running(&device);
    config.num_pages = config32(&device, 0);
    must(hotmem_balloon_init(&driver, &machine, &config, features, &options), "the balloon");
}

void request_from_balloon(uint64_t frames)
{
    if (device.id)
        must(hotmem_balloon_need(&driver, frames), "the balloon");
}

static void send_message(void)
{
    struct queue *queue = &queues[message.queue];
    struct buffer buffers[HOTMEM_BALLOON_RANGES];

    if (message.len == 0) {
        for (unsigned at = 0; at < message.count; at++)
            buffers[at] = (struct buffer){ message.ranges[at].paddr,
                                           (uint32_t)message.ranges[at].len, true };
        send(queue, buffers, message.count);
        return;
    }
    for (unsigned at = 0; at < message.len; at++)
        queue->page[MESSAGES + at] = message.bytes[at];
    buffers[0] = (struct buffer){ queue->paddr + MESSAGES, message.len, false };
    send(queue, buffers, 1);
}

/* Steps the driver until the driver has nothing to do. Prints the amount of memory that was
   reported. */
void poll_reporting(void)
{
    struct hotmem_balloon_status status;
    /* The kernel does not ask the device what memory contains, so the queue says enough. */
    struct hotmem_balloon_answer answer = { 0 };
    bool has_answer;
    int step;

    if (!device.id)
        return;
    must_run(&device);
    config.num_pages = config32(&device, 0);
    do {
        has_answer = false;
        for (int queue = 0; queue < 5 && !has_answer; queue++) {
            answer.queue = queue;
            has_answer = answered(&queues[queue]);
        }
        step = hotmem_balloon_step(&driver, now(), &config, has_answer ? &answer : NULL, &message);
        if (step == HOTMEM_STEP_SEND)
            send_message();
        else if (step == HOTMEM_STEP_SET_ACTUAL)
            ((volatile uint32_t *)device.config)[1] = message.value;
        must(step == HOTMEM_STEP_RESET ? HOTMEM_EIO : step, "the balloon");
    } while (step == HOTMEM_STEP_SEND || step == HOTMEM_STEP_SET_ACTUAL
             || step == HOTMEM_STEP_AGAIN || has_answer);
    hotmem_balloon_get_status(&driver, &status);
    if (step == HOTMEM_STEP_IDLE && status.reported != printed) {
        print("{\"event\":\"reported\",\"bytes\":%u,\"requests\":%u,\"hinted\":0}\n",
              (status.reported - printed) * FRAME, status.reports);
        printed = status.reported;
    }
}
