"""Figures: nothing is missing, cut off or on top of something else, in both languages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from scales import theory_curves, transformer_curves

from npformer import plots
from npformer.experiments.attention_traffic import attention_traffic
from npformer.plots import style
from npformer.plots.attention_traffic import traffic_by_memory
from npformer.plots.training import norms_by_layer, training_curves

CHINESE = style.chinese_font()
LANGUAGES = [
    "en",
    pytest.param("zh", marks=pytest.mark.skipif(CHINESE is None, reason="no Chinese font")),
]
DEEP = (1, 2, 5, 16, 40)
STEPS = [(t, 4 / t**0.2 + 0.1 * (t % 3), 2 + t % 5, 0.004 / t, 9, 9.0, 1.0) for t in range(1, 301)]
NORMS = [
    (t, f"{part}.{name}", 3.0 + t / 50, 2.0 / t)
    for t in range(10, 200, 10)
    for part in ("encoder.stack.blocks.0", "stack.blocks.0", "stack.blocks.1", "embedding")
    for name in ("W", "b")
]
FIGURES: dict[str, Callable[[str], Figure]] = {
    "training": lambda lang: training_curves(
        STEPS, [(100, 2.0, 1.0), (300, 1.5, 3.0)], V=103, clip=3.0, lang=lang
    ),
    "traffic": lambda lang: traffic_by_memory(attention_traffic(256, 8), lang),
    "traffic, one size": lambda lang: traffic_by_memory(attention_traffic(128, 128, [512]), lang),
    "traffic back": lambda lang: traffic_by_memory(
        attention_traffic(256, 8, backward=True), lang, backward=True
    ),
    "norms": lambda lang: norms_by_layer(NORMS, lang),
    "norms, once": lambda lang: norms_by_layer(NORMS[:1], lang),
    "training, one step": lambda lang: training_curves(STEPS[:1], lang=lang),
    "gradient, theory": lambda lang: plots.gradient_by_layer(theory_curves(DEEP), lang),
    "gradient, text": lambda lang: plots.gradient_by_layer(transformer_curves(DEEP), lang, "W1"),
    "last": lambda lang: plots.last_layer_gradient([theory_curves(), transformer_curves()], lang),
    "activation": lambda lang: plots.activation_by_layer(
        [theory_curves(DEEP), transformer_curves(DEEP)], lang
    ),
    "overview": lambda lang: plots.overview(transformer_curves(DEEP), lang),
    "overview, theory": lambda lang: plots.overview(theory_curves(DEEP), lang),
    "one depth": lambda lang: plots.last_layer_gradient(
        [theory_curves((1,), seeds=1, activation_seeds=1)], lang
    ),
    "one layer": lambda lang: plots.overview(
        transformer_curves((1,), seeds=1, activation_seeds=1), lang
    ),
}


@pytest.fixture
def silent(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """matplotlib reports a missing glyph in its log, or by a warning, which is an error here."""
    caplog.set_level(logging.INFO, "matplotlib")
    yield
    assert caplog.text == ""


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.usefixtures("silent")
def test_every_part_has_its_place(name: str, lang: str):
    with plots.language(lang) as given:
        assert given == lang
        figure = FIGURES[name](lang)
        figure.draw_without_rendering()
        whole = Bbox.from_bounds(0, 0, *figure.bbox.size)
        title, caption = (text.get_window_extent() for text in figure.texts)
        panels = [ax.get_tightbbox() for ax in figure.axes]
    for box in (title, caption, *panels):
        assert box is not None
        assert box.x0 >= 0
        assert box.x1 <= whole.x1
        assert box.y0 >= 0
        assert box.y1 <= whole.y1
    assert all(caption.y1 < box.y0 and box.y1 < title.y0 for box in panels)
    panels.sort(key=lambda box: box.x0)
    assert all(a.x1 <= b.x0 for a, b in pairwise(panels))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", FIGURES)
def test_no_line_runs_through_a_legend(name: str, lang: str):
    with plots.language(lang):
        figure = FIGURES[name](lang)
        figure.draw_without_rendering()
        for ax in figure.axes:
            if (legend := ax.get_legend()) is None:
                continue
            box = legend.get_window_extent()
            for line in ax.get_lines():
                path = line.get_path().transformed(line.get_transform())
                assert not path.intersects_bbox(box, filled=False), line.get_label()


@pytest.mark.parametrize(
    ("backward", "word", "multiple"), [(False, "forward", 2), (True, "back", 3)]
)
def test_the_traffic_says_of_which_pass_it_is(backward: bool, word: str, multiple: int):
    rows = attention_traffic(256, 8, backward=backward)
    with plots.language("en"):
        figure = traffic_by_memory(rows, backward=backward)
    caption = " ".join(figure.texts[1].get_text().split())
    assert f"the {word}" in caption
    formula = "7N^2+8Nd" if backward else "4(N^2+Nd)"
    assert f"${formula}$" in caption
    standard = 7 * 256**2 + 8 * 256 * 8 if backward else 4 * (256**2 + 256 * 8)
    assert rows[0].total == standard
    (ax,) = figure.axes
    figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().y0 >= ax.bbox.y1  # above the panel
    (upright,) = (line for line in ax.get_lines() if len(set(line.get_xdata())) == 1)
    assert list(upright.get_xdata()) == [multiple * 64] * 2
    assert [t.get_text() for t in ax.texts] == [f"${multiple}d^2$"]


@pytest.mark.parametrize("name", FIGURES)
def test_lines_differ_in_more_than_colour_and_have_a_name(name: str):
    with plots.language("en"):
        figure = FIGURES[name]("en")
    for ax in figure.axes:
        lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
        looks = [(str(line.get_linestyle()), line.get_marker()) for line in lines]
        assert len(set(looks)) == len(looks)
        assert ax.get_xlabel()
    assert figure.axes[0].get_ylabel()


@pytest.mark.parametrize(
    ("low", "high"), [(0.55, 1.3), (0.9, 1.1), (0.3, 3), (1e-3, 10), (2e24, 6e24), (7, 7.01)]
)
def test_a_logarithmic_axis_has_a_scale(low: float, high: float):
    """One number alone would leave the reader without any."""
    figure = style.new_figure(4, 3)
    ax = figure.subplots()
    ax.plot([1, 2], [low, high])
    style.log_axis(ax, "y")
    figure.draw_without_rendering()
    bottom, top = ax.get_ylim()
    seen = [v for v in ax.get_yticks() if bottom <= v <= top]
    assert 3 <= len(seen) <= 20


def test_a_recursion_of_one_depth_is_seen():
    """A line from a point to itself has no length."""
    curves = theory_curves((3,), seeds=1, activation_seeds=1)
    for figure in (plots.last_layer_gradient([curves]), plots.overview(theory_curves((1,)))):
        dotted = [line for ax in figure.axes for line in ax.get_lines()
                  if line.get_color() == style.THEORY]  # fmt: skip
        assert len(dotted) >= 2
        assert all(len(x.get_xdata()) > 1 or x.get_marker() != "None" for x in dotted)


def test_the_lines_are_the_numbers():
    curves = theory_curves()
    with plots.language("en"):
        pre, post = plots.gradient_by_layer(curves).axes
        (last,) = plots.last_layer_gradient([curves]).axes
    for ax, placement in ((pre, "pre"), (post, "post")):
        for line, L in zip(ax.get_lines(), curves.depths, strict=True):
            assert line.get_xdata().tolist() == list(range(1, L + 1))
            expected = curves.gradients[placement, L][:, :, 1].mean(axis=0)
            assert line.get_ydata().tolist() == expected.tolist()
    assert pre.get_ylim() == post.get_ylim()
    assert pre.get_yscale() == last.get_xscale() == last.get_yscale() == "log"
    measured = last.containers[0].lines[0].get_ydata()
    assert measured.tolist() == curves.last_gradients("pre").mean(axis=0).tolist()


def test_both_files_are_written_the_same_every_time(tmp_path: Path):
    contents = []
    for folder in ("a", "b"):
        with plots.language("en") as lang:
            paths = plots.save_figure(
                plots.last_layer_gradient([theory_curves()], lang), tmp_path / folder / "name.v1"
            )
        assert [p.name for p in paths] == ["name.v1.svg", "name.v1.png"]
        assert sorted(p.name for p in (tmp_path / folder).iterdir()) == sorted(
            p.name for p in paths
        )
        contents.append([p.read_bytes() for p in paths])
    assert contents[0] == contents[1]
    svg, png = contents[0]
    assert svg.startswith(b"<?xml")
    assert png.startswith(b"\x89PNG")


@pytest.mark.skipif(CHINESE is None, reason="no Chinese font")
def test_the_chinese_font_stands_first_and_only_inside():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with plots.language("zh") as lang:
        assert lang == "zh"
        assert mpl.rcParams["font.family"] == [CHINESE, "DejaVu Sans"]
    assert dict(mpl.rcParams) == before


@pytest.mark.skipif(CHINESE is None, reason="no Chinese font")
def test_a_font_newer_than_the_list_of_fonts_is_found(monkeypatch: pytest.MonkeyPatch):
    manager = font_manager.fontManager
    old = [font for font in manager.ttflist if font.name not in style.CJK_FONTS]
    monkeypatch.setattr(manager, "ttflist", old)
    assert style.chinese_font() == CHINESE


def test_without_a_chinese_font_the_labels_are_english(monkeypatch: pytest.MonkeyPatch):
    nothing = SimpleNamespace(ttflist=[], addfont=None)
    monkeypatch.setattr(style.font_manager, "fontManager", nothing)
    monkeypatch.setattr(style.font_manager, "findSystemFonts", list)
    with pytest.warns(UserWarning, match="no Chinese font") as warned, plots.language("zh") as lang:
        assert lang == "en"
    assert len(warned) == 1


def test_other_languages_are_refused():
    with pytest.raises(ValueError, match="one of en, zh, but is 'fr'"), plots.language("fr"):
        pass


def test_both_languages_say_the_same_things():
    from npformer.cli.curves_table import TEXT as TABLE
    from npformer.plots.curves_text import TEXT as FIGURE

    for text in (FIGURE, TABLE):
        assert shape(text["en"]) == shape(text["zh"])


def shape(text: object) -> object:
    """Keys and fields of a tree of texts, without the words."""
    if isinstance(text, dict):
        return {key: shape(value) for key, value in text.items()}
    if isinstance(text, tuple):
        return len(text)
    import string

    return {field for _, field, _, _ in string.Formatter().parse(str(text)) if field}
