"""Checks for the notebooks' exercises: one module a notebook, ``nb01``, ``nb02`` and so on."""

from __future__ import annotations

from twellviz.exercises.checking import Case, Exercise, ExerciseError, Sheet

__all__ = ["Case", "Exercise", "ExerciseError", "Sheet"]
