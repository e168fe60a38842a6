/* What kernels.c gives for each instruction set: every operation, and the workspace that two of them want. */
#ifndef HW_KERNELS_H
#define HW_KERNELS_H

#include "headway.h"

typedef void hw_operation(const void *args, hw_pool *pool);

typedef struct hw_table {
    const char *name;
    hw_operation *op[HW_OPS];
    int64_t (*linear_work)(const hw_linear_args *args, int64_t n, int32_t threads);
    int64_t (*attention_work)(const hw_attention_args *args, int64_t n, int32_t threads);
} hw_table;

#endif
