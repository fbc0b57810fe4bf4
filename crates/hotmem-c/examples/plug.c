/* Plugs 64 MiB into a machine of 64 MiB, uses them, and removes them again, in an ordinary process. */
#include <hotmem.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)

static struct hotmem machine;

void hotmem_panic(const char *text, size_t len)
{
    fwrite(text, 1, len, stderr);
    abort();
}

static void must(int32_t code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", what, hotmem_strerror(code));
        exit(EXIT_FAILURE);
    }
}

static void print_counts(const char *when)
{
    struct hotmem_counts counts;

    must(hotmem_get_counts(&machine, &counts), "counts");
    printf("%s: %d MiB online, %d frames in use by the kernel and the engine\n", when,
           (int)(counts.online / 256), (int)counts.used);
}

int main(void)
{
    /* Stands for the physical addresses 0 to 128 MiB, at the offset `ram`. */
    void *ram = aligned_alloc(4096, 128 * MIB);
    struct hotmem_request page = { .frames = 512, .align = 512, .flags = HOTMEM_MOVABLE };
    struct hotmem_removal removal;
    uint64_t paddr;

    must(hotmem_boot_add(&machine, 0, 64 * MIB, HOTMEM_RAM), "boot memory");
    must(hotmem_boot(&machine, ram, 0), "boot");
    print_counts("booted");

    must(hotmem_announce(&machine, 64 * MIB, 64 * MIB, 0), "announce");
    must(hotmem_add(&machine, 64 * MIB, 64 * MIB), "add");
    must(hotmem_online(&machine, 64 * MIB, 64 * MIB, HOTMEM_ONLINE_MOVABLE), "online");
    must(hotmem_alloc(&machine, &page, &paddr), "2 MiB");
    print_counts("plugged");

    must(hotmem_free(&machine, paddr, page.frames), "free");
    must(hotmem_remove(&machine, 64 * MIB, 64 * MIB, &removal), "remove");
    print_counts("removed");
    printf("adding memory that was never announced: %s\n",
           hotmem_strerror(hotmem_add(&machine, 256 * MIB, 2 * MIB)));
    return 0;
}
