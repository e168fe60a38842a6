/* Eight rows of packed weights times rounded activations: integers inside a block of 32 columns, float between.
 *
 * Weights are unpacked once for all activation rows of a tile; for one row the sums stay in a register. Every row is
 * summed block after block in the same order, so a row's answer is the same beside any others.
 */

#define I4_ZEROS 102 /* HW_I4 with a zero for each group, a format of its own here */
#define AHEAD 2048   /* bytes fetched before they are needed: with it 20 GB/s from memory, without 15 */

typedef struct scales {
    f8 scale;   /* of each of the eight rows; Q6_K: in the first half of the block */
    f8 second;  /* Q6_K: in the second half */
    f8 shift;   /* added to every weight: Q4_1, Q5_1, Q4_K, Q5_K */
    f8 zero;    /* taken from every q: I4_ZEROS */
} scales;

ALWAYS f8 halves(const uint8_t *p) { return f8_load_half((const uint16_t *)p); }

ALWAYS scales scales_of(int format, const uint8_t *header, int64_t block) {
    scales s = {f8_zero(), f8_zero(), f8_zero(), f8_zero()};
    switch (format) {
    case HW_I8: s.scale = f8_load((const float *)header); break;
    case HW_Q4_1: case HW_Q5_1: s.scale = halves(header), s.shift = halves(header + 16); break;
    case HW_Q4_K: case HW_Q5_K:
        s.scale = f8_mul(halves(header), f8_load_u8(header + 32 + 8 * block));
        s.shift = f8_sub(f8_zero(), f8_mul(halves(header + 16), f8_load_u8(header + 96 + 8 * block)));
        break;
    case HW_Q6_K:
        s.scale = f8_mul(halves(header), f8_load_i8((const int8_t *)header + 16 + 16 * block));
        s.second = f8_mul(halves(header), f8_load_i8((const int8_t *)header + 24 + 16 * block));
        break;
    case I4_ZEROS: s.scale = halves(header), s.zero = f8_load_u8(header + 16); break;
    default: s.scale = halves(header);
    }
    return s;
}

ALWAYS int bits_of(int format) {
    switch (format) {
    case HW_Q8_0: case HW_I8: return 8;
    case HW_Q6_K: return 6;
    case HW_Q5_0: case HW_Q5_1: case HW_Q5_K: return 5;
    default: return 4;
    }
}

/* sum + (one block) . (one activation row). */
ALWAYS f8 add_block(int format, const planes *w, const scales *s, const bytes32 *x, f8 sum) {
    f8 d = f8_at(&x->d);
    if (format == HW_Q6_K) {
        f8 first = f8_fma(f8_set(-32.0f), f8_at(&x->halves[0]), planes_dot_half(w, x->q, 0));
        f8 second = f8_fma(f8_set(-32.0f), f8_at(&x->halves[1]), planes_dot_half(w, x->q, 1));
        return f8_fma(d, f8_fma(s->scale, first, f8_mul(s->second, second)), sum);
    }
    f8 dot = planes_dot(w, x->q, bits_of(format), &x->sum);
    switch (format) {
    case HW_Q4_0: case HW_I4: dot = f8_fma(f8_set(-8.0f), f8_at(&x->sum), dot); break;
    case HW_Q5_0: dot = f8_fma(f8_set(-16.0f), f8_at(&x->sum), dot); break;
    case I4_ZEROS: dot = f8_sub(dot, f8_mul(s->zero, f8_at(&x->sum))); break;
    case HW_Q4_1: case HW_Q5_1: case HW_Q4_K: case HW_Q5_K:
        return f8_fma(d, f8_fma(s->scale, dot, f8_mul(s->shift, f8_at(&x->sum))), sum);
    default: break;
    }
    return f8_fma(f8_mul(s->scale, d), dot, sum);
}

/* One activation row, the first of tile `tile`: the sum stays in a register. */
ALWAYS f8 octet_one(int format, const uint8_t *w, const hw_layout *l, rounded x, int64_t tile) {
    f8 sum = f8_zero();
    const second *list = x.seconds + tile;
    for (int64_t g = l->groups, at = tile * TILE; g > 0; g--) {
        const uint8_t *header = w;
        w += l->header;
        for (int64_t b = 0; b < l->blocks; b++, at += x.n, list += x.tiles) {
            const scales s = scales_of(format, header, b);
            planes p;
            for (int line = 0; line < bits_of(format) / 2; line++) __builtin_prefetch(w + AHEAD + 64 * line);
            planes_load(&p, w, bits_of(format));
            w += 32 * bits_of(format);
            sum = add_block(format, &p, &s, x.blocks + at, sum);
            if (list->count) sum = add_block(format, &p, &s, x.rest + at, sum);
        }
    }
    return sum;
}

/* `count` rows, those of tile `tile`: out[count][8]. */
ALWAYS void octet_many(int format, const uint8_t *w, const hw_layout *l, rounded x, int64_t tile, int64_t count, float *out) {
    memset(out, 0, (size_t)count * 32);
    const second *list = x.seconds + tile;
    for (int64_t g = l->groups, at = tile * TILE; g > 0; g--) {
        const uint8_t *header = w;
        w += l->header;
        for (int64_t b = 0; b < l->blocks; b++, at += x.n, list += x.tiles) {
            const scales s = scales_of(format, header, b);
            planes p;
            planes_load(&p, w, bits_of(format));
            w += 32 * bits_of(format);
            for (int64_t i = 0; i < count; i++) {
                f8_store(out + 8 * i, add_block(format, &p, &s, x.blocks + at + i, f8_load(out + 8 * i)));
            }
            for (int64_t i = 0; i < list->count; i++) {
                int64_t row = list->row[i];
                f8_store(out + 8 * row, add_block(format, &p, &s, x.rest + at + row, f8_load(out + 8 * row)));
            }
        }
    }
}

/* Eight weight rows at `w` times the `count` activation rows of a tile: out[count][8]. */
typedef void octet_function(const uint8_t *w, const hw_layout *l, rounded x, int64_t tile, int64_t count, float *out);

#define OCTET(name, format)                                                                                           \
    static void octet_##name(const uint8_t *w, const hw_layout *l, rounded x, int64_t tile, int64_t count, float *out) { \
        if (count == 1) f8_store(out, octet_one(format, w, l, x, tile));                                              \
        else octet_many(format, w, l, x, tile, count, out);                                                           \
    }
OCTET(q4_0, HW_Q4_0)
OCTET(q4_1, HW_Q4_1)
OCTET(q5_0, HW_Q5_0)
OCTET(q5_1, HW_Q5_1)
OCTET(q8_0, HW_Q8_0)
OCTET(q4_k, HW_Q4_K)
OCTET(q5_k, HW_Q5_K)
OCTET(q6_k, HW_Q6_K)
OCTET(i8, HW_I8)
OCTET(i4, HW_I4)
OCTET(i4_zeros, I4_ZEROS)

static octet_function *octet_of(const hw_matrix *m) {
    switch (m->format) {
    case HW_Q4_0: return octet_q4_0;
    case HW_Q4_1: return octet_q4_1;
    case HW_Q5_0: return octet_q5_0;
    case HW_Q5_1: return octet_q5_1;
    case HW_Q8_0: return octet_q8_0;
    case HW_Q4_K: return octet_q4_k;
    case HW_Q5_K: return octet_q5_k;
    case HW_Q6_K: return octet_q6_k;
    case HW_I8: return octet_i8;
    default: return m->has_zeros ? octet_i4_zeros : octet_i4;
    }
}
