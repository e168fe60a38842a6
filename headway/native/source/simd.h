/* Eight floats at a time, and the dot product of a packed block: one set of names for every instruction set.
 *
 * Kernels are written once on these names; kernels.c is compiled once for each path. A file simd_*.h gives:
 *   f8                        eight floats, with load, store, arithmetic, and loads from half and bfloat16;
 *   f8_min(a, b), f8_max      give b when either is NaN, so `f8_min(limit, x)` keeps a NaN of x;
 *   bytes_store, bytes_sums   32 floats rounded to bytes, and the sums of their halves;
 *   planes                    a block of 8 rows x 32 columns as eight vectors of 8 rows x 4 columns, a byte each;
 *   planes_load, planes_dot   from the packed bits, and with 32 activations.
 */
#ifndef HW_SIMD_H
#define HW_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Formats and tile sizes are constants where kernels are called: inlined, each becomes a kernel of its own. */
#define ALWAYS static inline __attribute__((always_inline))

/* Before a short loop over vectors: unrolled, an array of them lives in registers. */
#define UNROLL _Pragma("GCC unroll 8")

#if defined(__AVX2__)
#include "simd_x86.h"
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "simd_neon.h"
#else
#undef ALWAYS
#undef UNROLL
#define UNROLL
#define ALWAYS static inline __attribute__((unused)) /* small and quickly compiled; nobody waits for its speed */
#include "simd_plain.h"
#endif

/* The first `count` of eight floats, 0 < count <= 8; the rest are zero. */
ALWAYS f8 f8_load_part(const float *p, int64_t count) {
    if (count >= 8) return f8_load(p);
    float all[8] = {0};
    for (int64_t i = 0; i < count; i++) all[i] = p[i];
    return f8_load(all);
}

ALWAYS void f8_store_part(float *p, f8 x, int64_t count) {
    if (count >= 8) {
        f8_store(p, x);
        return;
    }
    float all[8];
    f8_store(all, x);
    for (int64_t i = 0; i < count; i++) p[i] = all[i];
}

#endif
