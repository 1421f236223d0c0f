"""The papers' layers, written token by token: references for the preset `native`.

Each function takes the weights of a mixer by name, its number of heads and the layer's input x [T, hidden],
and returns the layer's output [T, hidden]. The formulas are those of the papers and of fla's or the authors'
layers, named in each function; nothing is shared with the package.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, logsigmoid, silu, softplus

Weights = dict[str, Tensor]
EPS = 1e-5
"""Epsilon of fla's norms."""


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def low_rank(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(w, f"{name}.1", linear(w, f"{name}.0", x))


def heads(x: Tensor, num_heads: int) -> Tensor:
    """[T, H · D] → [T, H, D]."""
    return x.reshape(x.shape[0], num_heads, -1)


def convolved(w: Weights, name: str, x: Tensor) -> Tensor:
    """Causal depthwise convolution and SiLU: y_t = silu(Σ_i w_i x_{t − size + 1 + i})."""
    kernel = w[f"{name}.weight"][:, 0]
    size = kernel.shape[1]
    rows = []
    for t in range(x.shape[0]):
        total = torch.zeros_like(x[0])
        for i in range(size):
            if t - size + 1 + i >= 0:
                total = total + kernel[:, i] * x[t - size + 1 + i]
        rows.append(silu(total))
    return torch.stack(rows)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def additive(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None = None) -> Tensor:
    """S = D S + k vᵀ, o = Sᵀ q; q and k [T, H, K], v [T, H, V], decay [T, H, K]."""
    state = torch.zeros(*k.shape[1:], v.shape[-1])
    outputs = []
    for t in range(q.shape[0]):
        if decay is not None:
            state = decay[t].unsqueeze(-1) * state
        state = state + k[t].unsqueeze(-1) * v[t].unsqueeze(-2)
        outputs.append((state * q[t].unsqueeze(-1)).sum(-2))
    return torch.stack(outputs)


def generalized(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, removed: Tensor, read: Tensor, *, after_decay: bool
) -> Tensor:
    """S = D S − r (aᵀ S) + k vᵀ with the matrices written out; a reads S before or after its decay."""
    num_heads, key_dim, value_dim = k.shape[1], k.shape[2], v.shape[2]
    state = torch.zeros(num_heads, key_dim, value_dim)
    outputs = []
    for t in range(q.shape[0]):
        rows = []
        for h in range(num_heads):
            decayed = torch.diag(decay[t, h]) @ state[h]
            removal = torch.outer(removed[t, h], read[t, h]) @ (decayed if after_decay else state[h])
            state[h] = decayed - removal + torch.outer(k[t, h], v[t, h])
            rows.append(q[t, h] @ state[h])
        outputs.append(torch.stack(rows))
    return torch.stack(outputs)


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
    """S = (I − β k kᵀ) D S + β k vᵀ; beta [T, H], decay [T, H, K]."""
    written = beta.unsqueeze(-1) * k
    return generalized(q, written, v, decay, written, k, after_decay=True)


def ridge_regression(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, ridge: Tensor) -> Tensor:
    """G = γ G + β k vᵀ, H = γ H + β k kᵀ, o = Gᵀ (H + Λ)⁻¹ q; q and k [T, H, K], v [T, H, V], decay γ and
    beta [T, H], ridge Λ [H, K, K]."""
    (_, num_heads, key_dim), value_dim = k.shape, v.shape[-1]
    moments = k.new_zeros(num_heads, key_dim, value_dim)
    covariance = torch.zeros_like(ridge)
    outputs = []
    for t in range(q.shape[0]):
        gamma, write = (gate[t, :, None, None] for gate in (decay, beta))
        moments = gamma * moments + write * k[t].unsqueeze(-1) * v[t].unsqueeze(-2)
        covariance = gamma * covariance + write * k[t].unsqueeze(-1) * k[t].unsqueeze(-2)
        solved = torch.linalg.solve(covariance + ridge, q[t].unsqueeze(-1))
        outputs.append((moments.mT @ solved).squeeze(-1))
    return torch.stack(outputs)


def linear_attention(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """fla's LinearAttention: elementwise_product features, no normalizer, RMS norm."""
    q, k, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qkv")
    q, k = (
        linear(w, f"feature_map_{letter}.layer1", part) * linear(w, f"feature_map_{letter}.layer2", part)
        for letter, part in (("q", q), ("k", k))
    )
    o = additive(q * q.shape[-1] ** -0.5, k, v)
    return linear(w, "o_proj", rms(o, w["o_norm.weight"]).flatten(1))


def retnet(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2307.08621, Eqs. 5–8, as fla's MultiScaleRetention: rotary with base 10,000, RMS norm, gate."""
    q, k, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qkv")
    half = q.shape[-1] // 2
    rates = 10000.0 ** -(torch.arange(half) / half)
    rotated = []
    for part in (q, k):
        angle = (torch.arange(x.shape[0]).unsqueeze(-1) * rates).unsqueeze(1)
        a, b = part[..., :half], part[..., half:]
        rotated.append(torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1))
    q, k = rotated
    gamma = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(num_heads)])
    decay = gamma.view(1, -1, 1).expand_as(k)
    o = rms(additive(q * q.shape[-1] ** -0.5, k, v, decay), w["o_norm.weight"]).flatten(1)
    return linear(w, "o_proj", o * silu(linear(w, "g_proj", x)))


def gla(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2312.06635, section 4.4, as fla's GatedLinearAttention."""
    q, k, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qkv")
    alpha = torch.sigmoid(heads(low_rank(w, "gk_proj", x), num_heads)) ** (1 / 16)
    o = rms(additive(q * q.shape[-1] ** -0.5, k, v, alpha), w["o_norm.weight"]).flatten(1)
    return linear(w, "o_proj", o * silu(linear(w, "g_proj", x)))


def mlstm(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2405.04517, Eqs. 19–27 with the stabilizer m, in the layer of xLSTM-7B (arXiv 2503.13427)."""
    q, k, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qkv")
    i, f = (15 * torch.tanh(linear(w, f"{letter}_proj", x) / 15) for letter in "if")
    memory = torch.zeros(*k.shape[1:], v.shape[-1])
    normalizer = torch.zeros(*k.shape[1:])
    m = torch.zeros(num_heads)
    outputs = []
    for t in range(x.shape[0]):
        new_m = torch.maximum(logsigmoid(f[t]) + m, i[t])
        forget = (logsigmoid(f[t]) + m - new_m).exp()
        write = (i[t] - new_m).exp()
        m = new_m
        memory = forget.view(-1, 1, 1) * memory + write.view(-1, 1, 1) * k[t].unsqueeze(-1) * v[t].unsqueeze(
            1
        )
        normalizer = forget.unsqueeze(-1) * normalizer + write.unsqueeze(-1) * k[t]
        query = q[t] * q.shape[-1] ** -0.5
        divisor = torch.maximum((normalizer * query).sum(-1).abs(), (-m).exp())
        outputs.append((memory * query.unsqueeze(-1)).sum(1) / divisor.unsqueeze(-1))
    o = layer_norm(torch.stack(outputs), v.shape[-1:], eps=EPS).flatten(1) * w["o_norm.weight"]
    return linear(w, "o_proj", o * torch.sigmoid(linear(w, "g_proj", x)))


def _delta_qkv(w: Weights, num_heads: int, x: Tensor) -> list[Tensor]:
    q, k, v = (
        heads(convolved(w, f"{letter}_conv1d", linear(w, f"{letter}_proj", x)), num_heads) for letter in "qkv"
    )
    return [unit(q) * q.shape[-1] ** -0.5, unit(k), v]


def deltanet(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2406.06484 as fla's DeltaNet, without output gate."""
    q, k, v = _delta_qkv(w, num_heads, x)
    o = delta(q, k, v, torch.sigmoid(linear(w, "b_proj", x)), torch.ones_like(k))
    return linear(w, "o_proj", rms(o, w["o_norm.weight"]).flatten(1))


def gated_deltanet(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2412.06464 as fla's GatedDeltaNet; the bias of a_proj is its dt_bias."""
    q, k, v = _delta_qkv(w, num_heads, x)
    alpha = (-w["A_log"].exp() * softplus(linear(w, "a_proj", x))).exp()
    o = delta(q, k, v, torch.sigmoid(linear(w, "b_proj", x)), alpha.unsqueeze(-1).expand_as(k))
    o = rms(o, w["o_norm.weight"]).flatten(1)
    return linear(w, "o_proj", o * silu(linear(w, "g_proj", x)))


def kda(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2510.26692 as fla's KimiDeltaAttention; the bias of f_proj is its dt_bias."""
    q, k, v = _delta_qkv(w, num_heads, x)
    steps = softplus(heads(low_rank(w, "f_proj", x), num_heads))
    alpha = (-w["A_log"].exp().view(1, -1, 1) * steps).exp()
    o = delta(q, k, v, torch.sigmoid(linear(w, "b_proj", x)), alpha)
    o = rms(o, w["o_norm.weight"]).flatten(1)
    return linear(w, "o_proj", o * torch.sigmoid(low_rank(w, "g_proj", x)))


def hgrn2(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2404.07904 as fla's HGRN2Attention in the first layer (bound 0); k_proj is minus its f_proj."""
    q = heads(silu(linear(w, "q_proj", x)), num_heads)
    alpha = heads(torch.sigmoid(-linear(w, "k_proj", x)), num_heads)
    v = heads(linear(w, "v_proj", x), num_heads)
    o = additive(q * q.shape[-1] ** -0.5, 1 - alpha, v, alpha)
    return linear(w, "o_proj", rms(o.flatten(1), w["o_norm.weight"]))


def mamba2(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2405.21060 as the authors' Mamba2 with a B and C per head; in_proj and conv1d in parts, dt_bias
    as the bias of a_proj."""
    C, B, values = (
        heads(convolved(w, f"{letter}_conv1d", linear(w, f"{letter}_proj", x)), num_heads) for letter in "qkv"
    )
    dt = softplus(linear(w, "a_proj", x))
    decay = (-dt * w["A_log"].exp()).exp()
    y = additive(C, dt.unsqueeze(-1) * B, values, decay.unsqueeze(-1).expand_as(B))
    y = (y + w["D"].view(1, -1, 1) * values).flatten(1)
    return linear(w, "o_proj", rms(y * silu(linear(w, "g_proj", x)), w["o_norm.weight"]))


def metala(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2411.10741, section 4: convolved input, decay σ(·)^{1/16}, self-augmentation, norm, gate; k_proj
    is minus the authors' k_gate."""
    x = convolved(w, "conv1d", x)
    q, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qv")
    alpha = heads(torch.sigmoid(-linear(w, "k_proj", x)) ** (1 / 16), num_heads)
    k = 1 - alpha
    q = q * q.shape[-1] ** -0.5
    o = additive(q, k, v, alpha)
    # The authors scale q inside the kernel only.
    match = (q * q.shape[-1] ** 0.5 * w["augment"] * k).sum(-1, keepdim=True)
    o = layer_norm(o + torch.sigmoid(match) * v, v.shape[-1:], eps=EPS)
    return linear(w, "o_proj", o.flatten(1) * silu(linear(w, "g_proj", x)))


def rebased(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2402.10644 as fla's ReBasedLinearAttention: normalized weights (φ(q) · φ(k))² / F."""
    q, k, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qkv")
    width = w["gamma"].shape[-1]
    q, k = (
        layer_norm(
            torch.einsum("thd,hdf->thf", part, w["feature_proj"]), (width,), w["gamma"][0], w["beta"][0], EPS
        )
        for part in (q, k)
    )
    weights = torch.einsum("thf,shf->hts", q, k).square() / width
    weights = weights.tril()
    o = torch.einsum("hts,shv->thv", weights, v) / (weights.sum(-1).T.unsqueeze(-1) + EPS)
    return linear(w, "o_proj", o.flatten(1))


def hedgehog(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2402.04347 with fla's HedgehogFeatureMap in normalized linear attention (angles of zero)."""
    q, k, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qkv")
    features = []
    for letter, part in (("q", q), ("k", k)):
        y = 2 * linear(w, f"feature_map_{letter}.layer", part)
        features.append(torch.cat([y, -y], -1).softmax(-1))
    weights = torch.einsum("thf,shf->hts", *features).tril()
    o = torch.einsum("hts,shv->thv", weights / weights.sum(-1, keepdim=True), v)
    return linear(w, "o_proj", o.flatten(1))


def gated_deltanet_2(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2605.22791 as fla's GatedDeltaNet2; the bias of f_proj is its dt_bias."""
    q, k, v = _delta_qkv(w, num_heads, x)
    steps = softplus(heads(low_rank(w, "f_proj", x), num_heads))
    alpha = (-w["A_log"].exp().view(1, -1, 1) * steps).exp()
    erase, write = (heads(torch.sigmoid(linear(w, f"{letter}_proj", x)), num_heads) for letter in "bw")
    o = generalized(q, k, write * v, alpha, k, erase * k, after_decay=True)
    o = rms(o, w["o_norm.weight"]).flatten(1)
    return linear(w, "o_proj", o * torch.sigmoid(low_rank(w, "g_proj", x)))


def comba(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2506.02475 as fla's Comba, but that q and k are normalized before they are weighted."""
    q, k, v = _delta_qkv(w, num_heads, x)
    alpha = (-w["A_log"].exp() * softplus(linear(w, "a_proj", x))).exp().unsqueeze(-1).expand_as(k)
    beta = torch.sigmoid(linear(w, "b_proj", x)).unsqueeze(-1)
    q = q - w["D"].view(1, -1, 1) * k * k.shape[-1] ** -0.5
    feedback = torch.sigmoid(w["feedback"]).view(1, -1, 1)
    o = generalized(q, beta * k, v, alpha, beta * k, feedback * k, after_decay=False)
    o = rms(o, w["o_norm.weight"]).flatten(1)
    return linear(w, "o_proj", o * torch.sigmoid(linear(w, "g_proj", x)))


def rwkv7(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2503.14456, section 4.1, as fla's RWKV7Attention in the first layer without token shift, and with
    a norm that has no bias and our epsilon."""
    r, k, v = (heads(linear(w, f"{letter}_proj", x), num_heads) for letter in "qkv")
    lora = torch.tanh(linear(w, "w_proj.0", x))
    decay = heads((-0.606531 * torch.sigmoid(linear(w, "w_proj.2", lora))).exp(), num_heads)
    rate = heads(torch.sigmoid(low_rank(w, "a_proj", x)), num_heads)
    removal = unit(k * w["k_k"])
    k = k * (1 + (rate - 1) * w["k_a"])
    o = generalized(r, k, v, decay, removal * rate, removal, after_decay=False)
    o = layer_norm(o, v.shape[-1:], eps=EPS) * heads(w["o_norm.weight"].unsqueeze(0), num_heads)
    o = (o + (r * k * w["r_k"]).sum(-1, keepdim=True) * v).flatten(1)
    return linear(w, "o_proj", o * linear(w, "g_proj.2", torch.sigmoid(linear(w, "g_proj.0", x))))


def mesanet(w: Weights, num_heads: int, x: Tensor) -> Tensor:
    """arXiv 2506.05233, as fla's MesaNet, each token's system solved exactly."""
    parts = (convolved(w, f"{letter}_conv1d", linear(w, f"{letter}_proj", x)) for letter in "qk")
    q, k = (unit(heads(part, num_heads)) for part in parts)
    v = heads(linear(w, "v_proj", x), num_heads)
    ridge = torch.diag_embed(softplus(w["lambda_params"]) + 0.25)
    beta = torch.sigmoid(linear(w, "b_proj", x))
    o = ridge_regression(q, k, v, logsigmoid(linear(w, "a_proj", x)).exp(), beta, ridge)
    return linear(w, "o_proj", rms(o, w["o_norm.weight"]).flatten(1))


REFERENCES: dict[str, Callable[[Weights, int, Tensor], Tensor]] = {
    function.__name__: function
    for function in (
        linear_attention, retnet, gla, mlstm, deltanet, gated_deltanet, kda, hgrn2, mamba2, metala,
        rebased, hedgehog, gated_deltanet_2, comba, rwkv7, mesanet,
    )
}  # fmt: skip
