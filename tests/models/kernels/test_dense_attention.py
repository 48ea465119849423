"""Softmax among all tokens: a wrong largest logit shows only where exp overflows."""

from __future__ import annotations

import numpy as np
import pytest

from models.kernels.dense_attention import attend_all, largest


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 64])
def test_the_largest_is_found_wherever_it_is(count: int, dtype: type) -> None:
    s = -np.random.default_rng(count).random(count).astype(dtype) - 1
    for place in range(count):
        beyond = s.copy()
        beyond[place] = -0.5
        assert largest(beyond) == -0.5
        beyond[:] = np.nan
        beyond[place] = -0.5
        assert largest(beyond) == -0.5


def test_of_no_number_there_is_no_largest() -> None:
    for nothing in (np.empty(0), np.full(20, -np.inf), np.full(20, np.nan)):
        assert largest(nothing) == -np.inf


@pytest.mark.parametrize("place", [3, 16, 39])
def test_large_logits_do_not_overflow(place: int) -> None:
    """Of 40 tokens all see the one whose key is 400 along their queries: p is 1 there, lse 400."""
    tokens = 40
    q, k = np.zeros((2, tokens, 1, 4), np.float32)
    q[..., 0], k[place, 0, 0] = 1, 400
    lse, pulled = np.zeros((tokens, 1), np.float32), np.zeros((2, tokens, 1, 4), np.float32)
    beta = np.ones((tokens, 1), np.float32)
    attend_all(0, 1, tokens, None, q, k, beta, lse, pulled[0], pulled[1], True)
    np.testing.assert_allclose(lse, 400)
    np.testing.assert_allclose(pulled[0, :, 0, 0], 400)
    np.testing.assert_allclose(pulled[1, place, 0, 0], tokens)
    assert not pulled[1, np.arange(tokens) != place].any()


def test_a_token_whose_logits_are_no_numbers_is_not_one_that_sees_nobody() -> None:
    q, k = np.ones((2, 3, 1, 4), np.float32)
    q[0] = np.nan
    hidden = np.zeros((1, 3, 3), np.float32)
    hidden[0, 0, 1], hidden[0, 2] = -np.inf, -np.inf
    lse, pulled = np.zeros((3, 1), np.float32), np.zeros((2, 3, 1, 4), np.float32)
    beta = np.ones((3, 1), np.float32)
    attend_all(0, 1, 3, hidden, q, k, beta, lse, pulled[0], pulled[1], False)
    assert np.isnan(lse[0, 0])
    assert np.isfinite(lse[1, 0])
    assert lse[2, 0] == 0
