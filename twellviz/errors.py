"""Errors of ``twellviz``: each message names the argument, its value, the limit and the remedy."""

from __future__ import annotations


class TwellvizError(ValueError):
    """Base of every error that ``twellviz`` raises on purpose."""


class ConfigError(TwellvizError):
    """A model or training setting is out of range or contradicts another."""


class DivergedError(TwellvizError):
    """Training has reached a loss or gradient that is not finite."""


class TextError(TwellvizError):
    """A text is empty, not UTF-8, or otherwise cannot be turned into tokens."""


class CheckpointError(TwellvizError):
    """A checkpoint is truncated, foreign, or does not match what it is loaded into."""


class TraceError(TwellvizError):
    """A trace is truncated, foreign, or lacks what a view needs."""


class ProcessError(TwellvizError):
    """Another process of a run has failed, or the processes do not agree."""
