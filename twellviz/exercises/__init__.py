"""Checks for the notebooks' exercises: one module a notebook, ``nb01`` to ``nb11``."""

from __future__ import annotations

from twellviz.exercises.checking import Case, Exercise, ExerciseError, Sheet

__all__ = ["Case", "Exercise", "ExerciseError", "Sheet"]
