/* The largest of a row of logits: argmax, and the top k in order. */

/* NaN above everything, then larger first, of equals the lower id. */
ALWAYS int before(float x, int32_t i, float y, int32_t j) {
    int x_nan = x != x, y_nan = y != y;
    if (x_nan != y_nan) return x_nan;
    if (!x_nan && x != y) return x > y;
    return i < j;
}

/* 1 when any of x[0..7] is NaN or at least `least`. */
ALWAYS int worth(const float *x, float least) {
    int any = 0;
    for (int i = 0; i < 8; i++) any |= !(x[i] < least);
    return any;
}

static void argmax_row(const float *x, int64_t width, int32_t *id, float *value) {
    f8 most = f8_set(-INFINITY), bad = f8_zero();
    for (int64_t i = 0; i + 8 <= width; i += 8) {
        f8 eight = f8_load(x + i);
        most = f8_max(eight, most);
        bad = f8_if_less(eight, f8_set(INFINITY), bad, f8_sub(eight, eight)); /* NaN stays, infinity becomes NaN */
    }
    float largest = f8_largest(most), wrong = f8_sum(bad);
    int64_t best = 0;
    if (wrong != wrong) { /* rare: look at each */
        for (int64_t i = 1; i < width; i++) {
            if (before(x[i], (int32_t)i, x[best], (int32_t)best)) best = i;
        }
    } else {
        int64_t tail = width / 8 * 8;
        while (best < tail && x[best] != largest) best++;
        if (best == tail) best = 0;
        for (int64_t i = tail; i < width; i++) {
            if (before(x[i], (int32_t)i, x[best], (int32_t)best)) best = i;
        }
    }
    *id = (int32_t)best;
    if (value) *value = x[best];
}

/* The heap's root is the worst kept: the one that the next better pushes out. */
static void sink(int32_t *ids, const float *x, int64_t count, int64_t at) {
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) return;
        if (child + 1 < count && before(x[ids[child]], ids[child], x[ids[child + 1]], ids[child + 1])) child++;
        if (!before(x[ids[at]], ids[at], x[ids[child]], ids[child])) return;
        int32_t moved = ids[at];
        ids[at] = ids[child], ids[child] = moved;
        at = child;
    }
}

static void top_row(const float *x, int64_t width, int64_t k, int32_t *ids) {
    for (int64_t i = 0; i < k; i++) ids[i] = (int32_t)i;
    for (int64_t at = k / 2 - 1; at >= 0; at--) sink(ids, x, k, at);
    for (int64_t i = k; i < width;) {
        if (i + 8 <= width && !worth(x + i, x[ids[0]])) {
            i += 8;
            continue;
        }
        int64_t end = i + 8 < width ? i + 8 : width;
        for (; i < end; i++) {
            if (!before(x[i], (int32_t)i, x[ids[0]], ids[0])) continue;
            ids[0] = (int32_t)i;
            sink(ids, x, k, 0);
        }
    }
    for (int64_t left = k - 1; left > 0; left--) { /* worst to the end, one after the other */
        int32_t moved = ids[0];
        ids[0] = ids[left], ids[left] = moved;
        sink(ids, x, left, 0);
    }
}

static void top_of_row(const void *args, int64_t row) {
    const hw_top_args *a = args;
    const float *x = a->x + row * a->x_stride;
    int32_t *ids = a->ids + row * a->k;
    float *values = a->values ? a->values + row * a->k : NULL;
    if (a->k == 1) {
        argmax_row(x, a->width, ids, values);
        return;
    }
    top_row(x, a->width, a->k, ids);
    for (int64_t i = 0; values && i < a->k; i++) values[i] = x[ids[i]];
}

static void top(const void *args, hw_pool *pool) {
    const hw_top_args *a = args;
    for_rows(a, *a->n, a->width, top_of_row, pool);
}
