"""Batches: every token where it belongs, any batch by its number, nothing counted twice."""

from __future__ import annotations

import numpy as np
import pytest

from npformer.batches import IGNORED, PairBatches, RowBatches, TextBatches, split

exact = np.testing.assert_array_equal


def test_windows_stand_side_by_side_and_targets_follow():
    ids = np.arange(1000, 1000 + 7 * 5 + 4)
    data = TextBatches(ids, B=3, T=5, seed=1)
    assert data.n == 6  # of the 7 that fit, one is room to shift
    assert data.per_epoch == 2
    shifts = set()
    for epoch in range(40):
        first = []
        for n in range(epoch * 2, epoch * 2 + 2):
            batch = data.at(n)
            x, y = batch.arguments["ids"], batch.arguments["targets"]
            assert x.shape == y.shape == (3, 5)
            assert batch.tokens == 15
            exact(y, x + 1)
            exact(x, x[:, :1] + np.arange(5))
            first += x[:, 0].tolist()
        first.sort()
        exact(np.diff(first), 5)
        shifts.add(first[0] - 1000)
    assert shifts == set(range(9))  # every place that there is


@pytest.mark.parametrize("n", [6, 7, 10, 11, 16, 31])
def test_the_last_token_is_never_passed_and_short_texts_have_one_window(n):
    data = TextBatches(np.arange(n), B=2, T=5)
    for i in range(20):
        assert data.at(i).arguments["targets"].max() <= n - 1
    assert data.n == max(1, (n - 1) // 5 - 1)


def test_any_batch_by_its_number():
    first, second = (TextBatches(np.arange(100) % 13, 3, 5, seed=4) for _ in range(2))
    order = [17, 3, 3, 0, 25, 16]
    for n in order:
        for i in range(n):
            second.at(i)
        exact(first.at(n).arguments["ids"], second.at(n).arguments["ids"])
    other = TextBatches(np.arange(100) % 13, 3, 5, seed=5)
    assert any(
        np.any(first.at(n).arguments["ids"] != other.at(n).arguments["ids"]) for n in range(4)
    )
    epochs = [np.sort(first.at(n).arguments["ids"], axis=None) for n in (0, first.per_epoch)]
    assert np.any(epochs[0] != epochs[1])


@pytest.mark.parametrize("n", [2, 6, 9, 11, 16, 17])
def test_the_whole_text_has_every_target_once(n):
    ids = np.arange(50, 50 + n)
    if n <= 5:
        with pytest.raises(ValueError, match="need 6"):
            TextBatches(ids, 2, 5)
        return
    seen, count = [], 0
    for batch in TextBatches(ids, 2, 5).whole():
        exact(batch.arguments["targets"], batch.arguments["ids"] + 1)
        assert batch.arguments["ids"].shape[1] <= 5
        seen += batch.arguments["targets"].ravel().tolist()
        count += batch.tokens
    assert seen == list(range(51, 50 + n))
    assert count == n - 1


def test_rows_are_padded_on_the_right_and_padding_counts_nowhere():
    rows = [[5, 6], [1, 2, 3, 4], [7, 8, 9], [10, 11, 12, 13, 14]]
    data = RowBatches(rows, B=2, seed=3)
    for batches in ([data.at(0), data.at(1)], list(data.whole())):
        found = []
        for batch in batches:
            a = batch.arguments
            exact(a["targets"] == IGNORED, ~a["mask"])
            assert batch.tokens == a["mask"].sum()
            for ids, targets, mask in zip(a["ids"], a["targets"], a["mask"], strict=True):
                n = mask.sum()
                exact(mask, np.arange(len(mask)) < n)  # padding only after the end
                exact(ids[1:n], targets[: n - 1])
                found.append([*ids[:n].tolist(), int(targets[n - 1])])
        assert sorted(found) == sorted(rows)


def test_pairs_are_shifted_between_start_and_end():
    sources, targets = [[1, 2, 3], [4], [5, 6]], [[], [7, 8, 9], [2]]
    data = PairBatches(sources, targets, start=20, end=21, B=3)
    for batch in (data.at(0), data.at(5), next(data.whole())):
        a = batch.arguments
        found = []
        for b in range(3):
            n, m = a["source_mask"][b].sum(), a["target_mask"][b].sum()
            assert a["target_ids"][b, 0] == 20
            assert a["targets"][b, m - 1] == 21
            exact(a["target_ids"][b, 1:m], a["targets"][b, : m - 1])
            exact(a["targets"][b, m:], IGNORED)
            found.append((a["source_ids"][b, :n].tolist(), a["targets"][b, : m - 1].tolist()))
        assert sorted(found) == sorted(zip(sources, targets, strict=True))
        assert batch.tokens == 3 + 4


def test_rows_of_a_batch_are_alike_in_length_and_every_row_comes_once_an_epoch(rng):
    rows = [np.full(rng.integers(2, 40), i) for i in range(64)]
    data = RowBatches(rows, B=4, seed=2)
    padded = total = 0
    for epoch in range(3):
        seen = []
        for n in range(epoch * 16, epoch * 16 + 16):
            a = data.at(n).arguments
            seen += a["ids"][:, 0].tolist()
            padded += (~a["mask"]).sum()
            total += a["mask"].size
        assert sorted(seen) == list(range(64))
    assert padded / total < 0.1
    shapes = [data.at(n).arguments["ids"].shape[1] for n in range(16)]
    assert shapes != sorted(shapes)  # long batches don't all come last


def test_digests_tell_data_apart():
    pairs = [[1, 2], [3]], [[4], [5]]
    digests = [
        TextBatches(np.arange(20), 2, 3).digest(),
        TextBatches(np.arange(20), 2, 4).digest(),
        TextBatches(np.arange(20), 2, 3, seed=1).digest(),
        TextBatches(np.arange(21), 2, 3).digest(),
        RowBatches([[1, 2], [3, 4, 5]], 2).digest(),
        RowBatches([[1, 2, 3], [4, 5]], 2).digest(),
        PairBatches(*pairs, 8, 9, 2).digest(),
        PairBatches(*pairs, 9, 8, 2).digest(),
    ]
    assert len(set(digests)) == len(digests)
    assert TextBatches(np.arange(20, dtype=np.int32), 2, 3).digest() == digests[0]


def test_the_held_out_part_is_the_last():
    a, b = split(np.arange(101), 0.1)
    exact(np.concatenate([a, b]), np.arange(101))
    assert len(b) == 10
    assert len(split(np.arange(7), 0.0)[1]) == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TextBatches(np.arange(5), 1, 5), ValueError, "5 tokens, but a window of 5 and"),
        (lambda: TextBatches(np.arange(9), 0, 5), ValueError, "at least one row, but B = 0"),
        (lambda: TextBatches(np.arange(9), 1, 0), ValueError, "at least one token, but T = 0"),
        (lambda: TextBatches(np.zeros((2, 9), int), 1, 2), TypeError, r"is int64 \(2, 9\)"),
        (lambda: TextBatches(np.zeros(9), 1, 2), TypeError, "is float64"),
        (lambda: RowBatches([[1, 2], [3]], 1), ValueError, "row 1 has 1 tokens, but needs 2"),
        (lambda: RowBatches([], 1), ValueError, "there is no row to train on"),
        (lambda: RowBatches([[1, 2], [1.5, 2]], 1), TypeError, "row 1 must be .* float64"),
        (lambda: RowBatches([[1, -2]], 1), IndexError, "row 0 must lie in"),
        (lambda: PairBatches([[1]], [[1], [2]], 3, 4, 1), ValueError, "1 sources don't pair"),
        (lambda: PairBatches([[]], [[1]], 3, 4, 1), ValueError, "source 0 has 0 tokens"),
        (lambda: split(np.arange(3), 1.0), ValueError, "below 1, but is 1.0"),
    ],
)  # fmt: skip
def test_bad_data_are_one_sentence(make, error, message):
    with pytest.raises(error, match=message):
        make()
