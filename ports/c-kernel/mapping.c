/* Maps memory above 4 GiB in the direct map, in pages of 2 MiB. */
#include "kernel.h"

/* Flags of an entry for a table (present, writable) and of an entry for a page (also accessed,
   dirty, 2 MiB, and not executable). */
#define PRESENT 0x03
#define PAGE (0xe3 | 1UL << 63)
#define UNCACHED 0x10
#define TABLE_OF(entry) ((uint64_t *)pointer((entry) & 0xffffffffff000))

extern uint64_t boot_root[512];

/* Returns the entry for a physical address in a table of the direct map. `level` is the table's
   level, 4 to 2. */
static uint64_t *entry_of(uint64_t *table, uint64_t paddr, unsigned level)
{
    return &table[((DIRECT_MAP + paddr) >> (12 + 9 * (level - 1))) & 511];
}

/* Returns the table that an entry points to. If the entry is empty, makes a table if `make` is set,
   and returns NULL otherwise. The frame comes from `tables`, or from the allocator if `tables` is
   NULL. */
static uint64_t *table_of(uint64_t *entry, struct hotmem_tables *tables, bool make)
{
    if (!(*entry & 1) && !make)
        return NULL;
    if (!(*entry & 1)) {
        uint64_t frame = tables ? hotmem_take_table(tables) : frame_for("a frame for registers' tables");

        for (unsigned at = 0; at < 512; at++)
            ((volatile uint64_t *)pointer(frame))[at] = 0;
        *entry = frame | PRESENT;
    }
    return TABLE_OF(*entry);
}

/* Maps a range with these flags, or unmaps the range if the flags are 0. */
static void change(uint64_t paddr, uint64_t len, uint64_t flags, struct hotmem_tables *tables)
{
    for (uint64_t end = paddr + len; paddr < end; paddr += 2 * MIB) {
        uint64_t *directory = table_of(entry_of(boot_root, paddr, 4), tables, flags);
        uint64_t *pages = directory ? table_of(entry_of(directory, paddr, 3), tables, flags) : NULL;

        if (pages)
            *entry_of(pages, paddr, 2) = flags ? paddr | flags : 0;
    }
}

static void flush(void)
{
    uint64_t root;

    __asm__ volatile("mov %%cr3, %0; mov %0, %%cr3" : "=r"(root) : : "memory");
}

static uint64_t tables_needed(void *ctx, uint64_t paddr, uint64_t len)
{
    uint64_t last = paddr + len - 1;

    (void)ctx;
    /* A table of level 2 maps 1 GiB, and a table of level 3 maps 512 GiB. */
    return (last >> 30) - (paddr >> 30) + 1 + (last >> 39) - (paddr >> 39) + 1;
}

static void map(void *ctx, uint64_t paddr, uint64_t len, struct hotmem_tables *tables)
{
    (void)ctx;
    change(paddr, len, PAGE, tables);
}

static void unmap(void *ctx, uint64_t paddr, uint64_t len)
{
    (void)ctx;
    change(paddr, len, 0, NULL);
    flush();
}

static void remap(void *ctx, uint64_t paddr, uint64_t len, struct hotmem_tables *tables)
{
    (void)ctx;
    (void)tables;
    /* `unmap` has not freed the tables. */
    change(paddr, len, PAGE, NULL);
}

/* Frees the table of each GiB that lies wholly in the range. */
static void release_tables(void *ctx, uint64_t paddr, uint64_t len,
                           struct hotmem_released *tables)
{
    uint64_t end = paddr + len;

    (void)ctx;
    for (paddr = (paddr + 1024 * MIB - 1) & -(1024 * MIB); paddr + 1024 * MIB <= end;
         paddr += 1024 * MIB) {
        uint64_t *directory = table_of(entry_of(boot_root, paddr, 4), NULL, false);
        uint64_t *gib_entry = entry_of(directory, paddr, 3);
        uint64_t frame = *gib_entry & 0xffffffffff000;

        *gib_entry = 0;
        flush();
        hotmem_free_table(tables, frame);
    }
}

const struct hotmem_hooks mapping_hooks = {
    .tables_needed = tables_needed,
    .map = map,
    .unmap = unmap,
    .remap = remap,
    .release_tables = release_tables,
};

void map_registers(uint64_t paddr, uint64_t len)
{
    uint64_t first = paddr & -(2 * MIB);

    if (paddr + len > 4096 * MIB)
        change(first, paddr + len - first, PAGE | UNCACHED, NULL);
}
