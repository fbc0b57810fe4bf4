/* Prints to the first serial port, and ends the machine. */
#include "kernel.h"
#include <stdarg.h>

#define PORT 0x3f8

static void put(char c)
{
    while (!(in8(PORT + 5) & 0x20)) {
    }
    out8(PORT, (uint8_t)c);
}

static void put_number(uint64_t number)
{
    if (number > 9)
        put_number(number / 10);
    put((char)('0' + number % 10));
}

void print(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    for (; *format; format++) {
        if (*format != '%')
            put(*format);
        else if (*++format == 'u')
            put_number(va_arg(args, uint64_t));
        else
            for (const char *text = va_arg(args, const char *); *text; text++)
                put(*text);
    }
    va_end(args);
}

_Noreturn void end(bool passed)
{
    print("hotmem: %s\n", passed ? "PASS" : "FAIL");
    /* QEMU's device isa-debug-exit ends QEMU with the status 2 * value + 1. */
    out32(0xf4, passed ? 0x10 : 0x11);
    for (;;)
        __asm__ volatile("cli; hlt");
}

_Noreturn void fail(const char *why, int code)
{
    print("Bail out! %s: -%u\n", why, (uint64_t)-code);
    end(false);
}

void hotmem_panic(const char *text, size_t len)
{
    print("Bail out! ");
    while (len--)
        put(*text++);
    put('\n');
    end(false);
}
