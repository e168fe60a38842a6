/* Which instruction set runs, and the public face of every operation. */
#define _GNU_SOURCE
#include "kernels.h"
#include "pool.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

extern const hw_table hw_table_scalar, hw_table_avx2, hw_table_avxvnni, hw_table_avx512, hw_table_neon;

#if defined(__x86_64__)
#include <cpuid.h>

static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
static int has_neon(void) { return (getauxval(AT_HWCAP) & 1ul << 20) != 0; } /* HWCAP_ASIMDDP */
#else
static int has_neon(void) { return 1; }
#endif
#endif

static int always(void) { return 1; }

static const struct { const hw_table *table; int (*usable)(void); } built[] = {
#ifdef HW_HAVE_AVX512
    {&hw_table_avx512, has_avx512},
#endif
#ifdef HW_HAVE_AVXVNNI
    {&hw_table_avxvnni, has_avxvnni},
#endif
#ifdef HW_HAVE_AVX2
    {&hw_table_avx2, has_avx2},
#endif
#ifdef HW_HAVE_NEON
    {&hw_table_neon, has_neon},
#endif
    {&hw_table_scalar, always},
};

#define BUILT (sizeof built / sizeof *built)

static _Atomic(const hw_table *) chosen;

static const hw_table *table(void) {
    const hw_table *current = atomic_load_explicit(&chosen, memory_order_acquire);
    for (size_t i = 0; !current && i < BUILT; i++) {
        if (built[i].usable()) current = built[i].table;
    }
    atomic_store_explicit(&chosen, current, memory_order_release);
    return current;
}

const char *hw_path(void) { return table()->name; }

const char *hw_paths(void) {
    static char names[128];
    char found[128] = "";
    for (size_t i = 0; i < BUILT; i++) {
        if (!built[i].usable()) continue;
        if (*found) strcat(found, " ");
        strcat(found, built[i].table->name);
    }
    memcpy(names, found, sizeof names); /* the same bytes every time, so calls may cross */
    return names;
}

int32_t hw_set_path(const char *name) {
    for (size_t i = 0; i < BUILT; i++) {
        if (strcmp(built[i].table->name, name) == 0 && built[i].usable()) {
            atomic_store(&chosen, built[i].table);
            return 0;
        }
    }
    return -1;
}

int32_t hw_abi(void) { return HW_ABI; }

int64_t hw_args_size(int32_t op) {
    switch (op) {
    case -1: return sizeof(hw_matrix);
    case HW_OP_LINEAR: return sizeof(hw_linear_args);
    case HW_OP_RMS_NORM: case HW_OP_LAYER_NORM: return sizeof(hw_norm_args);
    case HW_OP_ROTARY: return sizeof(hw_rotary_args);
    case HW_OP_KEEP: return sizeof(hw_keep_args);
    case HW_OP_ATTENTION: return sizeof(hw_attention_args);
    case HW_OP_ACTIVATION: return sizeof(hw_activation_args);
    case HW_OP_COMBINE: return sizeof(hw_combine_args);
    case HW_OP_SOFTCAP: return sizeof(hw_softcap_args);
    case HW_OP_EMBED: return sizeof(hw_embed_args);
    case HW_OP_GATHER: return sizeof(hw_gather_args);
    case HW_OP_TOP: return sizeof(hw_top_args);
    default: return 0;
    }
}

#define FACE(name, type, number) \
    void hw_##name(const type *args, hw_pool *pool) { table()->op[number](args, pool); }
FACE(linear, hw_linear_args, HW_OP_LINEAR)
FACE(rms_norm, hw_norm_args, HW_OP_RMS_NORM)
FACE(layer_norm, hw_norm_args, HW_OP_LAYER_NORM)
FACE(rotary, hw_rotary_args, HW_OP_ROTARY)
FACE(keep, hw_keep_args, HW_OP_KEEP)
FACE(attention, hw_attention_args, HW_OP_ATTENTION)
FACE(activation, hw_activation_args, HW_OP_ACTIVATION)
FACE(combine, hw_combine_args, HW_OP_COMBINE)
FACE(softcap, hw_softcap_args, HW_OP_SOFTCAP)
FACE(embed, hw_embed_args, HW_OP_EMBED)
FACE(gather, hw_gather_args, HW_OP_GATHER)
FACE(top, hw_top_args, HW_OP_TOP)

int64_t hw_linear_work(const hw_linear_args *args, int64_t n, const hw_pool *pool) {
    return table()->linear_work(args, n, hw_pool_threads(pool));
}

int64_t hw_attention_work(const hw_attention_args *args, int64_t n, const hw_pool *pool) {
    return table()->attention_work(args, n, hw_pool_threads(pool));
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

void hw_run(const hw_step *steps, int64_t count, hw_pool *pool, int64_t *nanoseconds) {
    const hw_table *current = table();
    for (int64_t i = 0; i < count; i++) {
        if (steps[i].skip) continue;
        int64_t start = nanoseconds ? now() : 0;
        current->op[steps[i].op](steps[i].args, pool);
        if (nanoseconds) nanoseconds[i] += now() - start;
    }
}
