"""The same trained weights under another method: one trunk for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twellviz.models.lm import LM
from twellviz.sparsifiers.block import SparseBlock


def with_sparsifier(model: LM, name: str, *, activation: str | None = None, **options: Any) -> LM:
    """A copy of a model whose blocks follow another method.

    All weights of the trunk are copied. What the method adds starts from them: a router from its experts' gate rows,
    thresholds at 0.

    Parameters
    ----------
    model : LM
    name : str
        A name of :data:`twellviz.sparsifiers.METHODS`.
    activation : {"relu", "silu"}, optional
        Another activation function; the model's if not given.
    **options
        The method's.

    Returns
    -------
    LM
        On the model's device and in its mode.

    Raises
    ------
    ConfigError
        No such method or option, or the method cannot be had with this model.
    """
    cfg = replace(model.cfg, sparsifier=name, sparsifier_options=options, activation=activation or model.cfg.activation)
    first = next(model.parameters())
    made = LM(cfg).to(first.device, first.dtype)
    names = dict(made.named_parameters())
    trunk = {key: tensor for key, tensor in model.named_parameters() if key in names}
    made.load_state_dict({**made.state_dict(), **trunk})
    for module in made.modules():
        if isinstance(module, SparseBlock):
            module.prepare()
    return made.train(model.training)
