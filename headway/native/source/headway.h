/* headway's native library: plain C functions on plain pointers, no Python and no PyTorch inside.
 *
 * Every operation takes one struct of arguments and the pool that may help: `hw_rms_norm(&args, pool)`.
 * So a whole forward step is a flat array of (operation, arguments) that `hw_run` walks without allocating.
 *
 * Conventions
 *   - Activations are float32. `x_stride` and the like count floats from one token's row to the next.
 *   - `n` points to the number of tokens of this step: what changes from step to step is read through pointers,
 *     so that a step is prepared by writing a few numbers, not by rebuilding the list.
 *   - Null is allowed where a comment says so. Nothing is checked that the caller could check once before the
 *     first step, except ids and positions, which come from outside at every step.
 *   - A row's answer does not depend on how many threads ran or on how many rows stood beside it, except for
 *     F32, F16 and BF16 matrices, whose sums are taken in another order from 32 rows upwards.
 */
#ifndef HEADWAY_H
#define HEADWAY_H

#include <stdint.h>

#define HW_ABI 2

#pragma GCC visibility push(default)

/* Formats carry GGUF's numbers; headway's own start at 100. */
enum hw_format {
    HW_F32 = 0, HW_F16 = 1, HW_Q4_0 = 2, HW_Q4_1 = 3, HW_Q5_0 = 6, HW_Q5_1 = 7, HW_Q8_0 = 8,
    HW_Q4_K = 12, HW_Q5_K = 13, HW_Q6_K = 14, HW_BF16 = 30,
    HW_I8 = 100, /* int8 [rows, cols], w = q * scale[row] */
    HW_I4 = 101, /* uint4, two a byte (even column low), w = (q - zero) * scale, one scale and zero per group */
};

/* A weight matrix W of `rows` outputs by `cols` inputs: y = x W^T. */
typedef struct hw_matrix {
    int32_t format;
    int32_t packed;      /* 0: rows one after the other, as in a file; 1: what hw_pack wrote */
    int64_t rows, cols;
    int64_t stride;      /* bytes from row to row; unused when packed */
    int32_t group;       /* HW_I4: columns that share a scale: a multiple of 32, at most 128 or the whole row */
    int32_t has_zeros;   /* HW_I4: 1 when each group has its own zero; else the zero is 8 */
    const void *data;
    const void *scales;  /* HW_I8: float32 [rows]; HW_I4: float16 [rows, groups]; null when packed and for GGUF */
    const uint8_t *zeros; /* HW_I4 with zeros: uint8 [rows, groups]; null when packed */
} hw_matrix;

typedef struct hw_pool hw_pool;

/* ---- library ---- */

int32_t hw_abi(void);
/* Bytes of the argument struct of operation `op`; of hw_matrix for -1; 0 for an unknown one. */
int64_t hw_args_size(int32_t op);
/* Names of the instruction sets built in and usable on this processor, best first, separated by spaces. */
const char *hw_paths(void);
const char *hw_path(void);
/* Chooses one by name; 0 when it went well, -1 when this processor or this build does not have it. */
int32_t hw_set_path(const char *name);

/* ---- threads ---- */

/* `threads` counts the caller; null when memory is short. One run at a time may use a pool. */
hw_pool *hw_pool_new(int32_t threads);
void hw_pool_free(hw_pool *pool);
int32_t hw_pool_threads(const hw_pool *pool);

/* ---- matrices ---- */

/* Bytes of one row as a file keeps it; 0 when `cols` does not fill whole blocks or the format is unknown. */
int64_t hw_row_bytes(const hw_matrix *matrix);
/* Bytes that hw_pack writes; 0 for formats that are never packed (F32, F16, BF16) or are unknown. */
int64_t hw_packed_bytes(const hw_matrix *matrix);
/* Interleaves the rows of `matrix` by eight into `out`; see formats.h for the layout. */
void hw_pack(const hw_matrix *matrix, void *out, hw_pool *pool);

/* ---- operations ---- */

/* y = scale * (x W^T + bias) [+ y], for up to HW_TARGETS matrices that read the same x. */
#define HW_TARGETS 4
typedef struct hw_target {
    const hw_matrix *matrix;
    const float *bias;   /* [rows] or null */
    float *y;
    int64_t y_stride;
} hw_target;
typedef struct hw_linear_args {
    const int64_t *n;
    const float *x;
    int64_t x_stride;
    int32_t targets;
    int32_t accumulate;  /* 1: added to what y holds (the residual) */
    float scale;
    hw_target target[HW_TARGETS];
    void *work;          /* hw_linear_work bytes, aligned to 64 */
} hw_linear_args;
/* Bytes of `work` that hw_linear needs for up to `n` rows on this pool; reads the targets' matrices alone. Of several
 * linears, or of the targets of one asked for one by one, the largest answer serves all. */
int64_t hw_linear_work(const hw_linear_args *args, int64_t n, const hw_pool *pool);

/* Rows of `width`, `per` of them in each token (heads). rms: x / sqrt(mean(x^2) + eps) * (weight + offset). */
typedef struct hw_norm_args {
    const int64_t *n;
    const float *x;
    float *y;            /* may be x */
    int64_t x_stride, y_stride;
    int64_t width;
    int32_t per;
    float eps, offset;
    const float *weight; /* [width] or null */
    const float *bias;   /* [width] or null */
} hw_norm_args;

/* Turns the first `dim` entries of `heads` heads of `head_dim` in place. Tables are [positions, dim / 2]. */
typedef struct hw_rotary_args {
    const int64_t *n;
    float *x;
    int64_t x_stride;
    int32_t heads, head_dim, dim;
    int32_t interleaved; /* 0: entry i pairs with i + dim/2; 1: 2i with 2i + 1 */
    const float *cos, *sin;
    const int32_t *positions; /* [n] rows of the tables */
    int64_t table_rows;
} hw_rotary_args;

/* Where keys and values are kept: [cache_rows, kv_heads, room, head_dim] each; position p lies at p mod room.
 * HW_I8: bytes, and a scale for each key and value in `k_scale` and `v_scale` [cache_rows, kv_heads, room]. */
typedef struct hw_cache {
    void *k, *v;
    int32_t format;      /* HW_F32, HW_F16, HW_BF16 or HW_I8 */
    int32_t kv_heads, head_dim, value_dim;
    int64_t room;
    int64_t k_row, k_head, v_row, v_head; /* elements from row to row and from head to head */
    int64_t rows;
    float *k_scale, *v_scale; /* HW_I8, else null */
} hw_cache;

/* Writes keys [n, kv_heads * head_dim] and values [n, kv_heads * value_dim] of new tokens to their places. */
typedef struct hw_keep_args {
    const int64_t *n;
    const hw_cache *cache;
    const float *k, *v;
    int64_t k_stride, v_stride;
    const int32_t *rows;      /* [n] cache row of each token; null: 0 */
    const int32_t *positions; /* [n] */
} hw_keep_args;

/* softmax(scale q K^T + bias) V for every new token. Query head h reads key head h / (heads / kv_heads).
 * A token at position p sees keys max(0, p - before) .. p when causal, else 0 .. lengths[row] - 1 within
 * `before` and `after`. Keys of the step's own tokens come from the cache (after hw_keep), or, for a ring too
 * short to hold window + step, from `fresh_k` and `fresh_v`: then hw_keep runs after hw_attention. */
typedef struct hw_attention_args {
    const int64_t *n;
    const float *q;
    float *y;
    int64_t q_stride, y_stride;
    const hw_cache *cache;
    const float *fresh_k, *fresh_v; /* as hw_keep's k and v, or null */
    int64_t fresh_k_stride, fresh_v_stride;
    const int32_t *first;     /* [n] index in the step of the first token of this token's row; needed with fresh_k */
    const int32_t *rows;      /* [n], null: 0. Tokens of one row stand together, positions rising by one */
    const int32_t *positions; /* [n] */
    const int32_t *lengths;   /* [cache rows] keys that there are; needed when not causal */
    int32_t heads;
    int32_t causal;
    int64_t before, after;    /* negative: no limit */
    float scale, softcap;     /* softcap 0: none */
    const float *sinks;       /* [heads] or null: join the softmax and read nothing */
    const float *bias;        /* added to the scaled scores, [heads, n, keys by position], or null */
    int64_t bias_head, bias_token; /* floats from head to head and from token to token; 0 repeats */
    const float *slopes;      /* [heads] ALiBi: - slope * |distance| is added, or null */
    void *work;               /* hw_attention_work bytes, aligned to 64 */
} hw_attention_args;

/* Bytes of `work` that hw_attention needs for up to `n` tokens on this pool; reads `cache` and `heads` alone. */
int64_t hw_attention_work(const hw_attention_args *args, int64_t n, const hw_pool *pool);

enum hw_activation { HW_RELU, HW_GELU, HW_GELU_TANH, HW_GELU_QUICK, HW_SILU, HW_SIGMOID, HW_TANH };

/* y = f(x), or f(x) * gate when `gate` is given; y may be x or gate. */
typedef struct hw_activation_args {
    const int64_t *n;
    const float *x;
    const float *gate;   /* or null */
    float *y;
    int64_t x_stride, gate_stride, y_stride;
    int64_t width;
    int32_t kind;
} hw_activation_args;

/* y = a_scale * vector * a + b_scale * b. */
typedef struct hw_combine_args {
    const int64_t *n;
    const float *a;
    const float *b;      /* or null */
    const float *vector; /* [width] or null */
    float *y;            /* may be a or b */
    int64_t a_stride, b_stride, y_stride;
    int64_t width;
    float a_scale, b_scale;
} hw_combine_args;

/* y = cap * tanh(x / cap). */
typedef struct hw_softcap_args {
    const int64_t *n;
    const float *x;
    float *y;
    int64_t x_stride, y_stride;
    int64_t width;
    float cap;
} hw_softcap_args;

/* y = scale * W[id] [+ y]; a row of NaN for an id that W does not have. */
typedef struct hw_embed_args {
    const int64_t *n;
    const hw_matrix *matrix;
    const int32_t *ids;  /* [n] */
    float *y;
    int64_t y_stride;
    float scale;
    int32_t accumulate;
} hw_embed_args;

/* Copies rows: y[i] = x[index[i]], or x[i] when index is null; n counts y's rows. */
typedef struct hw_gather_args {
    const int64_t *n;
    const float *x;
    const int32_t *index;
    float *y;
    int64_t x_stride, y_stride;
    int64_t width;
} hw_gather_args;

/* The k largest of each row, largest first, of equals the lowest id first; NaN counts as largest. */
typedef struct hw_top_args {
    const int64_t *n;
    const float *x;
    int64_t x_stride;
    int64_t width;
    int32_t k;           /* 1 is argmax; at most width */
    int32_t *ids;        /* [n, k] */
    float *values;       /* [n, k] or null */
} hw_top_args;

enum hw_op {
    HW_OP_LINEAR, HW_OP_RMS_NORM, HW_OP_LAYER_NORM, HW_OP_ROTARY, HW_OP_KEEP, HW_OP_ATTENTION,
    HW_OP_ACTIVATION, HW_OP_COMBINE, HW_OP_SOFTCAP, HW_OP_EMBED, HW_OP_GATHER, HW_OP_TOP, HW_OPS
};

void hw_linear(const hw_linear_args *args, hw_pool *pool);
void hw_rms_norm(const hw_norm_args *args, hw_pool *pool);
void hw_layer_norm(const hw_norm_args *args, hw_pool *pool);
void hw_rotary(const hw_rotary_args *args, hw_pool *pool);
void hw_keep(const hw_keep_args *args, hw_pool *pool);
void hw_attention(const hw_attention_args *args, hw_pool *pool);
void hw_activation(const hw_activation_args *args, hw_pool *pool);
void hw_combine(const hw_combine_args *args, hw_pool *pool);
void hw_softcap(const hw_softcap_args *args, hw_pool *pool);
void hw_embed(const hw_embed_args *args, hw_pool *pool);
void hw_gather(const hw_gather_args *args, hw_pool *pool);
void hw_top(const hw_top_args *args, hw_pool *pool);

/* ---- the tape ---- */

typedef struct hw_step {
    int32_t op;
    int32_t skip;        /* 1: passed over */
    const void *args;
} hw_step;

/* Runs `count` steps in order. `nanoseconds` [count] or null: each step's time is added to its entry. */
void hw_run(const hw_step *steps, int64_t count, hw_pool *pool, int64_t *nanoseconds);

#pragma GCC visibility pop

#endif
