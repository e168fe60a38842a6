/* The pool: work in small pieces that whoever is free takes, so that a busy core holds nobody up.
 *
 * `left` counts pieces not yet taken. A thread takes one by lowering it with compare-and-swap and reads the task
 * only afterwards: the caller does not change the task before every taken piece is done, so what it reads is the
 * task of the piece that it holds, even if the swap met a later task's counter. No thread is ever waited for that
 * holds no piece: the caller does the work of threads that sleep, were never scheduled, or died in a fork.
 *
 * Idle threads look for work for a few microseconds (the gap between two steps of a tape), then sleep. The caller,
 * out of pieces, waits the same way: its sleep frees the core for a thread that lost its own in mid-piece.
 *
 * On a busy machine fewer threads are faster. A thread that held up the caller shares its core with another program,
 * and one that finds itself on the caller's core takes the caller's own time: both rest for a while, for twice as
 * long each time that it happens again soon.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_NANOSECONDS 30000
#define STALL_NANOSECONDS 150000      /* a piece takes a few microseconds: its thread has lost its core */
#define LEAST_REST_NANOSECONDS 8000000
#define MOST_REST_NANOSECONDS 128000000

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

#ifdef __linux__
#include <sched.h>
static int core(void) { return sched_getcpu(); }
#else
static int core(void) { return -1; }
#endif

typedef struct worker {
    hw_pool *pool;
    pthread_t thread;
    int32_t index;
    atomic_int holds;   /* 1 while it has a piece */
    atomic_int stalled; /* set by a caller that waited too long for it */
    int64_t rest, rested; /* how long it rested last, and until when */
} worker;

struct hw_pool {
    _Alignas(64) atomic_llong left;     /* pieces not taken */
    _Alignas(64) atomic_llong finished; /* pieces done */
    _Alignas(64) hw_task *task;
    void *context;
    int64_t count;
    atomic_int asleep; /* workers that wait for `work` */
    atomic_int waits;  /* 1: the caller waits for `done` */
    atomic_int stop;
    atomic_int core;   /* the caller's */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int32_t threads;
    worker *workers;
};

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* One piece taken and done; 0 when none was left. */
static int take(hw_pool *pool, int32_t thread) {
    long long left = atomic_load_explicit(&pool->left, memory_order_acquire);
    do {
        if (left <= 0) return 0;
    } while (!atomic_compare_exchange_weak(&pool->left, &left, left - 1));
    int64_t count = pool->count;
    atomic_store_explicit(&pool->workers[thread].holds, 1, memory_order_relaxed);
    pool->task(pool->context, count - left, thread);
    atomic_store_explicit(&pool->workers[thread].holds, 0, memory_order_relaxed);
    if (atomic_fetch_add(&pool->finished, 1) + 1 == count && thread != 0 && atomic_load(&pool->waits)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
    return 1;
}

/* 1 as soon as there is work or an end, 0 after a while without. */
static int look(hw_pool *pool) {
    int64_t until = now() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&pool->left, memory_order_relaxed) > 0) return 1;
            if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return 1;
            RELAX();
        }
    } while (now() < until);
    return 0;
}

static void pause_for(int64_t nanoseconds) {
    struct timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&time, NULL);
}

static void rest(worker *self) {
    int soon = now() - self->rested < 4 * self->rest;
    self->rest = soon ? 2 * self->rest : LEAST_REST_NANOSECONDS;
    if (self->rest > MOST_REST_NANOSECONDS) self->rest = MOST_REST_NANOSECONDS;
    for (int64_t left = self->rest; left > 0 && !atomic_load(&self->pool->stop); left -= LEAST_REST_NANOSECONDS) {
        pause_for(LEAST_REST_NANOSECONDS);
    }
    self->rested = now();
}

static void sleep_until_work(hw_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->asleep, 1);
    while (atomic_load(&pool->left) <= 0 && !atomic_load(&pool->stop)) pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->lock);
}

static int in_the_way(worker *self) {
    int own = core();
    return own >= 0 && own == atomic_load_explicit(&self->pool->core, memory_order_relaxed);
}

static void *live(void *argument) {
    worker *self = argument;
    while (!atomic_load(&self->pool->stop)) {
        if (atomic_exchange(&self->stalled, 0) || in_the_way(self)) rest(self);
        if (take(self->pool, self->index)) continue;
        if (!look(self->pool)) sleep_until_work(self->pool);
    }
    return NULL;
}

static int all_done(hw_pool *pool, int64_t count) {
    return atomic_load_explicit(&pool->finished, memory_order_acquire) == count;
}

static void blame(hw_pool *pool) {
    for (int32_t i = 1; i < pool->threads; i++) {
        if (atomic_load_explicit(&pool->workers[i].holds, memory_order_relaxed)) atomic_store(&pool->workers[i].stalled, 1);
    }
}

/* Asleep until the last piece is done, or the end of what is a wait and no stall. */
static void sleep_until_done(hw_pool *pool, int64_t count) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += STALL_NANOSECONDS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->waits, 1);
    int late = 0;
    while (!all_done(pool, count)) {
        if (late) {
            pthread_cond_wait(&pool->done, &pool->lock);
            continue;
        }
        late = pthread_cond_timedwait(&pool->done, &pool->lock, &until) == ETIMEDOUT;
        if (late) blame(pool);
    }
    atomic_store(&pool->waits, 0);
    pthread_mutex_unlock(&pool->lock);
}

static void wait_for_others(hw_pool *pool, int64_t count) {
    int64_t until = now() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (all_done(pool, count)) return;
            RELAX();
        }
    } while (now() < until);
    sleep_until_done(pool, count);
}

void hw_share(hw_pool *pool, hw_task *task, void *context, int64_t count) {
    if (!pool || pool->threads == 1 || count == 1) {
        for (int64_t piece = 0; piece < count; piece++) task(context, piece, 0);
        return;
    }
    if (count <= 0) return;
    pool->task = task, pool->context = context, pool->count = count;
    atomic_store_explicit(&pool->core, core(), memory_order_relaxed);
    atomic_store_explicit(&pool->finished, 0, memory_order_relaxed);
    atomic_store(&pool->left, count);
    if (atomic_load(&pool->asleep) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
    }
    while (take(pool, 0)) {}
    if (!all_done(pool, count)) wait_for_others(pool, count);
}

hw_pool *hw_pool_new(int32_t threads) {
    if (threads < 1) threads = 1;
    hw_pool *pool = NULL;
    if (posix_memalign((void **)&pool, 64, sizeof *pool)) return NULL;
    *pool = (hw_pool){.threads = 1, .core = -1, .workers = calloc((size_t)threads, sizeof(worker))};
    if (!pool->workers) {
        free(pool);
        return NULL;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int32_t i = 1; i < threads; i++) { /* fewer threads than asked for, when the system has no more */
        pool->workers[i].pool = pool, pool->workers[i].index = i;
        if (pthread_create(&pool->workers[i].thread, NULL, live, &pool->workers[i])) break;
        pool->threads = i + 1;
    }
    return pool;
}

void hw_pool_free(hw_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, 1);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 1; i < pool->threads; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    free(pool->workers);
    free(pool);
}

int32_t hw_pool_threads(const hw_pool *pool) {
    return pool ? pool->threads : 1;
}
