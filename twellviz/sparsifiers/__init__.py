"""Roads to sparsity in the feed-forward blocks, one a file, behind one interface.

=============  ==========================================  =======================================================
name           paper                                       what makes a neuron inactive
=============  ==========================================  =======================================================
``relu``       Nair and Hinton 2010                        ReLU alone, no penalty
``l1``         arXiv 2603.23198                            ReLU, pushed by an L1 penalty (the trainer's own road)
``drelu``      TurboSparse, arXiv 2406.05955               ReLU on the gate and on up: either one at 0
``prosparse``  ProSparse, arXiv 2402.13516                 a penalty in rising stages, then a shifted threshold
``topk``       Q-Sparse, arXiv 2407.10969                  all but the k largest ``|h|`` of a token
``teal``       TEAL, arXiv 2408.14690                      ``|h|`` below a calibrated threshold, without training
``cats``       CATS, arXiv 2404.08763                      ``|silu(gate)|`` below one, without training
``moe``        arXiv 1701.06538, 2101.03961                whole experts that a router leaves out
=============  ==========================================  =======================================================

``LMConfig(sparsifier=..., sparsifier_options=...)`` names one; model, trainer and checkpoint follow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy

if TYPE_CHECKING:
    from twellviz.sparsifiers.base import Sparsifier
    from twellviz.sparsifiers.calibration import calibrate, threshold_for
    from twellviz.sparsifiers.kernels import forward_sparse, pack_pattern
    from twellviz.sparsifiers.registry import METHODS, sparsifier
    from twellviz.sparsifiers.trunk import with_sparsifier

_WHERE = {
    "METHODS": "registry",
    "Sparsifier": "base",
    "calibrate": "calibration",
    "forward_sparse": "kernels",
    "pack_pattern": "kernels",
    "sparsifier": "registry",
    "threshold_for": "calibration",
    "with_sparsifier": "trunk",
}

__all__ = [
    "METHODS",
    "Sparsifier",
    "calibrate",
    "forward_sparse",
    "pack_pattern",
    "sparsifier",
    "threshold_for",
    "with_sparsifier",
]

__getattr__ = lazy(__name__, _WHERE)
