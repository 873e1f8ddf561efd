# mypy: allow-untyped-calls, allow-subclassing-any
"""An LSTM that can be stacked: `vmap` over it trains many devices' LSTMs as one.

    (i, f, g, o) = W_ih·x_t + b_ih + W_hh·h_{t−1} + b_hh,   c_t = σ(f)⊙c_{t−1} + σ(i)⊙tanh(g),   h_t = σ(o)⊙tanh(c_t)

`nn.LSTM` is one fused call that `vmap` cannot look into. Here a layer is a function with a rule for `vmap` and a backward pass
written out: a time step is one product for all devices and one fused kernel, and the weights' gradients are one product
over all time steps.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def stackable(model: nn.Module) -> nn.Module:
    """A copy of `model` in which every `nn.LSTM` that can be is a `StackableLSTM`, with the same parameters."""
    ours = copy.deepcopy(model)
    for name, layer in list(ours.named_modules()):
        if type(layer) is nn.LSTM and not layer.bidirectional and layer.proj_size == 0 and layer.bias:
            parent = ours.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], StackableLSTM(layer))
    return ours


class StackableLSTM(nn.Module):
    """What `nn.LSTM` computes from a zero state, to float32 rounding; parameters keep their names and order."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self._layers, self._batch_first = layer.num_layers, layer.batch_first
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs = inputs.transpose(0, 1) if self._batch_first else inputs
        last_h, last_c = [], []
        for number in range(self._layers):
            weights = (getattr(self, f"{kind}_l{number}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            outputs, c, *_ = _Layer.apply(outputs, *weights)
            last_h.append(outputs[-1])
            last_c.append(c)
        outputs = outputs.transpose(0, 1) if self._batch_first else outputs
        return outputs, (torch.stack(last_h), torch.stack(last_c))


class _Layer(torch.autograd.Function):
    """(x [T, B, I], W_ih, W_hh, b_ih, b_hh) → (h [T, B, H], c_T), and what its backward pass needs: all c, all gates."""

    @staticmethod
    def forward(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.squeeze(0) for each in _forward(*(each.unsqueeze(0) for each in (x, w_ih, w_hh, b_ih, b_hh))))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, w_ih, w_hh, _, _ = inputs
        h, _, c, gates = output
        ctx.mark_non_differentiable(c, gates)
        ctx.save_for_backward(x, w_ih, w_hh, h, c, gates)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, dc_last: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        dx, dw_ih, dw_hh, db = _LayerBackward.apply(dh.contiguous(), dc_last.contiguous(), *ctx.saved_tensors)
        return dx, dw_ih, dw_hh, db, db

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return _forward(*_slots_first(info.batch_size, in_dims, inputs)), 0


class _LayerBackward(torch.autograd.Function):
    """(∂h, ∂c_T, x, W_ih, W_hh, h, c, gates) → (∂x, ∂W_ih, ∂W_hh, ∂b)."""

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.squeeze(0) for each in _backward(*(each.unsqueeze(0) for each in inputs)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return _backward(*_slots_first(info.batch_size, in_dims, inputs)), 0


def _slots_first(slots: int, dims: tuple[int | None, ...], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [
        each.unsqueeze(0).expand(slots, *each.shape) if dim is None else each.movedim(dim, 0)
        for each, dim in zip(inputs, dims, strict=True)
    ]


def _forward(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
    """All with the slots first; time is first inside, so that what a time step reads lies together."""
    slots, times, batch, size = *x.shape[:3], w_hh.shape[2]
    flat = x.reshape(slots, times * batch, -1)
    from_x = torch.baddbmm((b_ih + b_hh).unsqueeze(1), flat, w_ih.transpose(1, 2))
    from_x = from_x.view(slots, times, batch, 4 * size).transpose(0, 1).contiguous()
    recurrent = w_hh.transpose(1, 2)
    h = x.new_zeros(slots, batch, size)
    c = x.new_zeros(slots * batch, size)
    all_h, all_c, all_gates = [], [], []
    for t in range(times):
        h, c, gates = _cell(from_x[t].view(slots * batch, -1), torch.bmm(h, recurrent).view(slots * batch, -1), c)
        h = h.view(slots, batch, size)
        all_h.append(h)
        all_c.append(c.view(slots, batch, size))
        all_gates.append(gates.view(slots, batch, 4 * size))
    return torch.stack(all_h, 1), all_c[-1], torch.stack(all_c, 1), torch.stack(all_gates, 1)


def _backward(
    dh: Tensor, dc_last: Tensor, x: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, gates: Tensor
) -> tuple[Tensor, ...]:
    slots, times, batch, size = h.shape
    by_time = [each.transpose(0, 1).contiguous().view(times, slots * batch, -1) for each in (dh, c, gates)]
    incoming, cells, gates_by_time = by_time
    dc = dc_last.reshape(slots * batch, size)
    zeros = torch.zeros_like(dc)
    all_dgates = []
    from_later = zeros
    for t in reversed(range(times)):
        before = cells[t - 1] if t else zeros
        dgates, dc = _cell_backward(incoming[t] + from_later, dc, before, cells[t], gates_by_time[t])
        from_later = torch.bmm(dgates.view(slots, batch, -1), w_hh).view(slots * batch, size)
        all_dgates.append(dgates.view(slots, batch, 4 * size))
    dgates = torch.stack(all_dgates[::-1], 1).view(slots, times * batch, 4 * size)
    h_before = torch.cat([h.new_zeros(slots, 1, batch, size), h[:, :-1]], 1).reshape(slots, times * batch, size)
    flat_x = x.reshape(slots, times * batch, -1)
    transposed = dgates.transpose(1, 2)
    dx = torch.bmm(dgates, w_ih).view(x.shape)
    return dx, torch.bmm(transposed, flat_x), torch.bmm(transposed, h_before), dgates.sum(1)


def _cell(from_x: Tensor, from_h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(h, c, the gates after σ and tanh) of one time step; rows are independent."""
    if c.device.type == "cuda":
        h, c, gates = torch.ops.aten._thnn_fused_lstm_cell(from_x, from_h, c)
        return h, c, gates
    i, f, g, o = (from_x + from_h).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], 1)


def _cell_backward(dh: Tensor, dc: Tensor, before: Tensor, c: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """(∂gates before σ and tanh, ∂c of the time step before)."""
    if c.device.type == "cuda":
        dgates, dc, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(dh, dc, before, c, gates, False)
        return dgates, dc
    i, f, g, o = gates.chunk(4, 1)
    t = c.tanh()
    dc = dc + dh * o * (1 - t * t)
    parts = dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)
    return torch.cat(parts, 1), dc * f
