"""The decoder: a teacher's embeddings, norms and MLPs from transformers, with a mixer per layer.

A teacher is a student whose mixers are all `softmax`.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from evalsuite.foundation import ConfigError
from evalsuite.models.decoder.block import Block, Context, Observer
from evalsuite.models.decoder.cache import CACHE, StudentCache
from evalsuite.models.decoder.config import StudentConfig
from evalsuite.models.decoder.families import family_of
from evalsuite.models.decoder.head import LanguageModelHead
from evalsuite.models.decoder.packing import packed_bounds
from evalsuite.models.mixers import Mixer, make_mixer
from evalsuite.models.mixers.cached_attention import AttentionMasks
from evalsuite.models.mixers.layers import add_norm
from evalsuite.models.ops.short_conv import packed_position_ids
from evalsuite.models.sequence_parallel import SequenceParallel


class StudentPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialization through transformers."""

    config_class = StudentConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    # RetNet's fixed decays are close to one, where bfloat16 has too few digits.
    _keep_in_fp32_modules_strict = ["log_decay"]  # noqa: RUF012 -- transformers' name
    _skip_keys_device_placement = [CACHE]  # noqa: RUF012 -- transformers' name

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialize parameters that are not loaded; loaded ones are marked and left unchanged."""
        super().initialize_weights()
        # Not in `_init_weights`, because transformers skips modules without parameters of their own.
        for module in self.modules():
            if isinstance(module, Mixer) and not module.weights_initialized:
                module.reset_parameters()
                module.weights_initialized = True
            elif isinstance(module, StudentModel):
                module.reset_buffers()


class StudentModel(StudentPreTrainedModel):
    """Embeddings, blocks and final norm, with the names of transformers' modules.

    Args:
        built: transformers' decoder for `config.base`, which is taken over; by default a new one.
    """

    layers: Any
    """`Block`s."""

    def __init__(self, config: StudentConfig, built: Any = None) -> None:
        super().__init__(config)
        base = config.base
        self.family = family_of(base.model_type)
        if built is None:
            base._attn_implementation = attention_of(base, config._attn_implementation)
            built = AutoModel.from_config(base)
        self.embed_tokens = built.embed_tokens
        self.layers = nn.ModuleList(
            self._make_block(layer, index) for index, layer in enumerate(built.layers)
        )
        self.norm, self.rotary_emb = built.norm, built.rotary_emb
        for layer in self.layers:
            layer.self_attn.link_layers([each.self_attn for each in self.layers])
        self.gradient_checkpointing = False
        self.post_init()

    def _make_block(self, layer: Any, index: int) -> Block:
        name = self.config.mixers[index]
        mixer = make_mixer(
            name,
            layer.self_attn,
            self.config.mixer_options.get(name, {}),
            layer=index,
            norm_eps=self.config.base.rms_norm_eps,
            window=self.config.window(index),
            gain=self.family.gain,
            softmax_heads=self.config.softmax_heads.get(index, ()),
            softmax_options=self.config.mixer_options.get("softmax"),
        )
        return Block(layer, mixer, self.family, index)

    def reset_buffers(self) -> None:
        """Compute the buffers of teachers that transformers knows only by the teacher's own class."""
        if self.family.scales_embeddings:
            init.constant_(self.embed_tokens.embed_scale, self.embed_tokens.scalar_embed_scale)
        if self.family.rotary_by_layer_type:
            fresh = type(self.rotary_emb)(config=self.config.base)
            for name, value in fresh.named_buffers():
                init.copy_(getattr(self.rotary_emb, name), value)

    def _rotary(self, hidden: Tensor, position_ids: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The teacher's cos and sin of each layer."""
        if self.family.rotary_by_layer_type:
            types = self.config.base.layer_types
            by_type = {each: self.rotary_emb(hidden, position_ids, each) for each in set(types)}
            return [by_type[each] for each in types]
        return [self.rotary_emb(hidden, position_ids)] * len(self.layers)

    def new_cache(self) -> StudentCache:
        """An empty cache for this model's layers."""
        return StudentCache([layer.self_attn.cache_spec() for layer in self.layers])

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        row_length: int | None = None,
        cache: Any = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        observe: Observer | None = None,
        attention: AttentionMasks | None = None,
        sequence_parallel: SequenceParallel | None = None,
    ) -> BaseModelOutputWithPast:
        """Run the decoder.

        Args:
            input_ids: [B, T], or `inputs_embeds` [B, T, D].
            attention_mask: [B, past + T] of zeros and ones; or 4-D, passed to softmax layers unchanged.
            position_ids: [B, T]; by default they continue from the cache, or restart per packed sequence.
                Without a cache, each place where given positions do not go on by one begins a sequence, which
                is isolated from the others in every layer.
            past_key_values: a `StudentCache`, or any cache whose recurrent layers are `LayerCache`s; `cache`
                is its name from transformers 5.24 on.
            token_mask: bool [B, T], false at padding among the new tokens; by default the end of a 2-D
                `attention_mask`.
            cu_seqlens: cumulative lengths [N + 1] of sequences packed into one row, which are isolated from
                each other in every layer. Not with a cache.
            row_length: with `cu_seqlens`, a length whose multiples no packed sequence crosses. Softmax layers
                then attend within rows of that length, at a cost of T · row_length instead of T².
            seq_idx: number of each token's sequence [B, T], as an alternative to restarting `position_ids`.
            cu_seq_lens_q: transformers' name of `cu_seqlens`. Query and key lengths are equal, so that
                `cu_seq_lens_k`, `max_length_q` and `max_length_k` add nothing.
            observe: called with every block's activations.
            attention: masks of an engine's pass, whose `cache` is the engine's own, in place of all others.
            sequence_parallel: which part of each sequence the tokens are, whose other parts other processes
                have; all parts have the same length. With neither cache nor mask, and without packing.

        Raises:
            ConfigError: no tokens; attention weights, which students do not return; a cache of another model;
                packed sequences with a cache or with an attention mask, or `cu_seqlens` with several rows; or
                a part of a sequence with any of these.
        """
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ConfigError("output_attentions: students return no attention weights; see attention_matrix")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        cu_seqlens = cu_seq_lens_q if cu_seqlens is None else cu_seqlens
        past_key_values = past_key_values if cache is None else cache
        embeddings = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        shape = embeddings.shape
        if shape[1] == 0:
            raise ConfigError("input_ids has no tokens")
        if sequence_parallel is not None:
            given = (past_key_values, attention_mask, position_ids, token_mask, cu_seqlens, seq_idx)
            if use_cache or any(each is not None for each in given):
                raise ConfigError(
                    "sequence_parallel: a part of a sequence takes no cache, mask, positions or packing"
                )
        if past_key_values is not None:
            self._check_cache(past_key_values)
        elif cu_seqlens is None:
            cu_seqlens = packed_bounds(position_ids, seq_idx, attention_mask, (shape[0], shape[1]))
            if cu_seqlens is not None:
                attention_mask, row_length = None, shape[1]
                if position_ids is not None:
                    position_ids = position_ids.expand(shape[:2]).reshape(1, -1)
                embeddings = embeddings.reshape(1, -1, shape[2])
        rows, length = embeddings.shape[:2]
        if cu_seqlens is not None and (rows != 1 or past_key_values is not None or use_cache):
            raise ConfigError("packed sequences lie in one row and cannot be used with a cache")
        if use_cache and past_key_values is None:
            past_key_values = self.new_cache()
        if token_mask is None and attention_mask is not None and attention_mask.dim() == 2:
            token_mask = attention_mask[:, -length:].bool()
        # Default position_ids never encode packing, so skip transformers' packed-sequence detection.
        explicit_position_ids = position_ids
        if position_ids is None:
            if cu_seqlens is None:
                seen = 0 if past_key_values is None else past_key_values.get_seq_length()
                if sequence_parallel is not None:
                    seen = sequence_parallel.rank * length
                position_ids = torch.arange(seen, seen + length, device=embeddings.device).unsqueeze(0)
            else:
                position_ids = packed_position_ids(cu_seqlens, length).unsqueeze(0)
        context = Context(
            config=self.config.base,
            embeddings=embeddings,
            rotary=self._rotary(embeddings, position_ids),
            position_ids=position_ids,
            explicit_position_ids=explicit_position_ids,
            attention_mask=attention_mask,
            token_mask=token_mask,
            cu_seqlens=cu_seqlens,
            row_length=row_length,
            cache=past_key_values,
            use_cache=use_cache,
            attention=attention,
            sequence_parallel=sequence_parallel,
        )
        context = context.with_masks(self.layers)
        hidden, states = embeddings, []
        for layer in self.layers:
            if output_hidden_states:
                states.append(hidden)
            hidden = layer(hidden, context, observe=observe)
        hidden, _ = add_norm(self.norm, hidden, None, self.family.gain)
        if output_hidden_states:
            states.append(hidden)
        if isinstance(past_key_values, StudentCache):
            past_key_values.advance(length)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden.view(shape),
            hidden_states=tuple(state.view(shape) for state in states) if output_hidden_states else None,
            **{CACHE: past_key_values},
        )

    def _check_cache(self, caches: Any) -> None:
        """Refuse a cache without places for the states of this model's layers."""
        layers = getattr(caches, "layers", ())
        for index, layer in enumerate(self.layers):
            if layer.self_attn.cache_spec().states and not (
                index < len(layers) and hasattr(layers[index], "lend")
            ):
                raise ConfigError(
                    f"{type(caches).__name__} has no place for the state of layer {index} "
                    f"({layer.self_attn.name}); pass the decoder's own cache, model.model.new_cache()"
                )


class StudentForCausalLM(StudentPreTrainedModel, GenerationMixin):
    """The decoder with its language-model head.

    Args:
        built: transformers' causal language model for `config.base`, which is taken over; by default a new
            one.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 -- transformers' name

    def __init__(self, config: StudentConfig, built: Any = None) -> None:
        super().__init__(config)
        self.model = StudentModel(config, None if built is None else built.model)
        if built is None:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        else:
            self.lm_head = built.lm_head
        self.post_init()

    @classmethod
    def of_teacher(cls, teacher: PreTrainedModel) -> "StudentForCausalLM":
        """A transformers model of a supported family as this decoder; its modules are taken over."""
        with init.no_init_weights():
            made = cls(StudentConfig.of_teacher(teacher.config), teacher)
        made.generation_config = teacher.generation_config
        return made.train(teacher.training)

    @classmethod
    def with_new_mixers(cls, config: StudentConfig) -> "StudentForCausalLM":
        """A model with initial weights in its mixers alone; everything else waits for a teacher's weights.

        Drawing numbers for an embedding of 262,144 tokens takes seconds.
        """
        with init.no_init_weights():
            made = cls(config)
        new = {module for layer in made.model.layers for module in layer.self_attn.modules()}
        module: Any
        for module in made.modules():
            if module not in new:
                # transformers' mark of what has been loaded.
                module._is_hf_initialized = True
        made.init_weights()
        return made

    def with_blocks(self, blocks: Mapping[int, Block]) -> "StudentForCausalLM":
        """This model with other blocks at some layers; everything else is shared."""
        other, decoder, config = copy(self), copy(self.model), copy(self.config)
        layers = list(self.model.layers)
        mixers, heads = list(config.mixers), dict(config.softmax_heads)
        for index, block in blocks.items():
            layers[index], mixers[index] = block, block.self_attn.name
            heads[index] = list(block.self_attn.softmax_heads)
        config.mixers = mixers
        config.softmax_heads = {index: own for index, own in heads.items() if own}
        decoder._modules = {**decoder._modules, "layers": nn.ModuleList(layers)}
        other._modules = {**other._modules, "model": decoder}
        other.config = decoder.config = config
        return other

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Any = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        readout: Callable[[Tensor, LanguageModelHead], Any] | None = None,
        **decoder: Any,
    ) -> Any:
        """Logits [B, T, vocabulary] (the last `logits_to_keep` tokens, 0 for all); see `StudentModel`.

        With `labels` [B, T], or `shift_labels` [B, T] that already are the next tokens, also their
        cross-entropy: the mean over tokens, or their sum divided by `num_items_in_batch`, by which trainers
        weigh tokens equally over micro-batches and devices.

        With a `readout`, its value for the last hidden states [B, T, D] and the head, in place of all these:
        a loss that does not need all logits at a time.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **decoder,
        )
        hidden, head = outputs.last_hidden_state, LanguageModelHead.of(self)
        if readout is not None:
            return readout(hidden, head)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = head.logits(hidden[:, kept])
        loss = None
        if labels is not None or shift_labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.config.vocab_size,
                num_items_in_batch=num_items_in_batch,
                shift_labels=shift_labels,
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            **{CACHE: outputs.get(CACHE)},
        )

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        """Switch the attention implementation of the softmax layers."""
        super().set_attn_implementation(*args, **kwargs)
        check_attention(self.config._attn_implementation, self.model)
        base = self.config.base
        base._attn_implementation = attention_of(base, self.config._attn_implementation)

    def _prepare_cache_for_generation(  # type: ignore[override]  # annotated bool upstream, returns None
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        cache, mask = model_kwargs.get(CACHE), model_kwargs.get("attention_mask")
        if cache is not None:
            # transformers tells by the length of the mask which tokens are new; it drops a mask of ones.
            length = getattr(generation_config, "_mask_length", None) if mask is None else mask.shape[1]
            if length is not None and length <= cache.get_seq_length():
                raise ConfigError(
                    f"the cache holds {cache.get_seq_length()} tokens, but the attention_mask ends at "
                    f"{length}: pass the whole sequence, or new tokens with an attention_mask over all of it"
                )
        elif generation_config.use_cache is not False:
            if generation_config.cache_implementation is not None:
                raise ConfigError(
                    f"cache_implementation = '{generation_config.cache_implementation}': a student generates "
                    "with its own cache; remove it"
                )
            model_kwargs[CACHE] = self.model.new_cache()


def attention_of(base: PreTrainedConfig, implementation: str | None) -> str | None:
    """The attention implementation of a teacher's layers: `eager` if scores are capped, which sdpa lacks."""
    capped = getattr(base, "attn_logit_softcapping", None) is not None
    return "eager" if capped and implementation == "sdpa" else implementation


def check_attention(implementation: str | None, model: StudentModel) -> None:
    """Reject attention implementations that ignore the masks of this model's mixers."""
    if implementation is None or not implementation.startswith("flash"):
        return
    if mixer := next((each.self_attn for each in model.layers if each.self_attn.needs_mask), None):
        raise ConfigError(f"attn_implementation = '{implementation}': {mixer.name} layers need sdpa or eager")
