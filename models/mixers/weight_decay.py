"""Parameters that weight decay and Muon leave alone."""

from torch import nn

from evalsuite.models.mixers.interface import Mixer, not_matrices


def no_weight_decay(model: nn.Module) -> frozenset[str]:
    """Names of the parameters of `model` that are no matrices between activations.

    Weights of linear layers decay, except the language-model head; a mixer names its own exceptions
    (`Mixer.no_weight_decay`). Embeddings, norms, biases, decay rates and convolutions do not decay: zero
    means nothing to them, or ruins an initial value such as a gate's memory length.
    """
    excluded = set(not_matrices(model))
    for prefix, module in model.named_modules():
        path = f"{prefix}." if prefix else ""
        names = [name for name, _ in module.named_parameters()]
        if path.endswith("lm_head.") and isinstance(module, nn.Linear):
            excluded.add(f"{path}weight")
        elif isinstance(module, Mixer):
            excluded -= {f"{path}{name}" for name in names}
            excluded |= {f"{path}{name}" for name in module.no_weight_decay()}
    return frozenset(name for name, _ in model.named_parameters() if name in excluded)
