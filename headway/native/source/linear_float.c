/* Matrices of F32, F16 and BF16 (and bytes, of a cache): dot products for few rows, tiles of 6 x 16 for many.
 *
 * dots: 4 weight rows x 3 activation rows along the columns, straight from where the weights lie.
 * mix:  sums of rows, c[m][16] += a[m][k] b[k][16]: twelve sums stay in registers while b streams through; `b` is a
 *       panel that panel_pack made of 16 weight rows, or the values of a cache as they are.
 */

#define PANEL 16       /* weight rows in a panel */
#define PANEL_DEPTH 256 /* columns of a panel that stay in the first-level cache: 16 KB */
#define TILED_ROWS 32  /* from so many activation rows on, packing a panel pays */
#define BEFORE 2048    /* bytes fetched before the next rows begin */
#define STRIP 96       /* activation rows that one pass over a panel serves */

ALWAYS f8 load_as(int format, const uint8_t *base, int64_t at) {
    if (format == HW_F32) return f8_load((const float *)base + at);
    if (format == HW_F16) return f8_load_half((const uint16_t *)base + at);
    if (format == HW_I8) return f8_load_i8((const int8_t *)base + at);
    return f8_load_bfloat((const uint16_t *)base + at);
}

ALWAYS int64_t size_of(int format) { return format == HW_F32 ? 4 : format == HW_I8 ? 1 : 2; }

ALWAYS f8 load_part_as(int format, const uint8_t *base, int64_t at, int64_t count) {
    if (count >= 8) return load_as(format, base, at);
    uint8_t all[32] = {0};
    memcpy(all, base + at * size_of(format), (size_t)(count * size_of(format)));
    return load_as(format, all, 0);
}

/* y[j][i] = w[i] . x[j] for R rows of w, 4 or 1, and C of x, up to 3, both constants where this is called. */
ALWAYS void dots_tile(int format, int R, int C, const uint8_t *w, int64_t w_stride, int64_t cols, const float *x,
                      int64_t x_stride, float *y, int64_t y_stride) {
    f8 sum[3][4];
    UNROLL for (int c = 0; c < C; c++) UNROLL for (int r = 0; r < R; r++) sum[c][r] = f8_zero();
    int64_t k = 0;
    for (; k + 8 <= cols; k += 8) {
        f8 in[3];
        if (R == 4 && C == 1) { /* the next four rows, in the order in which they lie */
            const uint8_t *ahead = w + 4 * w_stride + BEFORE + 4 * k * size_of(format);
            for (int64_t line = 0; line < 32 * size_of(format); line += 64) __builtin_prefetch(ahead + line);
        }
        UNROLL for (int c = 0; c < C; c++) in[c] = f8_load(x + c * x_stride + k);
        UNROLL for (int r = 0; r < R; r++) {
            f8 weight = load_as(format, w + r * w_stride, k);
            UNROLL for (int c = 0; c < C; c++) sum[c][r] = f8_fma(weight, in[c], sum[c][r]);
        }
    }
    if (k < cols) {
        UNROLL for (int r = 0; r < R; r++) {
            f8 weight = load_part_as(format, w + r * w_stride, k, cols - k);
            UNROLL for (int c = 0; c < C; c++) sum[c][r] = f8_fma(weight, f8_load_part(x + c * x_stride + k, cols - k), sum[c][r]);
        }
    }
    UNROLL for (int c = 0; c < C; c++) {
        if (R == 4) f8_sums(sum[c], y + c * y_stride);
        else y[c * y_stride] = f8_sum(sum[c][0]);
    }
}

ALWAYS void dots_rows(int format, int R, const uint8_t *w, int64_t w_stride, int64_t cols, const float *x,
                      int64_t x_stride, int64_t n, float *y, int64_t y_stride) {
    for (; n >= 3; n -= 3, x += 3 * x_stride, y += 3 * y_stride) {
        dots_tile(format, R, 3, w, w_stride, cols, x, x_stride, y, y_stride);
    }
    if (n == 2) dots_tile(format, R, 2, w, w_stride, cols, x, x_stride, y, y_stride);
    if (n == 1) dots_tile(format, R, 1, w, w_stride, cols, x, x_stride, y, y_stride);
}

ALWAYS void dots_as(int format, const uint8_t *w, int64_t w_stride, int64_t rows, int64_t cols, const float *x,
                    int64_t x_stride, int64_t n, float *y, int64_t y_stride) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) dots_rows(format, 4, w + r * w_stride, w_stride, cols, x, x_stride, n, y + r, y_stride);
    for (; r < rows; r++) dots_rows(format, 1, w + r * w_stride, w_stride, cols, x, x_stride, n, y + r, y_stride);
}

/* y[n][rows] = x[n][cols] w[rows][cols]^T; w_stride in bytes. */
static void dots(int format, const void *w, int64_t w_stride, int64_t rows, int64_t cols, const float *x,
                 int64_t x_stride, int64_t n, float *y, int64_t y_stride) {
    switch (format) {
    case HW_F32: dots_as(HW_F32, w, w_stride, rows, cols, x, x_stride, n, y, y_stride); break;
    case HW_F16: dots_as(HW_F16, w, w_stride, rows, cols, x, x_stride, n, y, y_stride); break;
    case HW_I8: dots_as(HW_I8, w, w_stride, rows, cols, x, x_stride, n, y, y_stride); break;
    default: dots_as(HW_BF16, w, w_stride, rows, cols, x, x_stride, n, y, y_stride);
    }
}

/* c[m][width] += a[m][depth] b[depth][width], width <= 16, m <= 6 a constant where this is called. */
ALWAYS void mix_tile(int format, int m, const float *a, int64_t a_stride, const uint8_t *b, int64_t b_stride,
                     int64_t depth, float *c, int64_t c_stride, int64_t width) {
    f8 sum[6][2];
    int64_t right = width - 8;
    UNROLL for (int i = 0; i < m; i++) {
        sum[i][0] = f8_load_part(c + i * c_stride, width);
        sum[i][1] = right > 0 ? f8_load_part(c + i * c_stride + 8, right) : f8_zero();
    }
    if (width == 16) {
        for (int64_t k = 0; k < depth; k++, b += b_stride) {
            f8 b0 = load_as(format, b, 0), b1 = load_as(format, b, 8);
            UNROLL for (int i = 0; i < m; i++) {
                f8 by = f8_at(a + i * a_stride + k);
                sum[i][0] = f8_fma(by, b0, sum[i][0]);
                sum[i][1] = f8_fma(by, b1, sum[i][1]);
            }
        }
    } else {
        for (int64_t k = 0; k < depth; k++, b += b_stride) {
            f8 b0 = load_part_as(format, b, 0, width), b1 = right > 0 ? load_part_as(format, b, 8, right) : f8_zero();
            UNROLL for (int i = 0; i < m; i++) {
                f8 by = f8_at(a + i * a_stride + k);
                sum[i][0] = f8_fma(by, b0, sum[i][0]);
                sum[i][1] = f8_fma(by, b1, sum[i][1]);
            }
        }
    }
    UNROLL for (int i = 0; i < m; i++) {
        f8_store_part(c + i * c_stride, sum[i][0], width);
        if (right > 0) f8_store_part(c + i * c_stride + 8, sum[i][1], right);
    }
}

ALWAYS void mix_as(int format, int64_t rows, const float *a, int64_t a_stride, const uint8_t *b, int64_t b_stride,
                   int64_t depth, float *c, int64_t c_stride, int64_t width) {
    for (; rows >= 6; rows -= 6, a += 6 * a_stride, c += 6 * c_stride) {
        mix_tile(format, 6, a, a_stride, b, b_stride, depth, c, c_stride, width);
    }
    switch (rows) {
    case 5: mix_tile(format, 5, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    case 4: mix_tile(format, 4, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    case 3: mix_tile(format, 3, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    case 2: mix_tile(format, 2, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    case 1: mix_tile(format, 1, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    default: break;
    }
}

/* c[rows][width] += a[rows][depth] b[depth][width] for width <= 16; b_stride in bytes. */
static void mix(int format, int64_t rows, const float *a, int64_t a_stride, const void *b, int64_t b_stride,
                int64_t depth, float *c, int64_t c_stride, int64_t width) {
    switch (format) {
    case HW_F32: mix_as(HW_F32, rows, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    case HW_F16: mix_as(HW_F16, rows, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    case HW_I8: mix_as(HW_I8, rows, a, a_stride, b, b_stride, depth, c, c_stride, width); break;
    default: mix_as(HW_BF16, rows, a, a_stride, b, b_stride, depth, c, c_stride, width);
    }
}

/* panel[cols][16] from up to 16 weight rows; missing ones are zero. */
static void panel_pack(const hw_matrix *m, int64_t row, float *panel) {
    int64_t rows = m->rows - row < PANEL ? m->rows - row : PANEL;
    const uint8_t *w = (const uint8_t *)m->data + row * m->stride;
    for (int64_t k = 0; k < m->cols; k += 8) {
        int64_t count = m->cols - k < 8 ? m->cols - k : 8;
        float block[PANEL][8];
        for (int64_t r = 0; r < PANEL; r++) {
            f8_store(block[r], r < rows ? load_part_as(m->format, w + r * m->stride, k, count) : f8_zero());
        }
        for (int64_t i = 0; i < count; i++) {
            for (int64_t r = 0; r < PANEL; r++) panel[(k + i) * PANEL + r] = block[r][i];
        }
    }
}
