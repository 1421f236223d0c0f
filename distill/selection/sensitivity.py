"""`smart` on a teacher: sensitivities without training, then SMART's placement."""

from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.hybrids import restored
from evalsuite.distill.selection.outcome import Cost, Outcome
from evalsuite.distill.selection.smart import smart_layers


def smart(ground: Ground, k: int) -> Outcome:
    """Layers by how much of KL(teacher ‖ student) each wins back in the all-linear student, near-uniform.

    The sensitivity is measured on the held-out slice without further training; see `smart_layers` for
    terminal preservation and placement (section 4.2 (4)).
    """
    linear = ground.held_out.kl(ground.trunk)
    scores = []
    for layer in range(ground.layers):
        with restored(ground.trunk, ground.full, [layer]) as hybrid:
            scores.append(linear - ground.held_out.kl(hybrid))
    return Outcome(
        layers=smart_layers(scores, k),
        scores=tuple(scores),
        measure="KL divergence won back by restoring this layer, nats per token, untrained",
        cost=Cost(trunk_tokens=ground.trunk_tokens),
        details={"all_linear_kl": linear},
    )
