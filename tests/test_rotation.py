"""What ``npformer inspect --rope`` measures, against the formulas written out."""

import numpy as np
import pytest

import npformer as nf
from npformer.experiments.rotation import STARTS, rotation

D_H = 16
LONG = {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
RULES = {
    "none": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64, **LONG
    },
}  # fmt: skip


def config(rule="none", layout="interleaved", **options):
    return nf.AttentionConfig(
        d=4 * D_H, H=4, rope=True, rope_scaling=RULES[rule], rope_layout=layout, **options
    )


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("T", [40, 100])
@pytest.mark.parametrize("rule", RULES)
def test_scores_are_sums_of_cosines_and_know_the_distance_alone(rule, T, layout):
    """A rule that asks for the length of the text gets T, wherever the query stands."""
    found = rotation(config(rule, layout), T)
    theta = 2 * np.pi / found.wavelengths
    want = np.cos(np.multiply.outer(found.distances, theta)).mean(axis=1)
    assert found.scores.shape == (len(STARTS), len(found.distances))
    for scores in found.scores:
        np.testing.assert_allclose(scores, want, atol=1e-12)


def test_distances_go_from_the_token_itself_to_the_longest_text():
    found = rotation(config(), 1000)
    assert (found.distances[0], found.distances[-1]) == (0, 999)
    assert (np.diff(found.distances) > 0).all()
    assert found.T == 1000


def test_wavelengths_without_scaling_and_in_force():
    found = rotation(config("linear"), 100)
    np.testing.assert_allclose(found.plain, 2 * np.pi * 10000 ** (np.arange(0, 16, 2) / 16))
    np.testing.assert_allclose(found.wavelengths, 4 * found.plain)
    assert found.factor == 1
    assert rotation(config("yarn"), 100).factor == pytest.approx(0.1 * np.log(4) + 1)
    half = rotation(config(rotary_dim=8), 100)
    np.testing.assert_allclose(half.plain, 2 * np.pi * 10000 ** (np.arange(0, 8, 2) / 8))


def test_nothing_to_measure_without_rotary_positions():
    with pytest.raises(ValueError, match="positions must be 'rope'"):
        rotation(nf.AttentionConfig(d=8, H=2), 10)
