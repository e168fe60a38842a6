"""The pool: the same work whoever does it, no thread that must arrive, no hang after a fork."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from headway.native.library import Library, Pool
from headway.native.program import Output, Program
from headway.native.structs import Op
from tests.native.material import linear, weights


def test_many_short_steps_and_pauses_lose_no_piece(library: Library) -> None:
    pool = Pool(library, 4)
    matrix = weights(library, "Q4_0", 512, 256).matrix.pack(pool)
    x = np.random.default_rng(0).standard_normal((1, 256), np.float32)
    expected = linear(library, Pool(library, 1), matrix, x)
    y = np.zeros((1, 512), np.float32)
    program = Program(library, pool)
    for _ in range(20):
        program.linear(np.array([1]), x, [Output(matrix, y)], most=1)
    for turn in range(200):
        y[:] = 0
        program.run()
        np.testing.assert_array_equal(y, expected)
        if turn % 50 == 0:
            time.sleep(0.002)  # long enough for the workers to fall asleep


def test_more_threads_than_cores_and_pools_that_come_and_go(library: Library) -> None:
    matrix = weights(library, "Q8_0", 200, 64).matrix
    x = np.ones((3, 64), np.float32)
    expected = linear(library, Pool(library, 1), matrix, x)
    for threads in (1, 2, 3, 9):
        pool = Pool(library, threads)
        assert pool.threads == threads
        np.testing.assert_array_equal(linear(library, pool, matrix, x), expected)
        pool.close()
        pool.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_the_work_alone(library: Library) -> None:
    pool = Pool(library, 3)
    matrix = weights(library, "Q4_1", 800, 128).matrix.pack(pool)
    x = np.ones((2, 128), np.float32)
    expected = linear(library, pool, matrix, x)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        same = np.array_equal(linear(library, pool, matrix, x), expected)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_time_of_each_step_is_told(library: Library, pool: Pool) -> None:
    x = np.ones((1, 4096), np.float32)
    program = Program(library, pool)
    for _ in range(3):
        program.add(Op.COMBINE, n=np.array([1]), a=x, y=x, width=4096, a_scale=1.0)
    spent = np.zeros(3, np.int64)
    program.run(spent)
    once = spent.copy()
    program.run(spent)
    assert (once > 0).all()
    assert (spent > once).all()
