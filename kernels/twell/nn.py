"""Feed-forward blocks as torch modules: :class:`GatedFFN` and :class:`FFN`.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twell import ops
from twell.errors import DtypeError, OptionError, ShapeError
from twell.formats import Clipped
from twell.formats._rules import check_overflow
from twell.plan import BlockShape, plan_training
from twell.train_ops import ffn_train, gated_ffn_train

ACTIVATIONS = ("relu", "silu")

_DENSE, _SPARSE = 0.0, 1.0
_UNKNOWN = -1.0

_logger = logging.getLogger("twell")


class FFNStats(NamedTuple):
    """What a block's neurons did in one call.

    Attributes
    ----------
    l0 : Tensor, float32 scalar
        Mean number of active neurons of a token.
    l1 : Tensor, float32 scalar
        Mean over tokens of the sum of ``|h|`` over the hidden units; differentiable.
    activity : Tensor, int64 [H]
        Tokens on which each neuron was active.
    balance : Tensor, float32 scalar, or None
        What a block of another kind asks to be added to the loss (load balancing of experts); the blocks here give
        None.
    """

    l0: Tensor
    l1: Tensor
    activity: Tensor
    balance: Tensor | None = None


class _Block(nn.Module, ABC):
    """What both blocks share: sizes, options, flattening, the choice between dense and sparse."""

    weight_names: ClassVar[tuple[str, ...]]
    plan_state: Tensor

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        *,
        activation: str = "relu",
        backend: str = "auto",
        overflow: str = "spill",
        init_std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("d_model", d_model), ("d_hidden", d_hidden)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ShapeError(f"{name}={size!r}: an integer of at least 1 is needed")
        if not init_std >= 0:
            raise OptionError(f"init_std={init_std!r}: a number of at least 0 is needed")
        if activation not in ACTIVATIONS:
            raise OptionError(f"activation={activation!r}: choose one of {', '.join(ACTIVATIONS)}")
        check_overflow(overflow)
        ops.check_backend(backend)
        if activation != "relu" and backend not in ("auto", "dense"):
            raise OptionError(
                f"backend={backend!r} with activation={activation!r}: only ReLU gives exact zeros to skip; "
                'use backend="dense" or activation="relu"'
            )
        self.d_model, self.d_hidden = d_model, d_hidden
        self.activation, self.backend, self.overflow = activation, backend, overflow
        # The way of training steps and the activity it was chosen for; saved, so that a resumed run goes the same way.
        self.register_buffer("plan_state", torch.tensor([_DENSE, _UNKNOWN], device=device))
        self._way: str | None = None
        self._waits = False
        for name in self.weight_names:
            weight_HD = torch.empty(d_hidden, d_model, device=device, dtype=dtype)
            nn.init.normal_(weight_HD, std=init_std)
            self.register_parameter(name, nn.Parameter(weight_HD))

    def extra_repr(self) -> str:
        return (
            f"{self.d_model}, {self.d_hidden}, activation={self.activation!r}, backend={self.backend!r}, "
            f"overflow={self.overflow!r}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block.

        Parameters
        ----------
        x : Tensor [..., D]

        Returns
        -------
        Tensor [..., D]

        Raises
        ------
        ShapeError, DtypeError, DeviceError
        CapacityError
            Under ``overflow="raise"``.
        """
        x_MD = self._flat(x)
        if self._runs_dense(x_MD):
            y_MD = self._down(self._hidden(x_MD)[1])
        else:
            y_MD, clipped = self._sparse(x_MD)
            if clipped:
                warnings.warn(
                    f'overflow="clip" dropped {clipped.entries} active neurons in {clipped.rows} rows '
                    f'(sum of |gate| {clipped.abs_sum:.4g}); "spill" keeps them',
                    stacklevel=2,
                )
        return y_MD.view(x.shape)

    def forward_with_stats(self, x: Tensor) -> tuple[Tensor, FFNStats]:
        """Apply the block and count: used in training, where the L1 penalty needs a gradient.

        Parameters
        ----------
        x : Tensor [..., D]

        Returns
        -------
        y : Tensor [..., D]
        stats : FFNStats
        """
        x_MD = self._flat(x)
        n_tokens = max(1, x_MD.shape[0])
        plans = self._plans_steps(x_MD) and self.training and torch.is_grad_enabled()
        repeats = torch._C._current_graph_task_id() != -1  # within a backward: activation checkpointing
        way = self._way_of_pass(repeats) if plans else self.training_way
        if self._trains_sparse(x_MD, way):
            y_MD, l1, activity_H = self._sparse_step(x_MD)
        else:
            gate_MH, h_MH = self._hidden(x_MD)
            y_MD = self._down(h_MH)
            l1 = h_MH.abs().sum(dtype=torch.float32) / n_tokens
            activity_H = self.is_active(gate_MH.detach()).sum(0)
        stats = FFNStats(l0=activity_H.sum().float() / n_tokens, l1=l1, activity=activity_H)
        if plans and not repeats:
            self._plan_next_step(x_MD.shape[0], float(stats.l0))
            if y_MD.requires_grad:
                y_MD.register_hook(self._end_of_pass)  # type: ignore[no-untyped-call]
        return y_MD.view(x.shape), stats

    @property
    def training_way(self) -> str:
        """``"sparse"`` or ``"dense"``: how the next training step goes."""
        if self.backend == "auto":
            return self._planned_way()
        return "sparse" if self.backend == "cpu" else "dense"

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gate values and hidden activations, densely, for recording and inspection.

        Parameters
        ----------
        x : Tensor [..., D]

        Returns
        -------
        gate_MH : Tensor [M, H]
            After the activation function; a neuron is active where this is not ``<= 0`` (ReLU).
        h_MH : Tensor [M, H]
            What the down projection multiplies.
        """
        return self._hidden(self._flat(x))

    def is_active(self, gate_MH: Tensor) -> Tensor:
        """Which neurons count as active: bool, shape of ``gate_MH``."""
        return ~(gate_MH <= 0) if self.activation == "relu" else gate_MH != 0

    def _activate(self, z_MH: Tensor) -> Tensor:
        return F.relu(z_MH) if self.activation == "relu" else F.silu(z_MH)

    def _flat(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise DtypeError(f"x is a {type(x).__name__}: pass a torch tensor (torch.from_numpy makes one)")
        if not x.is_floating_point():
            raise DtypeError(f"x has dtype {x.dtype}: floating-point values are needed; convert with .float()")
        if x.ndim < 1 or x.shape[-1] != self.d_model:
            raise ShapeError(f"x has shape {tuple(x.shape)}: the last axis must be d_model = {self.d_model}")
        return x.reshape(-1, self.d_model)

    def _runs_dense(self, x_MD: Tensor) -> bool:
        if self.activation != "relu" or self.backend == "dense":
            return True
        return self.backend == "auto" and not ops.sparse_pays(x_MD)

    def _plans_steps(self, x_MD: Tensor) -> bool:
        # A compiled block is one dense graph: reading a plan would break it in two.
        return (
            self.backend == "auto"
            and self.activation == "relu"
            and not torch.compiler.is_compiling()
            and ops.has_kernel(x_MD)
        )

    def _planned_way(self) -> str:
        return "sparse" if float(self.plan_state[0]) == _SPARSE else "dense"

    def _way_of_pass(self, repeats: bool) -> str:
        """The planned way as it stood before the first forward that still waits for its backward.

        A pass that activation checkpointing repeats must go the way of the first, although its own count has changed
        the plan since.
        """
        if self._way is None or not (self._waits or repeats):
            self._way = self._planned_way()
        self._waits = self._waits or not repeats
        return self._way

    def _end_of_pass(self, _: Tensor) -> None:
        self._waits = False

    def _trains_sparse(self, x_MD: Tensor, way: str) -> bool:
        if self.overflow == "clip":  # has no gradient
            return False
        return self.backend == "cpu" or (self._plans_steps(x_MD) and way == "sparse")

    def _plan_next_step(self, n_tokens: int, mean_active: float) -> None:
        # Where bits must repeat from the first call on, a way is not changed behind the caller's back.
        if torch.are_deterministic_algorithms_enabled():
            return
        shape = BlockShape(
            tokens=n_tokens,
            d_model=self.d_model,
            d_hidden=self.d_hidden,
            gated=isinstance(self, GatedFFN),
            threads=torch.get_num_threads(),
        )
        before = self._planned_way()
        plan = plan_training(shape, mean_active, previous=before)
        self.plan_state.copy_(torch.tensor([_SPARSE if plan.way == "sparse" else _DENSE, mean_active]))
        if plan.way != before:
            _logger.info("training step goes %s from now on\n%s", plan.way, plan.explain())

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        self._way, self._waits = None, False
        # Weights from elsewhere know of no plan: they start without one.
        state_dict.setdefault(f"{prefix}plan_state", torch.tensor([_DENSE, _UNKNOWN]))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @abstractmethod
    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        """Gate values and hidden activations [M, H]."""

    @abstractmethod
    def _sparse(self, x_MD: Tensor) -> tuple[Tensor, Clipped]:
        """The block through the sparse kernels, and what clipping dropped."""

    @abstractmethod
    def _sparse_step(self, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output, L1 and activity through the sparse training step."""

    def _down(self, h_MH: Tensor) -> Tensor:
        down_HD = self.get_parameter("down_weight")
        return h_MH @ down_HD


class GatedFFN(_Block):
    """Gated feed-forward block: ``y = (act(x gate^T) * (x up^T)) down``.

    Parameters
    ----------
    d_model, d_hidden : int
        D and H; any sizes.
    activation : {"relu", "silu"}
        SiLU gives no exact zeros, so it always runs densely.
    backend : {"auto", "dense", "reference", "cpu", "simt"}
        ``"auto"`` uses the sparse kernels where they pay: on a CPU in inference by the neurons that are really active,
        in :meth:`forward_with_stats` by those of earlier steps (:mod:`twell.plan`); on a GPU it is dense. A plain
        ``forward`` that needs a gradient is dense. ``"simt"``: the Numba CUDA kernels, in inference.
    overflow : {"spill", "raise", "clip"}
        What the sparse kernels of inference do with a tile that has more active neurons than slots; ``"spill"`` is
        exact. Training (:meth:`forward_with_stats`) has no slots and is exact whatever stands here.
    init_std : float
        Standard deviation of the initial weights (paper, Table 2: 0.02).

    Attributes
    ----------
    gate_weight, up_weight, down_weight : Parameter [H, D]
        One row per neuron; ``down_weight`` is the transpose of an ``nn.Linear``'s weight.

    Examples
    --------
    >>> import torch
    >>> from twell.nn import GatedFFN
    >>> block = GatedFFN(64, 300)
    >>> with torch.inference_mode():
    ...     block(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    gate_weight: nn.Parameter
    up_weight: nn.Parameter
    down_weight: nn.Parameter
    weight_names = ("gate_weight", "up_weight", "down_weight")

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        gate_MH = self._activate(F.linear(x_MD, self.gate_weight))
        return gate_MH, gate_MH * F.linear(x_MD, self.up_weight)

    def _sparse(self, x_MD: Tensor) -> tuple[Tensor, Clipped]:
        return ops.gated_ffn(
            x_MD,
            self.gate_weight,
            self.up_weight,
            self.down_weight,
            overflow=self.overflow,
            backend=self.backend,
        )

    def _sparse_step(self, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gated_ffn_train(x_MD, self.gate_weight, self.up_weight, self.down_weight)


class FFN(_Block):
    """Non-gated feed-forward block: ``y = act(x up^T) down``. Parameters as :class:`GatedFFN`."""

    up_weight: nn.Parameter
    down_weight: nn.Parameter
    weight_names = ("up_weight", "down_weight")

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        h_MH = self._activate(F.linear(x_MD, self.up_weight))
        return h_MH, h_MH

    def _sparse(self, x_MD: Tensor) -> tuple[Tensor, Clipped]:
        return ops.ffn(x_MD, self.up_weight, self.down_weight, overflow=self.overflow, backend=self.backend)

    def _sparse_step(self, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return ffn_train(x_MD, self.up_weight, self.down_weight)
