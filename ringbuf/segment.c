/* Opening, mapping and sealing a segment of any kind. */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_BYTES (2ull << 20)
#define PIECE_BYTES (1ull << 30) /* so that a signal is answered within a fraction of a second */
#define READY_WAIT_MS 1000
#define MAX_FIXED_BYTES (256ull << 20)

int hr_fail(char *error, size_t capacity, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, capacity, format, arguments);
    va_end(arguments);
    return -1;
}

uint64_t hr_round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

uint64_t hr_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t hr_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Bit by bit: it runs over some kilobytes, once an attach. */
uint32_t hr_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82F63B78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

static uint32_t checksum(const hr_segment *head, const void *fixed, size_t fixed_bytes)
{
    unsigned char bytes[offsetof(hr_segment, ready)];
    memcpy(bytes, head, sizeof bytes);
    memset(bytes + offsetof(hr_segment, crc), 0, sizeof head->crc);
    return hr_crc32c(hr_crc32c(0, bytes, sizeof bytes), fixed, fixed_bytes);
}

/* All zero where the kernel does not tell, which then agrees with itself. */
static void boot_id(uint8_t out[16])
{
    char text[64] = {0};
    memset(out, 0, 16);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    int digit = 0;
    for (ssize_t i = 0; i < n && digit < 32; i++) {
        char c = text[i];
        int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (value >= 0) {
            out[digit / 2] = (uint8_t)(out[digit / 2] << 4 | value);
            digit++;
        }
    }
}

static int check_head(const hr_segment *head, hr_kind kind, size_t least_bytes, uint64_t file_bytes,
                      char *error, size_t capacity)
{
    static const char *const names[] = {"?", "control block", "weights channel", "ring"};
    uint8_t boot[16];
    boot_id(boot);
    if (head->magic != HR_MAGIC)
        return hr_fail(error, capacity, "%s: not a segment of ours (magic %016llx)", names[kind],
                       (unsigned long long)head->magic);
    if (head->endian != HR_ENDIAN)
        return hr_fail(error, capacity, "%s: written on a machine of the other byte order", names[kind]);
    if (head->abi != HR_ABI)
        return hr_fail(error, capacity, "%s: ABI %u, but this program has ABI %u: run make build",
                       names[kind], head->abi, HR_ABI);
    if (head->kind != (uint32_t)kind)
        return hr_fail(error, capacity, "expected a %s, found a %s", names[kind],
                       head->kind < 4 ? names[head->kind] : names[0]);
    if (head->page_bytes != hr_page_bytes())
        return hr_fail(error, capacity, "%s: pages of %llu bytes, but the kernel has %llu", names[kind],
                       (unsigned long long)head->page_bytes, (unsigned long long)hr_page_bytes());
    if (head->total_bytes != file_bytes)
        return hr_fail(error, capacity, "%s: the header says %llu bytes, the file has %llu", names[kind],
                       (unsigned long long)head->total_bytes, (unsigned long long)file_bytes);
    if (memcmp(head->boot_id, boot, 16) != 0)
        return hr_fail(error, capacity, "%s: from before the last reboot", names[kind]);
    if (head->fixed_bytes < least_bytes || head->fixed_bytes > MAX_FIXED_BYTES ||
        head->fixed_bytes + sizeof(hr_segment) > file_bytes)
        return hr_fail(error, capacity, "%s: immutable part of %llu bytes", names[kind],
                       (unsigned long long)head->fixed_bytes);
    return 0;
}

void *hr_segment_load(int fd, hr_kind kind, size_t least_bytes, hr_segment *head, char *error,
                      size_t capacity)
{
    struct stat facts;
    hr_segment *first = MAP_FAILED;
    for (int waited = 0;; waited++) { /* its creator may still be at work */
        if (fstat(fd, &facts) != 0) {
            hr_fail(error, capacity, "segment: %s", strerror(errno));
            return NULL;
        }
        if ((uint64_t)facts.st_size >= sizeof(hr_segment)) {
            if (first == MAP_FAILED)
                first = mmap(NULL, sizeof(hr_segment), PROT_READ, MAP_SHARED, fd, 0);
            if (first == MAP_FAILED) {
                hr_fail(error, capacity, "segment: cannot map the header: %s", strerror(errno));
                return NULL;
            }
            /* A1 pairs with A1 in hr_segment_seal() */
            if (atomic_load_explicit(&first->ready, memory_order_acquire) == HR_ATTACHABLE)
                break;
        }
        if (waited >= READY_WAIT_MS) {
            if (first != MAP_FAILED)
                munmap(first, sizeof(hr_segment));
            hr_fail(error, capacity, "segment: not ready after %d ms: its creator died or is stuck",
                    READY_WAIT_MS);
            return NULL;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    memcpy(head, first, offsetof(hr_segment, ready));
    munmap(first, sizeof(hr_segment));
    if (check_head(head, kind, least_bytes, (uint64_t)facts.st_size, error, capacity) != 0)
        return NULL;

    size_t bytes = sizeof(hr_segment) + head->fixed_bytes;
    char *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    void *fixed = malloc(head->fixed_bytes);
    if (map == MAP_FAILED || fixed == NULL) {
        hr_fail(error, capacity, "segment: cannot read the header: %s", strerror(errno));
        if (map != MAP_FAILED)
            munmap(map, bytes);
        free(fixed);
        return NULL;
    }
    memcpy(fixed, map + sizeof(hr_segment), head->fixed_bytes);
    munmap(map, bytes);
    if (checksum(head, fixed, head->fixed_bytes) != head->crc) {
        hr_fail(error, capacity, "segment: the header is damaged (checksum)");
        free(fixed);
        return NULL;
    }
    return fixed;
}

void *hr_segment_map(int fd, size_t bytes, size_t writable_bytes, char *error, size_t capacity)
{
    size_t spare = bytes >= HUGE_BYTES ? HUGE_BYTES : 0;
    char *hold = mmap(NULL, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hold == MAP_FAILED) {
        hr_fail(error, capacity, "segment: no address space for %zu bytes: %s", bytes, strerror(errno));
        return NULL;
    }
    char *base = spare ? (char *)hr_round_up((uintptr_t)hold, HUGE_BYTES) : hold;
    if (base > hold)
        munmap(hold, (size_t)(base - hold));
    size_t behind = (size_t)(hold + spare - base);
    if (behind > 0)
        munmap(base + bytes, behind);
    if (writable_bytes > bytes)
        writable_bytes = bytes;
    if ((writable_bytes > 0 &&
         mmap(base, writable_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) ||
        (bytes > writable_bytes && mmap(base + writable_bytes, bytes - writable_bytes, PROT_READ,
                                        MAP_SHARED | MAP_FIXED, fd, (off_t)writable_bytes) == MAP_FAILED)) {
        hr_fail(error, capacity, "segment: cannot map %zu bytes: %s", bytes, strerror(errno));
        munmap(base, bytes);
        return NULL;
    }
    madvise(base, bytes, MADV_DONTFORK);
    return base;
}

void *hr_segment_populate(int fd, size_t bytes, int *huge, char *error, size_t capacity)
{
    char *base = hr_segment_map(fd, bytes, bytes, error, capacity);
    if (base == NULL)
        return NULL;
    for (size_t at = 0; at < bytes;) {
        size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        if (madvise(base + at, piece, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) {
            at += piece; /* EINVAL: a kernel before 5.14; posix_fallocate has had the pages already */
        } else if (errno != EINTR && errno != EAGAIN) {
            hr_fail(error, capacity, "shared memory: no page at byte %zu of %zu: %s", at, bytes,
                    strerror(errno));
            munmap(base, bytes);
            return NULL;
        }
    }
    size_t whole = bytes / HUGE_BYTES * HUGE_BYTES;
    *huge = whole > 0 && madvise(base, whole, MADV_COLLAPSE) == 0;
    return base;
}

void hr_segment_seal(void *base, hr_kind kind, uint64_t total_bytes, const void *fixed, size_t fixed_bytes,
                     const uint8_t run_id[16])
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    hr_segment *head = base;
    head->magic = HR_MAGIC;
    head->endian = HR_ENDIAN;
    head->abi = HR_ABI;
    head->kind = (uint32_t)kind;
    head->total_bytes = total_bytes;
    head->fixed_bytes = fixed_bytes;
    head->page_bytes = hr_page_bytes();
    head->created_unix_ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    memcpy(head->run_id, run_id, 16);
    boot_id(head->boot_id);
    memcpy((char *)base + sizeof(hr_segment), fixed, fixed_bytes);
    head->crc = checksum(head, fixed, fixed_bytes);
    /* A1 pairs with A1 in hr_segment_load() */
    atomic_store_explicit(&head->ready, HR_ATTACHABLE, memory_order_release);
}
