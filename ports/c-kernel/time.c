/* Measures time by the processor's time stamp counter. */
#include "kernel.h"

/* The rate of the 8254 timer. */
#define PIT_HZ 1193182
#define PIT_COUNT (PIT_HZ / 100)

static uint64_t start_ticks, ticks_per_10_ms;

static uint64_t ticks(void)
{
    uint32_t low, high;

    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

void start_clock(void)
{
    /* Channel 2 counts down for 10 ms. Bit 5 of port 0x61 is the channel's output, which is set at
       the end. */
    out8(0x61, (in8(0x61) & ~2u) | 1);
    out8(0x43, 0xb0);
    out8(0x42, PIT_COUNT & 0xff);
    out8(0x42, PIT_COUNT >> 8);
    start_ticks = ticks();
    while (!(in8(0x61) & 0x20)) {
    }
    ticks_per_10_ms = ticks() - start_ticks;
}

uint64_t now(void)
{
    return (ticks() - start_ticks) * 10000 / (ticks_per_10_ms / 1000);
}
