/* Allocates and frees frames repeatedly, by the interface in C or in Rust. The first argument names
   the interface, the second is the number of times: `pair c 1000`, `pair rust 1000`. `pair ccpu
   1000` does the same as `pair c 1000`, with a function for CPU numbers. The interface in Rust may
   allocate runs: `pair rust 1000 8` allocates 8 frames each time, and the next argument names the
   kind of the request, and perhaps a question, as in `kinds` and `questions`. With the last argument
   `divided`, a frame and a run stay in use. `cargo xtask pair` counts the instructions. */
#include "hotmem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY (64UL << 20)
#define PAGEBLOCK (2UL << 20)

/* The kinds and questions, in the order of `Kind` and `Question` in src/lib.rs. */
static const char *const kinds[] = { "constant", "hidden", "aligned" };
static const char *const questions[] = { "", "asking", "asking-among-zero" };

int32_t rust_pairs(void *memory, uint64_t len, uint64_t pairs, uint64_t frames, int kind,
                   int question, bool is_divided);

static struct hotmem machine;

void hotmem_panic(const char *text, size_t len)
{
    fwrite(text, 1, len, stderr);
    abort();
}

static uint32_t cpu(void *ctx)
{
    (void)ctx;
    return 0;
}

static int32_t c_pairs(void *memory, uint64_t len, uint64_t pairs, bool has_cpu_numbers)
{
    struct hotmem_hooks hooks = { .cpu = has_cpu_numbers ? cpu : NULL };
    struct hotmem_config config = { .hooks = &hooks };

    if (hotmem_configure(&machine, &config) || hotmem_boot_add(&machine, 0, len, HOTMEM_RAM)
        || hotmem_boot(&machine, memory, len))
        return 1;
    for (uint64_t pair = 0; pair < pairs; pair++) {
        int64_t frame = hotmem_alloc_frame(&machine);

        if (frame < 0 || hotmem_free_frame(&machine, (uint64_t)frame))
            return 2;
    }
    return 0;
}

int main(int count, char **arguments)
{
    void *memory = aligned_alloc(PAGEBLOCK, MEMORY);

    if (count < 3 || !memory)
        return 3;
    uint64_t pairs = strtoull(arguments[2], NULL, 10);

    if (!strcmp(arguments[1], "rust")) {
        uint64_t frames = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
        bool is_divided = !strcmp(arguments[count - 1], "divided");
        int kind = 0, question = 0;

        for (int i = 0; i < 3; i++) {
            kind = count > 4 && !strcmp(arguments[4], kinds[i]) ? i : kind;
            question = count > 5 && !strcmp(arguments[5], questions[i]) ? i : question;
        }
        return rust_pairs(memory, MEMORY, pairs, frames, kind, question, is_divided);
    }
    return c_pairs(memory, MEMORY, pairs, !strcmp(arguments[1], "ccpu"));
}
