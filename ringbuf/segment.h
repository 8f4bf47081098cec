/* Opening, mapping and sealing a segment of any kind. Private to ringbuf/. */
#ifndef HEADRACE_SEGMENT_H
#define HEADRACE_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

/* Writes one line of `printf` form to `error` and returns -1. */
__attribute__((format(printf, 3, 4))) int hr_fail(char *error, size_t capacity, const char *format, ...);

/* CRC-32C (Castagnoli) of `bytes` more bytes after those that gave `crc`, which begins as 0. */
uint32_t hr_crc32c(uint32_t crc, const void *data, size_t bytes);

uint64_t hr_round_up(uint64_t bytes, uint64_t unit);
uint64_t hr_page_bytes(void);

/* Waits up to a second for the ready word, copies the header and the immutable part to private memory, and
 * checks magic, endianness, ABI, kind, page size, boot id, length against fstat, and the checksum. Returns
 * the immutable part (at least `least_bytes` long, the caller frees it), or NULL with one line in `error`. */
void *hr_segment_load(int fd, hr_kind kind, size_t least_bytes, hr_segment *head, char *error,
                      size_t capacity);

/* Maps the first `bytes` of the segment, of which the first `writable_bytes` read-write, the rest read-only;
 * both are whole pages. The address is congruent to the offset modulo 2 MiB, which huge pages need; forked
 * children do not inherit it. NULL with one line in `error`. */
void *hr_segment_map(int fd, size_t bytes, size_t writable_bytes, char *error, size_t capacity);

/* For creators. Maps a segment of `bytes` (allocated already, all zero) read-write with every page present; a
 * page that cannot be had is an error here and not a SIGBUS later. Asks for huge pages and sets *huge to
 * whether all whole 2 MiB pieces became huge. */
void *hr_segment_populate(int fd, size_t bytes, int *huge, char *error, size_t capacity);

/* For creators, after everything else is in place: writes the header and the immutable part, then the ready
 * word. */
void hr_segment_seal(void *base, hr_kind kind, uint64_t total_bytes, const void *fixed, size_t fixed_bytes,
                     const uint8_t run_id[16]);

#endif
