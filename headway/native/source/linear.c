/* y = scale (x W^T + bias) [+ y] for several matrices that read the same x, in pieces for the pool. */

#define PIECE_BYTES 24576 /* weights in a piece: a microsecond or two at the speed of memory */

typedef struct linear_run {
    const hw_linear_args *args;
    int64_t n;
    rounded x;                   /* when some target is quantised */
    int64_t blocks;              /* of 32 columns in x */
    uint8_t *scratch;            /* of one thread after the other, `scratch_bytes` each */
    int64_t scratch_bytes;
    hw_layout layout[HW_TARGETS];
    int64_t rows_each[HW_TARGETS]; /* weight rows in a piece */
    int64_t pieces[HW_TARGETS];
} linear_run;

static int64_t up(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

/* Columns as they are rounded: a whole number of groups. */
static int64_t blocks_of(const hw_layout *layout) { return layout->groups * layout->blocks; }

/* Memory that one thread needs for this matrix. */
static int64_t thread_scratch(const hw_matrix *m, int64_t n) {
    if (hw_is_float(m->format)) return n >= TILED_ROWS ? up(m->cols * PANEL * (int64_t)sizeof(float), 64) : 0;
    return m->packed ? 0 : up(hw_layout_of(m).octet, 64);
}

/* Eight sums of one activation row to their place. */
ALWAYS void finish(const hw_linear_args *a, const hw_target *t, int64_t row, int64_t token, f8 sum) {
    int64_t count = t->matrix->rows - row;
    float *y = t->y + token * t->y_stride + row;
    if (t->bias) sum = f8_add(sum, f8_load_part(t->bias + row, count));
    sum = f8_mul(sum, f8_set(a->scale));
    if (a->accumulate) sum = f8_add(sum, f8_load_part(y, count));
    f8_store_part(y, sum, count);
}

static void packed_rows(const linear_run *run, int which, int64_t from, int64_t to, uint8_t *scratch) {
    const hw_target *t = &run->args->target[which];
    const hw_matrix *m = t->matrix;
    const hw_layout *l = &run->layout[which];
    octet_function *dot = octet_of(m);
    _Alignas(64) float out[TILE * 8];
    for (int64_t row = from; row < to; row += 8) {
        const uint8_t *w = (const uint8_t *)m->data + row / 8 * l->octet;
        if (!m->packed) hw_pack_octet(m, l, row / 8, scratch), w = scratch;
        for (int64_t tile = 0; tile < run->x.tiles; tile++) {
            int64_t j = tile * TILE, count = run->n - j < TILE ? run->n - j : TILE;
            dot(w, l, run->x, tile, count, out);
            for (int64_t i = 0; i < count; i++) finish(run->args, t, row, j + i, f8_load(out + 8 * i));
        }
    }
}

static void float_rows_few(const linear_run *run, int which, int64_t from, int64_t to) {
    const hw_linear_args *a = run->args;
    const hw_target *t = &a->target[which];
    const hw_matrix *m = t->matrix;
    _Alignas(64) float out[TILED_ROWS * 8];
    for (int64_t row = from; row < to; row += 8) {
        int64_t rows = to - row < 8 ? to - row : 8;
        const uint8_t *w = (const uint8_t *)m->data + row * m->stride;
        dots(m->format, w, m->stride, rows, m->cols, a->x, a->x_stride, run->n, out, 8);
        for (int64_t j = 0; j < run->n; j++) finish(a, t, row, j, f8_load(out + 8 * j));
    }
}

static void float_rows_many(const linear_run *run, int which, int64_t from, int64_t to, float *panel) {
    const hw_linear_args *a = run->args;
    const hw_target *t = &a->target[which];
    const hw_matrix *m = t->matrix;
    for (int64_t row = from; row < to; row += PANEL) {
        panel_pack(m, row, panel);
        for (int64_t j = 0; j < run->n; j += STRIP) {
            int64_t count = run->n - j < STRIP ? run->n - j : STRIP;
            _Alignas(64) float out[STRIP * PANEL] = {0};
            for (int64_t k = 0; k < m->cols; k += PANEL_DEPTH) {
                int64_t depth = m->cols - k < PANEL_DEPTH ? m->cols - k : PANEL_DEPTH;
                mix(HW_F32, count, a->x + j * a->x_stride + k, a->x_stride, panel + k * PANEL, PANEL * 4, depth, out, PANEL, PANEL);
            }
            for (int64_t i = 0; i < count; i++) {
                finish(a, t, row, j + i, f8_load(out + PANEL * i));
                if (row + 8 < m->rows) finish(a, t, row + 8, j + i, f8_load(out + PANEL * i + 8));
            }
        }
    }
}

static void linear_piece(void *context, int64_t piece, int32_t thread) {
    const linear_run *run = context;
    int which = 0;
    for (; piece >= run->pieces[which]; which++) piece -= run->pieces[which];
    const hw_matrix *m = run->args->target[which].matrix;
    int64_t from = piece * run->rows_each[which], to = from + run->rows_each[which];
    if (to > m->rows) to = m->rows;
    uint8_t *scratch = run->scratch + thread * run->scratch_bytes;
    if (!hw_is_float(m->format)) packed_rows(run, which, from, to, scratch);
    else if (run->n < TILED_ROWS) float_rows_few(run, which, from, to);
    else float_rows_many(run, which, from, to, (float *)scratch);
}

/* Rows for a piece: PIECE_BYTES of weights, fewer when many activation rows make each weight dear. */
static int64_t rows_for_piece(const hw_matrix *m, const hw_layout *l, int64_t n) {
    int64_t unit = l->bits ? 8 : PANEL;
    int64_t bytes = l->bits ? l->octet : unit * m->cols * size_of(m->format);
    int64_t units = PIECE_BYTES / (bytes * (1 + n / 16));
    return unit * (units < 1 ? 1 : units);
}

typedef struct round_run { const hw_linear_args *args; rounded x; int64_t cols, blocks; } round_run;

static void round_tile(void *context, int64_t tile, int32_t thread) {
    (void)thread;
    const round_run *r = context;
    for (int64_t j = tile * TILE; j < (tile + 1) * TILE && j < r->x.n; j++) {
        round_row(r->args->x + j * r->args->x_stride, r->cols, r->blocks, r->x, j);
    }
}

static void linear(const void *args, hw_pool *pool) {
    const hw_linear_args *a = args;
    linear_run run = {.args = a, .n = *a->n};
    int64_t pieces = 0;
    for (int i = 0; i < a->targets; i++) {
        const hw_matrix *m = a->target[i].matrix;
        run.layout[i] = hw_layout_of(m);
        run.rows_each[i] = rows_for_piece(m, &run.layout[i], run.n);
        run.pieces[i] = (m->rows + run.rows_each[i] - 1) / run.rows_each[i];
        pieces += run.pieces[i];
        if (blocks_of(&run.layout[i]) > run.blocks) run.blocks = blocks_of(&run.layout[i]);
        if (thread_scratch(m, run.n) > run.scratch_bytes) run.scratch_bytes = thread_scratch(m, run.n);
    }
    run.scratch = (uint8_t *)a->work + up(rounded_bytes(run.n, run.blocks), 64);
    if (run.blocks) {
        run.x = rounded_in(a->work, run.n, run.blocks);
        round_run rounding = {a, run.x, a->target[0].matrix->cols, run.blocks};
        hw_share(pool, round_tile, &rounding, run.x.tiles);
    }
    if (run.n > 0) hw_share(pool, linear_piece, &run, pieces);
}

/* So much for every thread that the largest answer over single matrices serves them together: the panel of a float
 * matrix beside the rounded input of a quantised one. */
static int64_t linear_work(const hw_linear_args *a, int64_t n, int32_t threads) {
    int64_t blocks = 0, scratch = 0;
    for (int i = 0; i < a->targets; i++) {
        const hw_matrix *m = a->target[i].matrix;
        hw_layout layout = hw_layout_of(m);
        int64_t panel = up((m->cols < 128 ? 128 : m->cols) * PANEL * (int64_t)sizeof(float), 64);
        int64_t each = layout.octet > panel ? up(layout.octet, 64) : panel;
        int64_t across = layout.bits ? blocks_of(&layout) : (m->cols + 31) / 32;
        if (across > blocks) blocks = across;
        if (each > scratch) scratch = each;
    }
    return up(rounded_bytes(n, blocks), 64) + threads * scratch;
}
