/* Calls the functions that the header defines as inline functions. Stands for the library, and
   returns the number of the first call whose result is wrong. */
#include "hotmem.h"

static struct hotmem instance;
static struct hotmem *volatile null_pointer;
static struct hotmem *volatile pointer = &instance;

int64_t hotmem_alloc_frame_unchecked(struct hotmem *h)
{
    return h == &instance ? 4096 : -1;
}

int32_t hotmem_free_frame_unchecked(struct hotmem *h, uint64_t paddr)
{
    return h == &instance && paddr == 4096 ? 0 : -1;
}

int main(void)
{
    struct hotmem *unaligned = (struct hotmem *)((uintptr_t)pointer + 8);

    if (hotmem_alloc_frame(&instance) != 4096 || hotmem_alloc_frame(pointer) != 4096)
        return 1;
    if (hotmem_free_frame(&instance, 4096) || hotmem_free_frame(pointer, 4096))
        return 2;
    if (hotmem_alloc_frame(null_pointer) != HOTMEM_EFAULT)
        return 3;
    if (hotmem_free_frame(null_pointer, 4096) != HOTMEM_EFAULT)
        return 4;
    if (hotmem_alloc_frame(unaligned) != HOTMEM_EINVAL)
        return 5;
    if (hotmem_free_frame(unaligned, 4096) != HOTMEM_EINVAL)
        return 6;
    return 0;
}
