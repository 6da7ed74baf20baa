"""Gradient checks: `gradcheck`, its report, and the cases that ``npformer gradcheck`` runs."""

from .comparing import METHODS
from .judge import check, gradcheck
from .probe import NotAnalyticError
from .report import GradientReport, Row

__all__ = ["METHODS", "GradientReport", "NotAnalyticError", "Row", "check", "gradcheck"]
