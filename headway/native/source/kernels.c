/* All kernels of one instruction set, HW_PATH, in one translation unit; the files below say what they do. */
#include "kernels.h"

#include "formats.h"
#include "pool.h"
#include "simd.h"

#include "elementary.c"
#include "rounding.c"
#include "ops.c"
#include "top.c"
#include "linear_packed.c"
#include "linear_float.c"
#include "linear.c"
#include "attention.c"

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define TEXT(a) #a
#define QUOTED(a) TEXT(a)

extern const hw_table NAMED(hw_table_, HW_PATH);
const hw_table NAMED(hw_table_, HW_PATH) = {
    .name = QUOTED(HW_PATH),
    .op = {
        [HW_OP_LINEAR] = linear, [HW_OP_RMS_NORM] = rms_norm, [HW_OP_LAYER_NORM] = layer_norm,
        [HW_OP_ROTARY] = rotary, [HW_OP_KEEP] = keep, [HW_OP_ATTENTION] = attention,
        [HW_OP_ACTIVATION] = activation, [HW_OP_COMBINE] = combine, [HW_OP_SOFTCAP] = softcap,
        [HW_OP_EMBED] = embed, [HW_OP_GATHER] = gather, [HW_OP_TOP] = top,
    },
    .linear_work = linear_work,
    .attention_work = attention_work,
};
