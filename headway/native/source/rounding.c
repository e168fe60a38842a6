/* Activations rounded to bytes, block by block of 32 columns, for the integer dot products.
 *
 * x ~ q d with d = max|x| / 127. Blocks come first, then rows, so that the rows that one block of weights meets lie
 * side by side. With each: d, the sum of q, and the sums of its two halves (exact in float), which take the zeros and
 * minima of the weights. A NaN or infinity makes d NaN, and so all that d multiplies.
 *
 * One large number makes d coarse for the other 31. Where it holds more than half of its block's sum of squares, what
 * rounding left over is rounded once more, to a second block: about one block in five of a language model, and the
 * error of its answers falls to a sixth. These few are listed, tile by tile of rows, so that kernels meet no branch.
 */

typedef struct bytes32 {
    int8_t q[32];
    float d, sum, halves[2];
} bytes32;

#define TILE 32 /* activation rows for which weights are unpacked once */

typedef struct second {
    uint8_t row[TILE], count; /* rows of the tile that have a second block */
} second;

typedef struct rounded {
    bytes32 *blocks, *rest; /* [blocks][n]; of `rest` only what is listed is filled */
    second *seconds;        /* [blocks][tiles] */
    int64_t n, tiles;
} rounded;

static int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }

static int64_t rounded_bytes(int64_t n, int64_t blocks) {
    return blocks * (2 * n * (int64_t)sizeof(bytes32) + tiles_of(n) * (int64_t)sizeof(second));
}

static rounded rounded_in(void *memory, int64_t n, int64_t blocks) {
    bytes32 *first = memory;
    return (rounded){first, first + n * blocks, (second *)(first + 2 * n * blocks), n, tiles_of(n)};
}

#define LEAST_ROUNDED 1e-30f /* a block with nothing larger is zero: 127 / max would leave float's range */

/* The block at `to`; 1 when one number outweighs all others, and `x` is then what was left over. */
ALWAYS int round_block(f8 x[4], bytes32 *to) {
    f8 most = f8_zero(), bad = f8_zero();
    for (int i = 0; i < 4; i++) {
        most = f8_max(most, f8_abs(x[i]));
        bad = f8_fma(x[i], f8_zero(), bad); /* 0, or NaN */
    }
    float largest = f8_largest(most), wrong = f8_sum(bad);
    if (wrong != wrong || !(largest > LEAST_ROUNDED)) {
        *to = (bytes32){.d = wrong};
        return 0;
    }
    f8 by = f8_set(127.0f / largest), squares = f8_zero();
    for (int i = 0; i < 4; i++) {
        x[i] = f8_mul(x[i], by);
        squares = f8_fma(x[i], x[i], squares);
    }
    bytes_store(to->q, x[0], x[1], x[2], x[3]);
    to->d = largest * (1.0f / 127.0f);
    bytes_sums(to->q, to->halves);
    to->sum = to->halves[0] + to->halves[1];
    if (!(f8_sum(squares) < 2.0f * 127.0f * 127.0f)) return 0;
    f8 d = f8_set(to->d);
    for (int i = 0; i < 4; i++) x[i] = f8_mul(f8_sub(x[i], f8_round(x[i])), d);
    return 1;
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
        f8 block[4] = {f8_load(from), f8_load(from + 8), f8_load(from + 16), f8_load(from + 24)};
        second *list = &to.seconds[b * to.tiles + row / TILE];
        if (row % TILE == 0) list->count = 0;
        if (!round_block(block, &to.blocks[b * to.n + row])) continue;
        round_block(block, &to.rest[b * to.n + row]);
        list->row[list->count++] = (uint8_t)(row % TILE);
    }
}
