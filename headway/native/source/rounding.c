/* Activations rounded to bytes, block by block of 32 columns, for the integer dot products.
 *
 * x ~ q d with d = max|x| / 127. Blocks come first, then rows: q[block][row][32], so that the rows that one block of
 * weights meets lie side by side. With each: d, the sum of q, and the sums of its two halves (exact in float), which
 * take the zeros and minima of the weights. A NaN or infinity makes d NaN, and so all that d multiplies.
 */

typedef struct rounded {
    int8_t *q;    /* [blocks][n][32] */
    float *meta;  /* [blocks][n][4]: d, sum, first sum, second sum */
    int64_t n;
} rounded;

static int64_t rounded_bytes(int64_t n, int64_t blocks) { return n * blocks * (32 + 16); }

static rounded rounded_in(void *memory, int64_t n, int64_t blocks) {
    return (rounded){memory, (float *)((int8_t *)memory + n * blocks * 32), n};
}

#define LEAST_ROUNDED 1e-30f /* a block with nothing larger is zero: 127 / max would leave float's range */

ALWAYS float sum_bytes(const int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += q[i];
    return (float)sum;
}

ALWAYS void round_block(const f8 x[4], int8_t *q, float *meta) {
    f8 most = f8_zero(), bad = f8_zero();
    for (int i = 0; i < 4; i++) {
        most = f8_max(most, f8_abs(x[i]));
        bad = f8_fma(x[i], f8_zero(), bad); /* 0, or NaN */
    }
    float largest = f8_largest(most), wrong = f8_sum(bad);
    if (wrong != wrong || !(largest > LEAST_ROUNDED)) {
        memset(q, 0, 32);
        meta[0] = wrong, meta[1] = meta[2] = meta[3] = 0;
        return;
    }
    f8 by = f8_set(127.0f / largest);
    bytes_store(q, f8_mul(x[0], by), f8_mul(x[1], by), f8_mul(x[2], by), f8_mul(x[3], by));
    meta[0] = largest / 127.0f;
    meta[2] = sum_bytes(q), meta[3] = sum_bytes(q + 16);
    meta[1] = meta[2] + meta[3];
}

/* Row `row` of `to` from x [cols]; columns past the last are zero. */
static void round_row(const float *x, int64_t cols, int64_t blocks, rounded to, int64_t row) {
    for (int64_t b = 0; b < blocks; b++) {
        const float *from = x + 32 * b;
        float padded[32] = {0};
        int64_t have = cols - 32 * b;
        if (have < 32) {
            if (have > 0) memcpy(padded, from, (size_t)have * sizeof *x);
            from = padded;
        }
        const f8 block[4] = {f8_load(from), f8_load(from + 8), f8_load(from + 16), f8_load(from + 24)};
        round_block(block, to.q + 32 * (b * to.n + row), to.meta + 4 * (b * to.n + row));
    }
}
