"""Parameters that weight decay and Muon leave alone."""

from torch import nn

from evalsuite.models.mixers.base import RecurrentMixer


def no_weight_decay(model: nn.Module) -> frozenset[str]:
    """Names of the parameters of `model` that are no matrices between activations.

    Weights of linear layers decay, except the language-model head; a mixer adds its other matrices
    (`Mixer.matrix_parameters`). Embeddings, norms, biases, decay rates and convolutions do not: zero means
    nothing to them, or ruins an initial value such as a gate's memory length.
    """
    decayed: set[str] = set()
    for prefix, module in model.named_modules():
        path = f"{prefix}." if prefix else ""
        if isinstance(module, nn.Linear) and not path.endswith("lm_head."):
            decayed.add(f"{path}weight")
        elif isinstance(module, RecurrentMixer):
            decayed.update(f"{path}{name}" for name in module.matrix_parameters)
    return frozenset(name for name, _ in model.named_parameters() if name not in decayed)
