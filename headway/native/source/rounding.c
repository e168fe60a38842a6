/* Activations rounded to bytes, block by block of 32 columns, for the integer dot products.
 *
 * x ~ q d with d = max|x| / 127. Blocks come first, then rows, so that the rows that one block of weights meets lie
 * side by side. With each: d, the sum of q, and the sums of its two halves (exact in float), which take the zeros and
 * minima of the weights. A NaN or infinity makes d NaN, and so all that d multiplies.
 */

typedef struct bytes32 {
    int8_t q[32];
    float d, sum, halves[2];
} bytes32;

typedef struct rounded {
    bytes32 *blocks; /* [blocks][n] */
    int64_t n;
} rounded;

static int64_t rounded_bytes(int64_t n, int64_t blocks) { return n * blocks * (int64_t)sizeof(bytes32); }

#define LEAST_ROUNDED 1e-30f /* a block with nothing larger is zero: 127 / max would leave float's range */

ALWAYS void round_block(const f8 x[4], bytes32 *to) {
    f8 most = f8_zero(), bad = f8_zero();
    for (int i = 0; i < 4; i++) {
        most = f8_max(most, f8_abs(x[i]));
        bad = f8_fma(x[i], f8_zero(), bad); /* 0, or NaN */
    }
    float largest = f8_largest(most), wrong = f8_sum(bad);
    if (wrong != wrong || !(largest > LEAST_ROUNDED)) {
        *to = (bytes32){.d = wrong};
        return;
    }
    f8 by = f8_set(127.0f / largest);
    bytes_store(to->q, f8_mul(x[0], by), f8_mul(x[1], by), f8_mul(x[2], by), f8_mul(x[3], by));
    to->d = largest * (1.0f / 127.0f);
    bytes_sums(to->q, to->halves);
    to->sum = to->halves[0] + to->halves[1];
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
        round_block(block, &to.blocks[b * to.n + row]);
    }
}
