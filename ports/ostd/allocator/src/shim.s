// Runs before OSTD, in the state of a PVH entry: 32-bit code, paging off, flat segments, the start
// info in ebx.
//
// Copies the memory map to `hotmem_boot_map`, and appends the region of the virtio-mem device as
// RAM, so that OSTD maps the region and has metadata for its frames. The kernel's frame allocator
// does not allocate memory of the region until the device has plugged it.

KERNEL_BASE = 0xffffffff80000000
MAX_ENTRIES = 64
ENTRY_SIZE = 24

// `hvm_start_info`
START_MAP = 40
START_ENTRIES = 48

VIRTIO_MEM = 0x10581af4
CAPABILITIES = 0x34
VENDOR_SPECIFIC = 9
// `virtio_pci_cap`
CAP_BAR = 4
CAP_OFFSET = 8
CAP_LENGTH = 12
CAP_DATA = 16
CAP_DEVICE = 4
CAP_PCI = 5
// `virtio_mem_config`: the start of the region, followed by the region's size.
CONFIG_ADDR = 16

.section ".note.Xen", "a", @note
.align 4
    .long 4, 8, 18 // XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long hotmem_boot, 0

.section ".hotmem_boot", "awx", @progbits
.code32
.global hotmem_boot
hotmem_boot:
    cli
    cld
    mov esp, offset hotmem_boot_stack

    mov ecx, [ebx + START_ENTRIES]
    cmp ecx, MAX_ENTRIES
    jae 9f
    mov [hotmem_boot_map - KERNEL_BASE], ecx
    imul ecx, ecx, ENTRY_SIZE / 4
    mov esi, [ebx + START_MAP]
    mov edi, offset hotmem_boot_map - KERNEL_BASE + 8
    rep movsd

    // edi: the address of the new entry. ecx: function 0 of each device of each bus, in turn.
    mov ecx, 0x80000000
2:  mov eax, ecx
    call read_config
    cmp eax, VIRTIO_MEM
    je 3f
    add ecx, 0x800
    cmp ecx, 0x81000000
    jb 2b
    jmp 9f

    // esi: each capability, in turn. ebp: the capability that gives the place of the configuration.
    // edx: the capability by which the configuration is read without mapping the BAR.
3:  xor ebp, ebp
    xor edx, edx
    lea eax, [ecx + CAPABILITIES]
    call read_config
    movzx esi, al
4:  and esi, 0xfc
    jz 6f
    lea eax, [ecx + esi]
    call read_config
    cmp al, VENDOR_SPECIFIC
    jne 5f
    push eax
    shr eax, 24
    cmp al, CAP_DEVICE
    cmove ebp, esi
    cmp al, CAP_PCI
    cmove edx, esi
    pop eax
5:  movzx esi, ah
    jmp 4b

6:  test ebp, ebp
    jz 9f
    test edx, edx
    jz 9f
    add edx, ecx
    lea eax, [ecx + ebp + CAP_BAR]
    call read_config
    movzx eax, al
    mov esi, CAP_BAR
    call write_capability
    mov eax, 4
    mov esi, CAP_LENGTH
    call write_capability
    lea eax, [ecx + ebp + CAP_OFFSET]
    call read_config
    lea ebp, [eax + CONFIG_ADDR]

    // Read four words: the start of the region and its size.
    mov ecx, 4
7:  mov eax, ebp
    mov esi, CAP_OFFSET
    call write_capability
    lea eax, [edx + CAP_DATA]
    call read_config
    stosd
    add ebp, 4
    loop 7b
    mov eax, 1 // RAM
    stosd
    xor eax, eax
    stosd
    // Make OSTD read the copy.
    inc dword ptr [ebx + START_ENTRIES]
    mov dword ptr [hotmem_boot_map - KERNEL_BASE + 4], 1
    mov dword ptr [ebx + START_MAP], offset hotmem_boot_map - KERNEL_BASE + 8
9:  jmp __pvh_boot

// Reads the word at address eax of configuration space into eax.
read_config:
    push edx
    mov dx, 0xcf8
    out dx, eax
    mov dx, 0xcfc
    in eax, dx
    pop edx
    ret

// Writes eax to the field at offset esi of the capability at address edx of configuration space.
write_capability:
    push edx
    push eax
    lea eax, [edx + esi]
    mov dx, 0xcf8
    out dx, eax
    pop eax
    mov dx, 0xcfc
    out dx, eax
    pop edx
    ret

.align 16
    .skip 64
hotmem_boot_stack:
.code64

// The structure `BootMap` of `boot_map.rs`. It lies in `.data`, because the boot code clears
// `.bss`.
.section ".data", "aw", @progbits
.align 8
.global hotmem_boot_map
hotmem_boot_map:
    .skip 8 + MAX_ENTRIES * ENTRY_SIZE
.text
