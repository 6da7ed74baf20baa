"""One function a figure: takes numbers, returns a `matplotlib.figure.Figure`; nothing is shown.

>>> import tempfile
>>> from npformer import plots
>>> with tempfile.TemporaryDirectory() as folder, plots.language("en"):  # or "zh"
...     figure = plots.new_figure(4, 3)  # or one of the functions below
...     [path.name for path in plots.save_figure(figure, f"{folder}/name")]
['name.svg', 'name.png']
"""

from .curves import activation_by_layer, gradient_by_layer, last_layer_gradient, overview
from .style import language, new_figure, save_figure

__all__ = [
    "activation_by_layer",
    "gradient_by_layer",
    "language",
    "last_layer_gradient",
    "new_figure",
    "overview",
    "save_figure",
]
