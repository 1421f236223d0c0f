"""`uniform` and `fixed` on a teacher: nothing is measured."""

from evalsuite.distill.selection.fixed import fixed_layers, published
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.outcome import Outcome
from evalsuite.distill.selection.uniform import uniform_layers


def uniform(ground: Ground, k: int) -> Outcome:
    """Layers at equal distances; see `uniform_layers` for the rule."""
    return Outcome(layers=uniform_layers(ground.layers, k))


def fixed(ground: Ground, k: int) -> Outcome:
    """The published set that option `set` names, or the list in option `layers`."""
    options = ground.options
    layers = fixed_layers(ground.layers, k, named=options.set, given=options.layers)
    source = published()[options.set].source if options.set is not None else "given"
    return Outcome(layers=layers, details={"source": source})
