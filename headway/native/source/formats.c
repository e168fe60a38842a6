/* Sizes of formats, and rows moved from the order of a file into octets (layout in formats.h). */
#include "formats.h"

#include <stdlib.h>
#include <string.h>

#include "pool.h"
#define ALWAYS static inline __attribute__((unused))
#include <math.h>
#include "simd_plain.h"

typedef struct file_block { int32_t cols, bytes; } file_block;

static file_block block_of(int32_t format) {
    switch (format) {
    case HW_F32: return (file_block){1, 4};
    case HW_F16: case HW_BF16: return (file_block){1, 2};
    case HW_Q4_0: return (file_block){32, 18};
    case HW_Q4_1: return (file_block){32, 20};
    case HW_Q5_0: return (file_block){32, 22};
    case HW_Q5_1: return (file_block){32, 24};
    case HW_Q8_0: return (file_block){32, 34};
    case HW_Q4_K: return (file_block){256, 144};
    case HW_Q5_K: return (file_block){256, 176};
    case HW_Q6_K: return (file_block){256, 210};
    case HW_I8: return (file_block){1, 1};
    default: return (file_block){0, 0};
    }
}

int hw_is_float(int32_t format) { return format == HW_F32 || format == HW_F16 || format == HW_BF16; }

int64_t hw_row_bytes(const hw_matrix *matrix) {
    if (matrix->format == HW_I4) {
        int64_t widest = matrix->cols < 128 ? 128 : (matrix->cols + 31) / 32 * 32;
        if (matrix->group < 32 || matrix->group % 32 || matrix->group > widest) return 0;
        return (matrix->cols + 1) / 2;
    }
    file_block block = block_of(matrix->format);
    if (!block.cols || matrix->cols % block.cols) return 0;
    return matrix->cols / block.cols * block.bytes;
}

hw_layout hw_layout_of(const hw_matrix *matrix) {
    hw_layout layout = {0};
    switch (matrix->format) {
    case HW_Q4_0: layout = (hw_layout){.bits = 4, .header = 16, .blocks = 1}; break;
    case HW_Q4_1: layout = (hw_layout){.bits = 4, .header = 32, .blocks = 1}; break;
    case HW_Q5_0: layout = (hw_layout){.bits = 5, .header = 16, .blocks = 1}; break;
    case HW_Q5_1: layout = (hw_layout){.bits = 5, .header = 32, .blocks = 1}; break;
    case HW_Q8_0: layout = (hw_layout){.bits = 8, .header = 16, .blocks = 1}; break;
    case HW_Q4_K: layout = (hw_layout){.bits = 4, .header = 160, .blocks = 8}; break;
    case HW_Q5_K: layout = (hw_layout){.bits = 5, .header = 160, .blocks = 8}; break;
    case HW_Q6_K: layout = (hw_layout){.bits = 6, .header = 144, .blocks = 8}; break;
    case HW_I8: layout = (hw_layout){.bits = 8, .header = 32, .blocks = (matrix->cols + 31) / 32}; break;
    case HW_I4:
        layout = (hw_layout){.bits = 4, .header = matrix->has_zeros ? 24 : 16, .blocks = matrix->group / 32};
        break;
    default: return layout;
    }
    layout.groups = (matrix->cols + 32 * layout.blocks - 1) / (32 * layout.blocks);
    layout.octet = layout.groups * (layout.header + layout.blocks * hw_planes_bytes(layout.bits));
    return layout;
}

int64_t hw_packed_bytes(const hw_matrix *matrix) {
    return (matrix->rows + 7) / 8 * hw_layout_of(matrix).octet;
}

/* ---- one row's 32 columns into the planes of a block ---- */

static uint32_t word_at(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

static void set_word(uint8_t *p, uint32_t word) { memcpy(p, &word, 4); }

/* Sixteen bytes that already hold column i below and column 16 + i above, as the 32-column formats keep them. */
static void put_nibbles(uint8_t *planes, int row, const uint8_t *q) {
    for (int i = 0; i < 4; i++) set_word(planes + 32 * i + 4 * row, word_at(q + 4 * i));
}

/* Eight words of four columns each, values below 16. */
static void put_low4(uint8_t *planes, int row, const uint32_t words[8]) {
    for (int i = 0; i < 4; i++) set_word(planes + 32 * i + 4 * row, words[i] | words[i + 4] << 4);
}

/* Bit i of each of four bytes: columns 4 i .. 4 i + 3, from eight words of values 0 or 1. */
static void put_fifth(uint8_t *planes, int row, const uint32_t words[8]) {
    uint32_t all = 0;
    for (int i = 0; i < 8; i++) all |= words[i] << i;
    set_word(planes + 128 + 4 * row, all);
}

static void put_two(uint8_t *planes, int row, const uint32_t words[8]) {
    for (int half = 0; half < 2; half++) {
        uint32_t all = 0;
        for (int i = 0; i < 4; i++) all |= words[4 * half + i] << 2 * i;
        set_word(planes + 128 + 32 * half + 4 * row, all);
    }
}

static void put_bytes(uint8_t *planes, int row, const uint8_t *q, int64_t count) {
    uint8_t all[32] = {0};
    memcpy(all, q, (size_t)(count < 32 ? count : 32));
    for (int i = 0; i < 8; i++) set_word(planes + 32 * i + 4 * row, word_at(all + 4 * i));
}

/* A file's 32 fifth bits, one a column, as eight words of 0 or 1. */
static void spread_bits(uint32_t bits, uint32_t words[8]) {
    for (int i = 0; i < 8; i++) words[i] = (bits >> 4 * i & 15) * 0x00204081 & 0x01010101;
}

/* ---- rows of each format ---- */

static void put_32(int32_t format, const uint8_t *row_data, int64_t groups, int row, uint8_t *out, const hw_layout *l) {
    int32_t bytes = block_of(format).bytes;
    int mins = format == HW_Q4_1 || format == HW_Q5_1, fifth = l->bits == 5;
    int64_t step = l->header + hw_planes_bytes(l->bits);
    for (int64_t g = 0; g < groups; g++, row_data += bytes, out += step) {
        const uint8_t *q = row_data + 2;
        uint8_t *planes = out + l->header;
        memcpy(out + 2 * row, row_data, 2);
        if (mins) memcpy(out + 16 + 2 * row, q, 2), q += 2;
        if (l->bits == 8) {
            put_bytes(planes, row, q, 32);
            continue;
        }
        if (fifth) {
            uint32_t words[8];
            spread_bits(word_at(q), words);
            put_fifth(planes, row, words);
            q += 4;
        }
        put_nibbles(planes, row, q);
    }
}

/* Q4_K and Q5_K: eight six-bit scales and minima in 12 bytes become a byte each. */
static void put_k(int32_t format, const uint8_t *row_data, int64_t groups, int row, uint8_t *out, const hw_layout *l) {
    int fifth = format == HW_Q5_K;
    int32_t bytes = block_of(format).bytes;
    for (int64_t g = 0; g < groups; g++, row_data += bytes) {
        const uint8_t *six = row_data + 4, *high = row_data + 16, *low = row_data + (fifth ? 48 : 16);
        memcpy(out + 2 * row, row_data, 2);
        memcpy(out + 16 + 2 * row, row_data + 2, 2);
        for (int b = 0; b < 4; b++) {
            out[32 + 8 * b + row] = six[b] & 63;
            out[32 + 8 * (b + 4) + row] = (uint8_t)((six[8 + b] & 15) | (six[b] >> 6) << 4);
            out[96 + 8 * b + row] = six[4 + b] & 63;
            out[96 + 8 * (b + 4) + row] = (uint8_t)(six[8 + b] >> 4 | (six[4 + b] >> 6) << 4);
        }
        out += l->header;
        for (int b = 0; b < 8; b++, out += hw_planes_bytes(l->bits)) {
            uint32_t words[8];
            for (int i = 0; i < 8; i++) words[i] = word_at(low + 32 * (b / 2) + 4 * i) >> 4 * (b % 2) & 0x0f0f0f0f;
            put_low4(out, row, words);
            if (!fifth) continue;
            for (int i = 0; i < 8; i++) words[i] = word_at(high + 4 * i) >> b & 0x01010101;
            put_fifth(out, row, words);
        }
    }
}

static void put_q6_k(const uint8_t *row_data, int64_t groups, int row, uint8_t *out, const hw_layout *l) {
    for (int64_t g = 0; g < groups; g++, row_data += 210) {
        memcpy(out + 2 * row, row_data + 208, 2);
        for (int s = 0; s < 16; s++) out[16 + 8 * s + row] = row_data[192 + s];
        out += l->header;
        for (int b = 0; b < 8; b++, out += hw_planes_bytes(l->bits)) {
            const uint8_t *low = row_data + 64 * (b / 4) + 32 * (b % 2), *high = row_data + 128 + 32 * (b / 4);
            uint32_t words[8];
            for (int i = 0; i < 8; i++) words[i] = word_at(low + 4 * i) >> (b % 4 < 2 ? 0 : 4) & 0x0f0f0f0f;
            put_low4(out, row, words);
            for (int i = 0; i < 8; i++) words[i] = word_at(high + 4 * i) >> 2 * (b % 4) & 0x03030303;
            put_two(out, row, words);
        }
    }
}

static void put_i8(const hw_matrix *m, int64_t at, int row, uint8_t *out, const hw_layout *l) {
    memcpy(out + 4 * row, (const float *)m->scales + at, 4);
    const uint8_t *q = (const uint8_t *)m->data + at * m->stride;
    for (int64_t b = 0; b < l->blocks; b++) put_bytes(out + l->header + 256 * b, row, q + 32 * b, m->cols - 32 * b);
}

/* I4: columns of one row lie two a byte side by side; past the last column the zero, so that nothing is added. */
static void put_i4(const hw_matrix *m, int64_t at, int row, uint8_t *out, const hw_layout *l) {
    const uint8_t *q = (const uint8_t *)m->data + at * m->stride;
    for (int64_t g = 0; g < l->groups; g++) {
        memcpy(out + 2 * row, (const uint16_t *)m->scales + at * l->groups + g, 2);
        if (m->has_zeros) out[16 + row] = m->zeros[at * l->groups + g];
        out += l->header;
        for (int64_t b = 0; b < l->blocks; b++, out += 128) {
            uint8_t values[32] = {0};
            int64_t first = 32 * (g * l->blocks + b);
            for (int64_t c = 0; c < 32 && first + c < m->cols; c++) {
                values[c] = q[(first + c) / 2] >> 4 * (c % 2) & 15;
            }
            uint32_t words[8];
            for (int i = 0; i < 8; i++) words[i] = word_at(values + 4 * i);
            put_low4(out, row, words);
        }
    }
}

static void put_row(const hw_matrix *m, const hw_layout *l, int64_t at, int row, uint8_t *out) {
    const uint8_t *data = (const uint8_t *)m->data + at * m->stride;
    switch (m->format) {
    case HW_Q4_K: case HW_Q5_K: put_k(m->format, data, l->groups, row, out, l); break;
    case HW_Q6_K: put_q6_k(data, l->groups, row, out, l); break;
    case HW_I8: put_i8(m, at, row, out, l); break;
    case HW_I4: put_i4(m, at, row, out, l); break;
    default: put_32(m->format, data, l->groups, row, out, l);
    }
}

void hw_pack_octet(const hw_matrix *matrix, const hw_layout *layout, int64_t octet, uint8_t *out) {
    int64_t rows = matrix->rows - 8 * octet;
    if (rows < 8) memset(out, 0, (size_t)layout->octet);
    for (int row = 0; row < 8 && row < rows; row++) put_row(matrix, layout, 8 * octet + row, row, out);
}

typedef struct packing { const hw_matrix *matrix; hw_layout layout; uint8_t *out; } packing;

static void pack_piece(void *context, int64_t piece, int32_t thread) {
    (void)thread;
    packing *p = context;
    int64_t octets = (p->matrix->rows + 7) / 8;
    for (int64_t octet = 16 * piece; octet < 16 * piece + 16 && octet < octets; octet++) {
        hw_pack_octet(p->matrix, &p->layout, octet, p->out + octet * p->layout.octet);
    }
}

void hw_pack(const hw_matrix *matrix, void *out, hw_pool *pool) {
    packing p = {matrix, hw_layout_of(matrix), out};
    if (p.layout.bits) hw_share(pool, pack_piece, &p, ((matrix->rows + 7) / 8 + 15) / 16);
}

/* ---- one row back as floats ---- */

static int value_in(const uint8_t *planes, int bits, int row, int column) {
    int i = column / 4, at = 4 * row + column % 4;
    if (bits == 8) return (int8_t)planes[32 * i + at];
    int value = planes[32 * (i % 4) + at] >> (i < 4 ? 0 : 4) & 15;
    if (bits == 5) value |= (planes[128 + at] >> i & 1) << 4;
    if (bits == 6) value |= (planes[128 + 32 * (i / 4) + at] >> 2 * (i % 4) & 3) << 4;
    return value;
}

static float half_at(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return float_of_half(half);
}

typedef struct scaling { float scale, zero, shift; } scaling; /* w = (q - zero) * scale + shift */

/* Of row `row` in a block's first or second 16 columns. */
static scaling scaling_of(const hw_matrix *m, const uint8_t *header, int64_t block, int half, int row) {
    float d = 0, least = 0;
    if (m->format == HW_I8) memcpy(&d, header + 4 * row, 4);
    else d = half_at(header + 2 * row);
    switch (m->format) {
    case HW_Q4_0: return (scaling){d, 8, 0};
    case HW_Q5_0: return (scaling){d, 16, 0};
    case HW_Q4_1: case HW_Q5_1: return (scaling){d, 0, half_at(header + 16 + 2 * row)};
    case HW_Q4_K: case HW_Q5_K:
        least = half_at(header + 16 + 2 * row) * header[96 + 8 * block + row];
        return (scaling){d * header[32 + 8 * block + row], 0, -least};
    case HW_Q6_K: return (scaling){d * (int8_t)header[16 + 8 * (2 * block + half) + row], 32, 0};
    case HW_I4: return (scaling){d, m->has_zeros ? header[16 + row] : 8, 0};
    default: return (scaling){d, 0, 0};
    }
}

/* Blocks from .. from + count - 1 of one group of a packed row, up to the matrix's last column. */
static int64_t decode_blocks(const hw_matrix *m, const hw_layout *l, const uint8_t *group, int row, int64_t from,
                             int64_t count, int64_t left, float *out) {
    int64_t done = 0;
    for (int64_t b = from; b < from + count; b++) {
        const uint8_t *planes = group + l->header + b * hw_planes_bytes(l->bits);
        scaling by = {0};
        for (int c = 0; c < 32 && done < left; c++, done++) {
            if (c % 16 == 0) by = scaling_of(m, group, b, c / 16, row);
            out[done] = ((float)value_in(planes, l->bits, row, c) - by.zero) * by.scale + by.shift;
        }
    }
    return done;
}

static int64_t decode_float(const hw_matrix *m, int64_t row, int64_t column, int64_t count, float *out) {
    const uint8_t *data = (const uint8_t *)m->data + row * m->stride;
    for (int64_t i = 0; i < count; i++) {
        int64_t c = column + i;
        uint16_t two;
        if (m->format == HW_F32) {
            memcpy(out + i, data + 4 * c, 4);
            continue;
        }
        memcpy(&two, data + 2 * c, 2);
        out[i] = m->format == HW_F16 ? float_of_half(two) : float_of_bits((uint32_t)two << 16);
    }
    return count;
}

static int64_t decode_own(const hw_matrix *m, const hw_layout *l, int64_t row, int64_t column, int64_t count, float *out) {
    const uint8_t *q = (const uint8_t *)m->data + row * m->stride;
    for (int64_t i = 0; i < count; i++) {
        int64_t c = column + i;
        if (m->format == HW_I8) {
            out[i] = (float)(int8_t)q[c] * ((const float *)m->scales)[row];
            continue;
        }
        int64_t g = row * l->groups + c / m->group;
        float zero = m->has_zeros ? m->zeros[g] : 8;
        out[i] = ((float)(q[c / 2] >> 4 * (c % 2) & 15) - zero) * float_of_half(((const uint16_t *)m->scales)[g]);
    }
    return count;
}

int64_t hw_decode(const hw_matrix *m, int64_t row, int64_t column, float *out) {
    int64_t left = m->cols - column, count = left < HW_SPAN ? left : HW_SPAN;
    if (hw_is_float(m->format)) return decode_float(m, row, column, count, out);
    hw_layout l = hw_layout_of(m);
    if (!m->packed && (m->format == HW_I8 || m->format == HW_I4)) return decode_own(m, &l, row, column, count, out);
    int64_t g = column / (32 * l.blocks), b = column / 32 % l.blocks;
    int64_t blocks = l.blocks - b < HW_SPAN / 32 ? l.blocks - b : HW_SPAN / 32;
    int64_t size = l.header + l.blocks * hw_planes_bytes(l.bits);
    if (m->packed) {
        const uint8_t *group = (const uint8_t *)m->data + row / 8 * l.octet + g * size;
        return decode_blocks(m, &l, group, (int)(row % 8), b, blocks, left, out);
    }
    file_block file = block_of(m->format);
    hw_matrix one = *m; /* the group alone, packed as row 0 of an octet */
    one.data = (const uint8_t *)m->data + row * m->stride + g * file.bytes;
    l.groups = 1;
    uint8_t group[144 + 8 * 192];
    put_row(&one, &l, 0, 0, group);
    return decode_blocks(m, &l, group, 0, b, blocks, left, out);
}
