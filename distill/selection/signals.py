"""`act_mse` and `lm_ppl`: what plain text tells about a bypassed layer."""

from evalsuite.distill.selection.bypass import bypassed
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.outcome import Outcome
from evalsuite.distill.selection.sets import top_layers


def act_mse(ground: Ground, k: int) -> Outcome:
    """Layers by the mean squared change of the final hidden states when each is bypassed (Table 3)."""
    text = ground.held_out
    whole = text.final_hidden(ground.teacher)
    scores = []
    for layer in range(ground.layers):
        with bypassed(ground.teacher, layer):
            changed = text.final_hidden(ground.teacher)
        squared = sum((a - b).square().sum().item() for a, b in zip(changed, whole, strict=True))
        scores.append(squared / sum(states.numel() for states in whole))
    return Outcome(
        layers=top_layers(scores, k),
        scores=tuple(scores),
        measure="mean squared change of the final hidden states when the layer is bypassed",
        details={"held_out_tokens": text.counted},
    )


def lm_ppl(ground: Ground, k: int) -> Outcome:
    """Layers by the increase in perplexity on held-out text when each is bypassed (Table 3)."""
    text = ground.held_out
    whole = text.perplexity(ground.teacher)
    scores = []
    for layer in range(ground.layers):
        with bypassed(ground.teacher, layer):
            scores.append(text.perplexity(ground.teacher) - whole)
    return Outcome(
        layers=top_layers(scores, k),
        scores=tuple(scores),
        measure="increase in perplexity on held-out text when the layer is bypassed",
        details={"perplexity": whole, "held_out_tokens": text.counted},
    )
