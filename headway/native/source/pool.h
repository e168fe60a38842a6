/* Threads that share a caller's work; see pool.c. */
#ifndef HW_POOL_H
#define HW_POOL_H

#include "headway.h"

/* Does piece `piece`; `thread` is 0 for the caller, else 1 .. threads - 1: which scratch memory is its own. */
typedef void hw_task(void *context, int64_t piece, int32_t thread);

/* Does pieces 0 .. count - 1, each once, in any order and by any thread; returns when all are done. */
void hw_share(hw_pool *pool, hw_task *task, void *context, int64_t count);

#endif
