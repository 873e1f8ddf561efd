"""Models that are a chain of linear layers with activations between them: their gradients have a closed form."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import nn

from hybridfl.losses import Loss, cross_entropy
from hybridfl.models import LogisticRegression

ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.Sigmoid)


@dataclass(frozen=True)
class Dense:
    """(outputs, inputs, 1 if it has biases else 0) of every linear layer; between two of them, a number in `ACTIVATIONS`.

    One layer and nothing between is softmax regression.
    """

    shapes: tuple[tuple[int, int, int], ...]
    activations: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, loss: Loss) -> Dense | None:
        """`model` as a chain, if it is one, perhaps after a Flatten, and the loss is cross-entropy; else None."""
        if loss is not cross_entropy or not all(_is_plain(module) for module in model.modules()):
            return None
        if type(model) is LogisticRegression:
            return cls(((*model.linear.weight.shape, 1),))
        layers = list(model) if type(model) is nn.Sequential else []
        if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
            layers = layers[1:]
        linear = [each for each in layers[::2] if type(each) is nn.Linear]
        between = [type(each) for each in layers[1::2]]
        if len(linear) != len(between) + 1 or not all(kind in ACTIVATIONS for kind in between):
            return None
        shapes = tuple((*each.weight.shape, int(each.bias is not None)) for each in linear)
        fits = all(earlier[0] == later[1] for earlier, later in itertools.pairwise(shapes))
        is_tied = len({id(parameter) for each in linear for parameter in each.parameters()}) < sum(
            1 + bias for _, _, bias in shapes
        )
        return cls(shapes, tuple(ACTIVATIONS.index(kind) for kind in between)) if fits and not is_tied else None

    @property
    def is_softmax_regression(self) -> bool:
        return len(self.shapes) == 1 and self.shapes[0][2] == 1

    @property
    def num_features(self) -> int:
        return self.shapes[0][1]

    @property
    def num_classes(self) -> int:
        return self.shapes[-1][0]

    @property
    def num_parameters(self) -> int:
        return sum(outputs * (inputs + bias) for outputs, inputs, bias in self.shapes)


_LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Flatten, nn.Sequential, LogisticRegression, *ACTIVATIONS)
_FORWARDS: dict[type[nn.Module], object] = {kind: kind.forward for kind in _LAYERS}
"""As they were: somebody may have patched a class since."""
_EVERYWHERE = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
)


def _is_plain(module: nn.Module) -> bool:
    """No hooks, no parametrization, no forward of its own, nothing in it that its type does not have."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks) or any(_EVERYWHERE) or "forward" in vars(module) or list(module.buffers(recurse=False)):
        return False
    if type(module) in _FORWARDS and _FORWARDS[type(module)] is not type(module).forward:
        return False
    return [name for name, _ in module.named_parameters(recurse=False)] in ([], ["weight"], ["weight", "bias"])
