"""One function a figure: takes numbers, returns a `matplotlib.figure.Figure`; nothing is shown.

>>> from npformer import plots
>>> with plots.language("en") as lang:  # "zh" where a Chinese font is installed
...     figure = plots.new_figure(4, 3)  # or one of the functions below
...     paths = plots.save_figure(figure, folder / "name")  # name.svg and name.png
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
