"""Figures of ``npformer inspect``: everything has its place, its glyphs and its mark."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from test_plots import CHINESE, LANGUAGES, shape

import npformer as nf
from npformer import plots
from npformer.experiments.attention_maps import Maps, attention_name, chosen_maps
from npformer.experiments.inspection import Inspection, inspect
from npformer.experiments.rotation import rotation
from npformer.plots.attention_maps import attention_maps, drawable
from npformer.plots.attention_page import attention_page
from npformer.plots.inspection import MOST, grouped, layer_of, norms
from npformer.plots.rotation import rotation_figure
from npformer.plots.style import save_figure

SUBJECT = {
    "en": "Decoder of 6 layers, $d = 64$, 4 heads.",
    "zh": "解码器：6 层，$d = 64$，4 个头。",
}
TEXT = "猫追狗$a_1$ b\n层"


def model(value: float | None = None, **changes: Any) -> Any:
    sizes = dict(V=11, d=8, L=3, H=2, T_max=9, init="xavier")
    cfg = nf.TransformerConfig(**{**sizes, **changes})
    kinds = {"decoder": nf.DecoderLM, "encoder-decoder": nf.EncoderDecoder}
    made = kinds[cfg.kind](cfg, rng=0)
    if value is not None:
        for p in made.parameters():
            p.value[...] = value
    return made


def found(made: Any, **options: Any) -> Inspection:
    ids = np.random.default_rng(0).integers(11, size=(2, 9))
    return inspect(made, ids, **options)


def partly(value: float) -> Any:
    made = model()
    made.stack.blocks[1].ffn.W2.W.value[...] = value
    made.stack.blocks[1].ffn.W2.b.value[...] = value
    return made


CASES: dict[str, Any] = {
    "usual": lambda: found(model()),
    "one layer": lambda: found(model(L=1)),
    "deep": lambda: found(model(L=40)),
    "NaN": lambda: found(model(np.nan)),
    "NaN from a layer on": lambda: found(partly(np.nan)),
    "zero": lambda: found(model(0.0)),
    "zero in a layer": lambda: found(partly(0.0)),
    "one name": lambda: found(model(), select=["blocks.*.attn"]),
    "one number": lambda: found(model(), select=["head"], gradients=False),
    "parameters": lambda: found(model(), select=["blocks.*.attn.*.W"]),
    "both sides": lambda: found(model(kind="encoder-decoder")),
    "everything": lambda: found(model(), select=["**"]),
}


def maps(made: Any, *wanted: str) -> list[Maps]:
    patterns = [attention_name(w)[0] for w in wanted]
    ids = np.arange(9)[None]
    return chosen_maps(inspect(made, ids, attention=patterns).maps, list(wanted))


MAPS: dict[str, Any] = {
    "one head": lambda: maps(model(), "1.1"),
    "one layer of heads": lambda: maps(model(d=24, H=12), "0"),
    "all": lambda: maps(model(d=15, H=5), "all"),
    "NaN": lambda: maps(model(np.nan), "0.0"),
    "both sides": lambda: maps(model(kind="encoder-decoder"), "all"),
}


ROTATIONS: dict[str, Any] = {
    "plain": dict(d=512, H=4, rope=True),
    "stretched": dict(
        d=512, H=4, rope=True, rope_base=5e5,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    ),
    "one pair": dict(d=2, H=1, rope=True),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A missing glyph is reported in matplotlib's log, or by a warning, which is an error here."""
    caplog.set_level(logging.INFO, "matplotlib")
    yield
    assert caplog.text == ""


def check(figure: Figure) -> None:
    """Assert that nothing is cut off and that title, legend, panels and caption stand apart."""
    figure.draw_without_rendering()
    whole = Bbox.from_bounds(0, 0, *figure.bbox.size)
    title, caption = (text.get_window_extent() for text in figure.texts)
    panels = [box for ax in figure.axes if (box := ax.get_tightbbox()) is not None]
    above = [legend.get_window_extent() for legend in figure.legends]
    for box in (title, caption, *panels, *above):
        assert box.x0 >= 0
        assert box.x1 <= whole.x1
        assert box.y0 >= 0
        assert box.y1 <= whole.y1
    assert all(caption.y1 < box.y0 and box.y1 < title.y0 for box in panels)
    for legend in above:
        assert legend.y1 < title.y0
        assert all(box.y1 < legend.y0 for box in panels)
    for i, a in enumerate(panels):
        for b in panels[i + 1 :]:
            overlap = Bbox.intersection(a, b)
            assert overlap is None or min(overlap.width, overlap.height) < 1


CHINESE_TOO = {"NaN from a layer on", "zero", "everything", "one layer of heads", "both sides"}
"""Together they say all that the figures can say."""


def in_languages(names: Any) -> list[Any]:
    return [
        pytest.param(name, *lang.values, marks=lang.marks, id=f"{name}, {lang.values[0]}")
        for name in names
        for lang in (pytest.param("en"), LANGUAGES[1])
        if lang.values[0] == "en" or name in CHINESE_TOO
    ]


@pytest.mark.parametrize(("name", "lang"), in_languages(CASES))
def test_norms_have_their_place(name: str, lang: str):
    with plots.language(lang) as given:
        check(norms(CASES[name](), SUBJECT[given], given))


@pytest.mark.parametrize(("name", "lang"), in_languages(MAPS))
def test_maps_have_their_place(name: str, lang: str):
    with plots.language(lang) as given:
        tokens = [*TEXT, "long"][:9]
        check(attention_maps(MAPS[name](), tokens, tokens, subject=SUBJECT[given], lang=given))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_have_their_place(name: str, lang: str):
    found = rotation(nf.AttentionConfig(**ROTATIONS[name]), 4096 if name != "one pair" else 3)
    with plots.language(lang) as given:
        check(rotation_figure(found, "llama-3.1-405b", given))


def test_a_page_of_maps_holds_them_and_loads_nothing():
    (m,) = maps(model(), "2.1")
    tokens = ["</script><b>", "&amp;", "层", *"abcdef"]
    m.P[1, 3, 3] = np.nan
    page = attention_page([m], tokens, tokens, subject="a < b, $d = 64$", lang="zh")
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data
    found = json.loads(data[1])
    assert found["queries"] == found["keys"] == tokens
    (shown,) = found["maps"]
    assert (shown["name"], shown["head"]) == ("blocks.2.attn", 1)
    assert shown["weights"][3][3] is None
    np.testing.assert_allclose(shown["weights"][8], m.P[1, 8], atol=6e-5)
    assert '<html lang="zh-CN">' in page
    assert "a &lt; b, d = 64" in page
    assert not re.search(r"https?://|//[a-z]|@import|url\(", page)
    with pytest.raises(ValueError, match="too many for a page"):
        attention_page([Maps("a", tuple(range(5)), np.zeros((5, 1000, 1000)))], [], [])


def test_the_lines_are_the_numbers():
    result = found(model())
    with plots.language("en"):
        left, middle, right = norms(result, "", "en").axes
    expected = [result.row(f"blocks.{i}.attn") for i in range(3)]
    for ax, number in (
        (left, lambda r: r.value.rms),
        (middle, lambda r: r.gradient.norm),
        (right, lambda r: r.parameters),
    ):
        (line,) = [a for a in ax.get_lines() if a.get_label() == "blocks.*.attn"]
        assert line.get_xdata().tolist() == [0, 1, 2]
        assert line.get_ydata().tolist() == [number(r) for r in expected]
        assert ax.get_yscale() == "log"
        looks = {(str(a.get_linestyle()), a.get_marker(), a.get_markerfacecolor())
                 for a in ax.get_lines() if not a.get_label().startswith("_")}  # fmt: skip
        assert len(looks) == 6
    at_the_ends = {a.get_label(): a.get_xdata().tolist() for a in left.get_lines()}
    assert at_the_ends["embedding"] == [-1]
    assert at_the_ends["head"] == [3]
    thin = [a for a in left.get_lines() if a.get_label().startswith("_")]
    assert thin[2].get_ydata().tolist() == [r.value.max for r in expected]


@pytest.mark.parametrize(("value", "marker"), [(np.nan, "x"), (0.0, "v")])
def test_what_has_no_place_on_the_axis_is_marked(value: float, marker: str):
    with plots.language("en"):
        figure = norms(found(partly(value)), "", "en")
    for ax in figure.axes if np.isnan(value) else figure.axes[:1]:
        marks = [line for line in ax.get_lines() if line.get_marker() == marker and
                 line.get_transform() != ax.transData and len(line.get_xdata()) == 1]  # fmt: skip
        assert marks
        assert all(0 <= mark.get_ydata()[0] <= 1 for mark in marks)
        spots = [(m.get_xdata()[0], m.get_ydata()[0]) for m in marks]
        assert len(set(spots)) == len(spots)  # none hides another
    assert "Marks at the edge" in figure.texts[1].get_text().replace("\n", " ")
    with plots.language("en"):
        usual = norms(found(model()), "", "en")
    assert "Marks" not in usual.texts[1].get_text()


def test_a_figure_of_too_many_names_says_so():
    result = found(model(), select=["**"])
    with plots.language("en"):
        figure = norms(result, "", "en")
    families = len(grouped(result.rows, 2))
    assert families > MOST
    assert f"the first {MOST} of {families} names" in figure.texts[1].get_text().replace("\n", " ")
    labelled = figure.axes[0].get_legend_handles_labels()[1]
    assert len(labelled) == MOST


def test_layers_are_read_from_names():
    assert layer_of("encoder.blocks.12.attn.Wq") == 12
    assert layer_of("final_norm") is None


def test_a_map_is_the_weights():
    (m,) = maps(model(), "2.1")
    with plots.language("en"):
        figure = attention_maps([m], list(TEXT[:9]), list(TEXT[:9]))
    (image,) = figure.axes[0].get_images()
    shown = image.get_array()
    np.testing.assert_allclose(shown.filled(0), m.P[1], rtol=1e-6)
    assert shown.mask.tolist() == (np.triu(np.ones((9, 9)), 1) > 0).tolist()
    names = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    if CHINESE is None:  # then they are numbers
        assert names[0] == "⟨732b⟩"
        assert names[-1] == TEXT[8]
    else:
        assert names == list(TEXT[:9])


def test_too_many_maps_are_refused():
    m = Maps("blocks.0.attn", tuple(range(700)), np.ones((700, 1, 1)))
    with pytest.raises(ValueError, match="700 attention maps are too many"):
        attention_maps([m], ["a"], ["a"])


@pytest.mark.skipif(CHINESE is None, reason="no Chinese font")
def test_characters_that_no_font_has_are_written_as_numbers():
    assert drawable("a层", ["DejaVu Sans", str(CHINESE)]) == "a层"
    assert drawable("a\U0001f9ff", ["DejaVu Sans"]) == "a⟨1f9ff⟩"


def test_both_languages_say_the_same_things():
    from npformer.cli.inspect_rotation import TEXT as TURNS
    from npformer.cli.inspect_steps import TEXT as STEPS
    from npformer.cli.inspect_text import TEXT as TABLE
    from npformer.plots.attention_page import TEXT as PAGE
    from npformer.plots.inspection_text import TEXT as FIGURE
    from npformer.plots.rotation import TEXT as ROTATION

    for text in (FIGURE, TABLE, TURNS, STEPS, PAGE, ROTATION):
        assert shape(text["en"]) == shape(text["zh"])


def test_the_same_figure_is_the_same_file(tmp_path):
    contents = []
    for name in ("a", "b"):
        with plots.language("en"):
            paths = save_figure(norms(CASES["one number"](), "", "en"), tmp_path / name)
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
