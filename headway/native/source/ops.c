/* Operations on rows: norms, rotation, cache writes, activations, sums, embeddings, copies. */

#define SERIAL_FLOATS 16384 /* less than this is done by the caller alone */

typedef struct rows_run { const void *args; int64_t n, each; void (*row)(const void *args, int64_t row); } rows_run;

static void rows_piece(void *context, int64_t piece, int32_t thread) {
    (void)thread;
    const rows_run *r = context;
    int64_t end = (piece + 1) * r->each < r->n ? (piece + 1) * r->each : r->n;
    for (int64_t row = piece * r->each; row < end; row++) r->row(r->args, row);
}

/* row(args, i) for i below n; rows of about `width` floats. */
static void for_rows(const void *args, int64_t n, int64_t width, void (*row)(const void *, int64_t), hw_pool *pool) {
    int64_t each = SERIAL_FLOATS / 2 / (width + 1) + 1;
    rows_run run = {args, n, n * width < SERIAL_FLOATS ? n : each, row};
    if (n > 0) hw_share(pool, rows_piece, &run, (n + run.each - 1) / run.each);
}

/* Sum over i < width of `expression` in eight lanes, with x the loaded values, zero past the end. */
#define SUM_OF(total, from, width, expression)                                          \
    do {                                                                                \
        f8 sum = f8_zero();                                                             \
        for (int64_t i = 0; i < (width); i += 8) {                                      \
            f8 x = f8_load_part((from) + i, (width) - i);                               \
            sum = f8_add(sum, (expression));                                            \
        }                                                                               \
        (total) = f8_sum(sum);                                                          \
    } while (0)

ALWAYS void norm_store(const hw_norm_args *a, float *y, int64_t i, f8 x) {
    int64_t left = a->width - i;
    if (a->weight) x = f8_mul(x, f8_add(f8_load_part(a->weight + i, left), f8_set(a->offset)));
    if (a->bias) x = f8_add(x, f8_load_part(a->bias + i, left));
    f8_store_part(y + i, x, left);
}

static void rms_norm_row(const void *args, int64_t row) {
    const hw_norm_args *a = args;
    for (int64_t h = 0; h < a->per; h++) {
        const float *from = a->x + row * a->x_stride + h * a->width;
        float *y = a->y + row * a->y_stride + h * a->width, squares;
        SUM_OF(squares, from, a->width, f8_mul(x, x));
        f8 by = f8_set(1.0f / sqrtf(squares / (float)a->width + a->eps));
        for (int64_t i = 0; i < a->width; i += 8) norm_store(a, y, i, f8_mul(f8_load_part(from + i, a->width - i), by));
    }
}

static void layer_norm_row(const void *args, int64_t row) {
    const hw_norm_args *a = args;
    for (int64_t h = 0; h < a->per; h++) {
        const float *from = a->x + row * a->x_stride + h * a->width;
        float *y = a->y + row * a->y_stride + h * a->width, total, squares;
        SUM_OF(total, from, a->width, x);
        f8 mean = f8_set(total / (float)a->width);
        f8 apart = f8_zero();
        for (int64_t i = 0; i < a->width; i += 8) { /* past the end the mean itself, which is apart by nothing */
            float block[8];
            f8_store(block, mean);
            int64_t left = a->width - i < 8 ? a->width - i : 8;
            memcpy(block, from + i, (size_t)left * sizeof(float));
            f8 off = f8_sub(f8_load(block), mean);
            apart = f8_fma(off, off, apart);
        }
        squares = f8_sum(apart);
        f8 by = f8_set(1.0f / sqrtf(squares / (float)a->width + a->eps));
        for (int64_t i = 0; i < a->width; i += 8) {
            norm_store(a, y, i, f8_mul(f8_sub(f8_load_part(from + i, a->width - i), mean), by));
        }
    }
}

static void rms_norm(const void *args, hw_pool *pool) {
    const hw_norm_args *a = args;
    for_rows(a, *a->n, a->width * a->per, rms_norm_row, pool);
}

static void layer_norm(const void *args, hw_pool *pool) {
    const hw_norm_args *a = args;
    for_rows(a, *a->n, a->width * a->per, layer_norm_row, pool);
}

/* (x, y) turned to (x cos - y sin, y cos + x sin); x and y are `half` apart. */
static void rotate_halves(float *head, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i += 8) {
        int64_t left = half - i;
        f8 x = f8_load_part(head + i, left), y = f8_load_part(head + half + i, left);
        f8 c = f8_load_part(cos + i, left), s = f8_load_part(sin + i, left);
        f8_store_part(head + i, f8_sub(f8_mul(x, c), f8_mul(y, s)), left);
        f8_store_part(head + half + i, f8_fma(y, c, f8_mul(x, s)), left);
    }
}

static void rotate_neighbours(float *head, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float x = head[2 * i], y = head[2 * i + 1];
        head[2 * i] = x * cos[i] - y * sin[i];
        head[2 * i + 1] = y * cos[i] + x * sin[i];
    }
}

static void rotary_row(const void *args, int64_t row) {
    const hw_rotary_args *a = args;
    int64_t half = a->dim / 2, position = a->positions[row];
    if (position < 0 || position >= a->table_rows) return;
    const float *cos = a->cos + position * half, *sin = a->sin + position * half;
    for (int64_t h = 0; h < a->heads; h++) {
        float *head = a->x + row * a->x_stride + h * a->head_dim;
        if (a->interleaved) rotate_neighbours(head, cos, sin, half);
        else rotate_halves(head, cos, sin, half);
    }
}

static void rotary(const void *args, hw_pool *pool) {
    const hw_rotary_args *a = args;
    for_rows(a, *a->n, (int64_t)a->heads * a->head_dim, rotary_row, pool);
}

/* Floats written in the format of a cache. */
static void store_as(int format, void *to, int64_t at, const float *from, int64_t count) {
    if (format == HW_F32) {
        memcpy((float *)to + at, from, (size_t)count * sizeof(float));
        return;
    }
    uint16_t *out = (uint16_t *)to + at, eight[8];
    for (int64_t i = 0; i < count; i += 8) {
        int64_t left = count - i < 8 ? count - i : 8;
        f8 x = f8_load_part(from + i, left);
        if (format == HW_F16) {
            f8_store_half(eight, x);
        } else {
            float values[8];
            f8_store(values, x);
            for (int j = 0; j < 8; j++) { /* to nearest, ties to even; NaN stays one */
                uint32_t bits;
                memcpy(&bits, &values[j], 4);
                if (values[j] == values[j]) bits += 0x7fff + (bits >> 16 & 1);
                else bits |= 0x400000;
                eight[j] = (uint16_t)(bits >> 16);
            }
        }
        memcpy(out + i, eight, (size_t)left * 2);
    }
}

/* Floats as bytes; what one of them stands for comes back, NaN when a float is no number. */
static float store_bytes(int8_t *to, const float *from, int64_t count) {
    f8 most = f8_zero(), bad = f8_zero();
    for (int64_t i = 0; i < count; i += 8) {
        f8 x = f8_load_part(from + i, count - i);
        most = f8_max(most, f8_abs(x)), bad = f8_fma(x, f8_zero(), bad);
    }
    float largest = f8_largest(most), wrong = f8_sum(bad);
    if (wrong != wrong || !(largest > LEAST_ROUNDED)) {
        memset(to, 0, (size_t)count);
        return wrong;
    }
    f8 by = f8_set(127.0f / largest);
    for (int64_t i = 0; i < count; i += 32) {
        f8 x[4] = {f8_zero(), f8_zero(), f8_zero(), f8_zero()};
        int64_t left = count - i < 32 ? count - i : 32;
        for (int64_t j = 0; 8 * j < left; j++) x[j] = f8_mul(f8_load_part(from + i + 8 * j, left - 8 * j), by);
        int8_t bytes[32];
        bytes_store(bytes, x[0], x[1], x[2], x[3]);
        memcpy(to + i, bytes, (size_t)left);
    }
    return largest * (1.0f / 127.0f);
}

static void keep_row(const void *args, int64_t token) {
    const hw_keep_args *a = args;
    const hw_cache *c = a->cache;
    int64_t row = a->rows ? a->rows[token] : 0, position = a->positions[token];
    if (row < 0 || row >= c->rows || position < 0) return;
    int64_t place = position % c->room;
    for (int64_t h = 0; h < c->kv_heads; h++) {
        const float *k = a->k + token * a->k_stride + h * c->head_dim, *v = a->v + token * a->v_stride + h * c->value_dim;
        int64_t k_at = row * c->k_row + h * c->k_head + place * c->head_dim;
        int64_t v_at = row * c->v_row + h * c->v_head + place * c->value_dim;
        if (c->format == HW_I8) {
            int64_t scale = (row * c->kv_heads + h) * c->room + place;
            c->k_scale[scale] = store_bytes((int8_t *)c->k + k_at, k, c->head_dim);
            c->v_scale[scale] = store_bytes((int8_t *)c->v + v_at, v, c->value_dim);
        } else {
            store_as(c->format, c->k, k_at, k, c->head_dim);
            store_as(c->format, c->v, v_at, v, c->value_dim);
        }
    }
}

/* In order and by one thread: of two tokens at one place of a ring the later stays. */
static void keep(const void *args, hw_pool *pool) {
    (void)pool;
    const hw_keep_args *a = args;
    for (int64_t token = 0; token < *a->n; token++) keep_row(a, token);
}

ALWAYS void activation_as(int kind, const hw_activation_args *a, int64_t row) {
    const float *x = a->x + row * a->x_stride, *gate = a->gate ? a->gate + row * a->gate_stride : NULL;
    float *y = a->y + row * a->y_stride;
    for (int64_t i = 0; i < a->width; i += 8) {
        int64_t left = a->width - i;
        f8 value = f8_activate(kind, f8_load_part(x + i, left));
        if (gate) value = f8_mul(value, f8_load_part(gate + i, left));
        f8_store_part(y + i, value, left);
    }
}

static void activation_row(const void *args, int64_t row) {
    const hw_activation_args *a = args;
    switch (a->kind) {
    case HW_RELU: activation_as(HW_RELU, a, row); break;
    case HW_GELU: activation_as(HW_GELU, a, row); break;
    case HW_GELU_TANH: activation_as(HW_GELU_TANH, a, row); break;
    case HW_GELU_QUICK: activation_as(HW_GELU_QUICK, a, row); break;
    case HW_SILU: activation_as(HW_SILU, a, row); break;
    case HW_SIGMOID: activation_as(HW_SIGMOID, a, row); break;
    default: activation_as(HW_TANH, a, row);
    }
}

static void activation(const void *args, hw_pool *pool) {
    const hw_activation_args *a = args;
    for_rows(a, *a->n, a->width * 4, activation_row, pool);
}

static void combine_row(const void *args, int64_t row) {
    const hw_combine_args *a = args;
    for (int64_t i = 0; i < a->width; i += 8) {
        int64_t left = a->width - i;
        f8 value = f8_mul(f8_load_part(a->a + row * a->a_stride + i, left), f8_set(a->a_scale));
        if (a->vector) value = f8_mul(value, f8_load_part(a->vector + i, left));
        if (a->b) value = f8_add(value, f8_mul(f8_load_part(a->b + row * a->b_stride + i, left), f8_set(a->b_scale)));
        f8_store_part(a->y + row * a->y_stride + i, value, left);
    }
}

static void combine(const void *args, hw_pool *pool) {
    const hw_combine_args *a = args;
    for_rows(a, *a->n, a->width, combine_row, pool);
}

static void softcap_row(const void *args, int64_t row) {
    const hw_softcap_args *a = args;
    f8 cap = f8_set(a->cap), by = f8_set(1.0f / a->cap);
    for (int64_t i = 0; i < a->width; i += 8) {
        f8 x = f8_load_part(a->x + row * a->x_stride + i, a->width - i);
        f8_store_part(a->y + row * a->y_stride + i, f8_mul(cap, f8_tanh(f8_mul(x, by))), a->width - i);
    }
}

static void softcap(const void *args, hw_pool *pool) {
    const hw_softcap_args *a = args;
    for_rows(a, *a->n, a->width * 4, softcap_row, pool);
}

static void embed_row(const void *args, int64_t token) {
    const hw_embed_args *a = args;
    const hw_matrix *m = a->matrix;
    float *y = a->y + token * a->y_stride, span[HW_SPAN];
    int64_t id = a->ids[token], count;
    for (int64_t column = 0; column < m->cols; column += count) {
        if (id >= 0 && id < m->rows) {
            count = hw_decode(m, id, column, span);
        } else {
            count = m->cols - column < HW_SPAN ? m->cols - column : HW_SPAN;
            for (int64_t i = 0; i < count; i++) span[i] = NAN;
        }
        for (int64_t i = 0; i < count; i++) y[column + i] = a->scale * span[i] + (a->accumulate ? y[column + i] : 0.0f);
    }
}

static void embed(const void *args, hw_pool *pool) {
    const hw_embed_args *a = args;
    for_rows(a, *a->n, a->matrix->cols * 8, embed_row, pool);
}

static void gather_row(const void *args, int64_t row) {
    const hw_gather_args *a = args;
    int64_t from = a->index ? a->index[row] : row;
    memmove(a->y + row * a->y_stride, a->x + from * a->x_stride, (size_t)a->width * sizeof(float));
}

/* In order: y may be x when rows move towards the front. */
static void gather(const void *args, hw_pool *pool) {
    (void)pool;
    const hw_gather_args *a = args;
    for (int64_t row = 0; row < *a->n; row++) gather_row(a, row);
}
