/* Attention of new tokens over a cache, tile by tile of keys, with the softmax carried along (arXiv 2112.05682).
 *
 * An item is a few tokens of one cache row and the query heads that share one key head: its rows (tokens x heads) meet
 * each tile of keys together, so a key is read once from memory. A tile is a run of keys that lie side by side: a
 * stretch of the ring, or the step's own fresh keys. When there are too few items for the threads, the keys of each
 * are split, every split keeps its own maximum, sum and values, and the caller joins them.
 */

#define ROWS 32      /* query rows of an item */
#define KEYS 32      /* keys of a tile */
#define SPLIT 256    /* keys worth a split of their own */
#define SPLITS 16
#define FAR 512      /* more keys than these come from memory rather than from a cache */
#define STRIDE 8     /* keys between one fetch and the next, so that memory is never asked for much at once */

typedef struct attention_run {
    const hw_attention_args *a;
    int64_t n, group, chunk, chunks; /* query heads per key head, of which `chunk` at once, in `chunks` parts */
    const int32_t *starts;           /* first token of each block, and n after the last */
    int64_t blocks, items, splits;
    float *scratch, *partial;
    int64_t scratch_floats, partial_floats;
} attention_run;

/* What one item or split has gathered: for each row the largest score, the sum of weights, and weighted values. */
typedef struct gathered { float *most, *sum, *values; } gathered;

typedef struct item {
    int64_t token, tokens, kv, head, heads, rows; /* rows = tokens x heads */
    int64_t row;                                  /* of the cache */
    int64_t start, first;                         /* position and index of the row's first fresh token */
    int64_t low[ROWS], high[ROWS];                /* positions that each token sees */
    int64_t least, most;
} item;

static int64_t head_floats(const hw_cache *c) { return up(c->value_dim, 8) + 2; }
static int64_t item_scratch(const hw_cache *c) {
    return up(ROWS * (up(c->head_dim, 8) + KEYS + head_floats(c)), 16);
}

static gathered gathered_in(float *memory, int64_t rows) { return (gathered){memory, memory + rows, memory + 2 * rows}; }

static int64_t heads_at_once(int64_t group) { return group < ROWS ? group : ROWS; }

/* Tokens in blocks: of one cache row, no more than fit. */
static int64_t find_blocks(const hw_attention_args *a, int64_t n, int64_t most, int32_t *starts) {
    int64_t blocks = 0;
    for (int64_t t = 0; t < n; t++) {
        int other = t == 0 || (a->rows && a->rows[t] != a->rows[t - 1]) || t - starts[blocks - 1] == most;
        if (other) starts[blocks++] = (int32_t)t;
    }
    starts[blocks] = (int32_t)n;
    return blocks;
}

/* Positions that a token sees, none when it or its row is out of bounds. */
static void see(const hw_attention_args *a, const item *it, int64_t n, int64_t token, int64_t *low, int64_t *high) {
    int64_t p = a->positions[token];
    *low = 0, *high = -1;
    if (p < 0 || it->row < 0 || it->row >= a->cache->rows) return;
    *high = a->causal ? p : a->lengths[it->row] - 1;
    if (!a->causal && a->after >= 0 && p + a->after < *high) *high = p + a->after;
    if (a->before >= 0 && p - a->before > 0) *low = p - a->before;
    if (a->fresh_k && *high > it->start + n - 1 - it->first) *high = it->start + n - 1 - it->first;
    int64_t end = a->fresh_k ? it->start : *high + 1; /* what the cache holds ends here */
    if (*low < end - a->cache->room) *low = end - a->cache->room;
}

static item item_of(const attention_run *run, int64_t index) {
    const hw_attention_args *a = run->a;
    item it = {0};
    int64_t part = index % run->chunks;
    it.kv = index / run->chunks % a->cache->kv_heads;
    int64_t block = index / run->chunks / a->cache->kv_heads;
    it.token = run->starts[block], it.tokens = run->starts[block + 1] - it.token;
    it.head = it.kv * run->group + part * run->chunk;
    it.heads = run->group - part * run->chunk < run->chunk ? run->group - part * run->chunk : run->chunk;
    it.rows = it.tokens * it.heads;
    it.row = a->rows ? a->rows[it.token] : 0;
    it.first = a->fresh_k ? a->first[it.token] : it.token;
    it.start = a->positions[it.token] - (it.token - it.first);
    it.least = INT64_MAX, it.most = -1;
    for (int64_t t = 0; t < it.tokens; t++) {
        see(a, &it, run->n, it.token + t, &it.low[t], &it.high[t]);
        if (it.high[t] < it.low[t]) continue;
        if (it.low[t] < it.least) it.least = it.low[t];
        if (it.high[t] > it.most) it.most = it.high[t];
    }
    return it;
}

/* Keys and values from position `p` on that lie side by side. */
typedef struct stretch {
    const uint8_t *k, *v;
    int64_t k_stride, v_stride, count;
    int format;
    const float *k_scale, *v_scale; /* [count], of bytes */
} stretch;

static stretch stretch_at(const hw_attention_args *a, const item *it, int64_t p, int64_t end) {
    const hw_cache *c = a->cache;
    int64_t count = end - p < KEYS ? end - p : KEYS;
    if (a->fresh_k && p >= it->start) {
        int64_t index = it->first + p - it->start;
        return (stretch){(const uint8_t *)(a->fresh_k + index * a->fresh_k_stride + it->kv * c->head_dim),
                         (const uint8_t *)(a->fresh_v + index * a->fresh_v_stride + it->kv * c->value_dim),
                         a->fresh_k_stride * 4, a->fresh_v_stride * 4, count, HW_F32, NULL, NULL};
    }
    if (a->fresh_k && count > it->start - p) count = it->start - p;
    int64_t place = p % c->room, size = size_of(c->format);
    if (count > c->room - place) count = c->room - place;
    int64_t scale = (it->row * c->kv_heads + it->kv) * c->room + place;
    return (stretch){(const uint8_t *)c->k + (it->row * c->k_row + it->kv * c->k_head + place * c->head_dim) * size,
                     (const uint8_t *)c->v + (it->row * c->v_row + it->kv * c->v_head + place * c->value_dim) * size,
                     c->head_dim * size, c->value_dim * size, count, c->format,
                     c->format == HW_I8 ? c->k_scale + scale : NULL, c->format == HW_I8 ? c->v_scale + scale : NULL};
}

static void fetch_queries(const attention_run *run, const item *it, float *q, int64_t dim) {
    const hw_attention_args *a = run->a;
    for (int64_t r = 0; r < it->rows; r++) {
        const float *from = a->q + (it->token + r / it->heads) * a->q_stride + (it->head + r % it->heads) * a->cache->head_dim;
        for (int64_t i = 0; i < a->cache->head_dim; i += 8) {
            int64_t left = a->cache->head_dim - i;
            f8_store_part(q + r * dim + i, f8_mul(f8_load_part(from + i, left), f8_set(a->scale)), left);
        }
    }
}

/* Numbers of a tile's keys or values, in bytes until now, to what these stand for. */
static void rescale(const float *scale, int64_t count, float *s) {
    for (int64_t i = 0; i < count; i++) s[i] *= scale[i];
}

/* Softcap, bias and slope on the scores of keys p .. p + count - 1; both come after the scale. */
static void adjust(const hw_attention_args *a, int64_t head, int64_t token, int64_t p, int64_t count, float *s) {
    if (a->softcap != 0.0f) {
        f8 cap = f8_set(a->softcap), by = f8_set(1.0f / a->softcap);
        for (int64_t i = 0; i < count; i += 8) f8_store(s + i, f8_mul(cap, f8_tanh(f8_mul(f8_load(s + i), by))));
    }
    if (a->bias) {
        const float *bias = a->bias + head * a->bias_head + token * a->bias_token + p;
        for (int64_t i = 0; i < count; i++) s[i] += bias[i];
    }
    if (a->slopes) {
        int64_t at = a->positions[token] - p;
        for (int64_t i = 0; i < count; i++) s[i] -= a->slopes[head] * fabsf((float)(at - i));
    }
}

/* Scores [KEYS] of one row to weights; what was gathered before shrinks when a larger score has come. */
static void weigh(float *s, int64_t from, int64_t to, int64_t count, gathered g, int64_t r, int64_t value_stride) {
    for (int64_t i = 0; i < from; i++) s[i] = -INFINITY;
    for (int64_t i = to; i < up(count, 8); i++) s[i] = -INFINITY;
    f8 most = f8_set(g.most[r]);
    for (int64_t i = 0; i < count; i += 8) most = f8_max(f8_load(s + i), most);
    float largest = f8_largest(most);
    if (largest == -INFINITY) { /* nothing seen yet, or NaN alone: the sum shows which */
        f8 wrong = f8_zero();
        for (int64_t i = from; i < to; i++) wrong = f8_add(wrong, f8_set(s[i] != s[i] ? s[i] : 0.0f));
        g.sum[r] += f8_sum(wrong);
        memset(s, 0, (size_t)up(count, 8) * sizeof *s);
        return;
    }
    f8 sum = f8_zero(), by = f8_set(largest);
    for (int64_t i = 0; i < count; i += 8) {
        f8 weight = f8_exp(f8_sub(f8_load(s + i), by));
        f8_store(s + i, weight);
        sum = f8_add(sum, weight);
    }
    if (largest > g.most[r]) {
        float shrink = g.most[r] == -INFINITY ? 0.0f : expf(g.most[r] - largest);
        g.sum[r] *= shrink;
        for (int64_t i = 0; i < value_stride; i += 8) {
            f8_store(g.values + r * value_stride + i, f8_mul(f8_load(g.values + r * value_stride + i), f8_set(shrink)));
        }
        g.most[r] = largest;
    }
    g.sum[r] += f8_sum(sum);
}

ALWAYS void fetch_ahead(const uint8_t *rows, int64_t stride, int64_t bytes) {
    for (int64_t i = 0; i < STRIDE; i++) {
        for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(rows + i * stride + line);
    }
}

/* Scores of a tile; from far away, its values are fetched meanwhile. */
static void score(const hw_cache *c, const stretch *s, const float *q, int64_t dim, int64_t rows, int far, float *scores) {
    for (int64_t i = 0; i < s->count; i += STRIDE) {
        if (far) fetch_ahead(s->v + i * s->v_stride, s->v_stride, c->value_dim * size_of(s->format));
        int64_t count = s->count - i < STRIDE ? s->count - i : STRIDE;
        dots(s->format, s->k + i * s->k_stride, s->k_stride, count, c->head_dim, q, dim, rows, scores + i, KEYS);
    }
}

/* Weighted values of a tile; from far away, the keys behind it are fetched meanwhile. */
static void blend(const hw_cache *c, const stretch *s, const float *weights, int64_t rows, int far, float *values, int64_t stride) {
    const int64_t size = size_of(s->format), step = far ? STRIDE : KEYS;
    for (int64_t i = 0; i < s->count; i += step) {
        if (far) fetch_ahead(s->k + (s->count + i) * s->k_stride, s->k_stride, c->head_dim * size);
        int64_t count = s->count - i < step ? s->count - i : step;
        for (int64_t e = 0; e < c->value_dim; e += 16) {
            int64_t width = c->value_dim - e < 16 ? c->value_dim - e : 16;
            mix(s->format, rows, weights + i, KEYS, s->v + i * s->v_stride + e * size, s->v_stride, count, values + e, stride, width);
        }
    }
}

/* Keys from .. to - 1 met by all rows of an item. */
static void gather_keys(const attention_run *run, const item *it, int64_t from, int64_t to, float *scratch, gathered g) {
    const hw_attention_args *a = run->a;
    const hw_cache *c = a->cache;
    int64_t dim = up(c->head_dim, 8), value_stride = up(c->value_dim, 8);
    float *q = scratch, *scores = scratch + ROWS * dim;
    for (int64_t r = 0; r < it->rows; r++) g.most[r] = -INFINITY, g.sum[r] = 0;
    memset(g.values, 0, (size_t)(it->rows * value_stride) * sizeof(float));
    fetch_queries(run, it, q, dim);
    int far = to - from > FAR;
    for (int64_t p = from; p < to;) {
        stretch s = stretch_at(a, it, p, to);
        score(c, &s, q, dim, it->rows, far, scores);
        for (int64_t r = 0; r < it->rows; r++) {
            int64_t token = r / it->heads, low = it->low[token] - p, high = it->high[token] + 1 - p;
            if (low < 0) low = 0;
            if (high > s.count) high = s.count;
            if (high <= low) low = high = 0;
            float *row = scores + r * KEYS;
            for (int64_t i = s.count; i < up(s.count, 8); i++) row[i] = 0;
            if (s.k_scale) rescale(s.k_scale, s.count, row);
            if (high) adjust(a, it->head + r % it->heads, it->token + token, p, s.count, row);
            weigh(row, low, high, s.count, g, r, value_stride);
            if (s.v_scale) rescale(s.v_scale, s.count, row);
        }
        blend(c, &s, scores, it->rows, far, g.values, value_stride);
        p += s.count;
    }
}

/* Joins `splits` parts of an item, lets the sink take its share, and writes the rows. */
static void write_rows(const attention_run *run, const item *it, float *parts, int64_t splits) {
    const hw_attention_args *a = run->a;
    int64_t dim = a->cache->value_dim, stride = up(dim, 8);
    for (int64_t r = 0; r < it->rows; r++) {
        int64_t head = it->head + r % it->heads;
        float *y = a->y + (it->token + r / it->heads) * a->y_stride + head * dim;
        float most = a->sinks ? a->sinks[head] : -INFINITY;
        for (int64_t s = 0; s < splits; s++) {
            float m = gathered_in(parts + s * run->partial_floats, it->rows).most[r];
            if (m > most) most = m;
        }
        float sum = a->sinks ? expf(a->sinks[head] - most) : 0.0f;
        for (int64_t s = 0; s < splits; s++) {
            gathered g = gathered_in(parts + s * run->partial_floats, it->rows);
            float shrink = g.most[r] == -INFINITY ? (g.sum[r] == g.sum[r] ? 0.0f : g.sum[r]) : expf(g.most[r] - most);
            sum += shrink * g.sum[r];
            f8 by = f8_set(shrink);
            for (int64_t i = 0; i < dim; i += 8) {
                f8 value = f8_mul(f8_load(g.values + r * stride + i), by);
                if (s) value = f8_add(value, f8_load_part(y + i, dim - i));
                f8_store_part(y + i, value, dim - i);
            }
        }
        f8 by = f8_set(sum == 0.0f ? 0.0f : 1.0f / sum);
        for (int64_t i = 0; i < dim; i += 8) f8_store_part(y + i, f8_mul(f8_load_part(y + i, dim - i), by), dim - i);
    }
}

static void attention_piece(void *context, int64_t piece, int32_t thread) {
    const attention_run *run = context;
    item it = item_of(run, piece / run->splits);
    int64_t split = piece % run->splits, end = it.most + 1, from = it.least < end ? it.least : end;
    int64_t each = run->splits == 1 ? end - from : up((end - from + run->splits - 1) / run->splits, 8);
    float *scratch = run->scratch + thread * run->scratch_floats;
    float *own = run->splits == 1 ? scratch + ROWS * (up(run->a->cache->head_dim, 8) + KEYS) : run->partial + piece * run->partial_floats;
    int64_t low = from + split * each, high = low + each < end ? low + each : end;
    gather_keys(run, &it, low, high, scratch, gathered_in(own, it.rows));
    if (run->splits == 1) write_rows(run, &it, own, 1);
}

static int64_t widest(const attention_run *run) {
    int64_t most = 0;
    for (int64_t i = 0; i < run->items; i += run->chunks * run->a->cache->kv_heads) {
        item it = item_of(run, i);
        if (it.most - it.least + 1 > most) most = it.most - it.least + 1;
    }
    return most;
}

static void attention(const void *args, hw_pool *pool) {
    const hw_attention_args *a = args;
    const hw_cache *c = a->cache;
    int64_t threads = hw_pool_threads(pool), n = *a->n;
    if (n <= 0) return;
    attention_run run = {.a = a, .n = n, .group = a->heads / c->kv_heads};
    run.chunk = heads_at_once(run.group), run.chunks = (run.group + run.chunk - 1) / run.chunk;
    run.blocks = find_blocks(a, n, ROWS / run.chunk, a->work);
    run.starts = a->work;
    run.items = run.blocks * c->kv_heads * run.chunks;
    run.splits = 1;
    run.scratch_floats = item_scratch(c);
    run.scratch = (float *)((uint8_t *)a->work + up((n + 1) * 4, 64));
    run.partial = run.scratch + threads * run.scratch_floats;
    run.partial_floats = up(ROWS * head_floats(c), 16);
    int64_t keys = run.items < 4 * threads ? widest(&run) : 0;
    if (threads > 1 && keys > SPLIT) run.splits = keys / SPLIT < SPLITS ? (keys + SPLIT - 1) / SPLIT : SPLITS;
    int64_t bytes = run.items * (keys ? keys : 1) * (c->head_dim + c->value_dim) * size_of(c->format);
    if (run.items < 4 * threads && bytes < 65536) pool = NULL; /* sooner done alone */
    if (run.splits > 1) {
        hw_share(pool, attention_piece, &run, run.items * run.splits);
        for (int64_t i = 0; i < run.items; i++) {
            item it = item_of(&run, i);
            write_rows(&run, &it, run.partial + i * run.splits * run.partial_floats, run.splits);
        }
        return;
    }
    hw_share(pool, attention_piece, &run, run.items);
}

static int64_t attention_work(const hw_attention_args *a, int64_t n, int32_t threads) {
    const hw_cache *c = a->cache;
    int64_t parts = 4 * threads * SPLITS * up(ROWS * head_floats(c), 16);
    return up((n + 1) * 4, 64) + (threads * item_scratch(c) + parts) * (int64_t)sizeof(float);
}
