"""The token side of the seams: requests, trajectories, adapters and algorithms of autoregressive models.

A response is a row of tokens; for a model that speaks, tokens may as well be audio codes (its adapter then reads them
back into an audio artifact). The names here and those of `contracts.model.DiffusionAdapter` do not meet, so that a
unified model implements both sides in one adapter.

Log-probs of tokens always mean: of the tokens that were sampled, under softmax(logits / temperature) over the whole
vocabulary (top-p, top-k and the grammar of a prompt do not change them), from one forward over the complete sequence in
the batch that a pack forms. A temperature of 0 samples greedily and scores at temperature 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from omni_portable.contracts.algorithm import Algorithm, LossRows, Policy, Requires, Selection
from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ArtifactError, ConfigError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import RolloutRequest, Trajectory
from omni_portable.contracts.teacher import TeacherOutput

if TYPE_CHECKING:
    import torch

TokenInputs: TypeAlias = "dict[str, torch.Tensor]"
"""One prompt as its language model reads it, without batch dimension:

- 'ids': (P,) int64, placeholders of media expanded.
- 'positions': (A, P), rotary positions on A axes (1 for text models, 3 for multimodal ones).
- 'media_embeds': (M, width) and 'media_at': (M,) int64, embeddings of media and the tokens that they replace.
- 'deepstack': (K, V, width) and 'deepstack_at': (V,) int64, what is added to the hidden states of the first K layers.
"""

FinishReason = Literal["stop", "length", "given"]
"""'stop': an end token or a stop text; 'length': max_new_tokens; 'given': a response of a dataset."""

TokenRowKind = Literal["tokens", "given"]
"""'tokens': sampled responses with the log-probs that ratios are taken against; 'given': any responses, no ratios."""

RESPONSE = "response"
"""Name of the text artifact that every token trajectory has."""


@dataclass(frozen=True, eq=False)
class TokenPrefix:
    """The beginning of a response whose request was interrupted; whoever goes on with it draws what comes after.

    Args:
        response_ids: (L,) int64, L >= 1.
        log_probs: (L,) fp32, as seen while decoding under the weights that drew each token.
        policy_versions: (L,) int64, of those weights; they never decrease.
    """

    response_ids: torch.Tensor
    log_probs: torch.Tensor
    policy_versions: torch.Tensor

    @property
    def length(self) -> int:
        """L."""
        return int(self.response_ids.shape[0])

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together (`ConfigError`)."""
        shapes = {tuple(part.shape) for part in (self.response_ids, self.log_probs, self.policy_versions)}
        if len(shapes) > 1 or self.length < 1:
            raise ConfigError(f"the beginning of a response has parts of the shapes {sorted(shapes)}")
        if bool((self.policy_versions.diff() < 0).any()):
            raise ConfigError(f"the beginning of a response has policy versions {self.policy_versions.tolist()}")


@dataclass(frozen=True)
class TokenRequest:
    """One response to draw.

    Args:
        request_id / group_id / prompt_id / sample_index / seed: as in :class:`RolloutRequest`.
        prompt: text of the user's turn; the adapter puts it into the model's chat format.
        media: named input media, in the order in which the prompt shows them.
        metadata: fields of the prompt row that rewards may ask for.
        max_new_tokens: tokens of the response at most, end token included.
        temperature: 0 is greedy.
        top_p / top_k: truncation while sampling; 1 and 0 turn it off.
        stop: texts that end a response; the text artifact ends before them.
        system_prompt: first message of the conversation; empty takes the one of the model's options.
        target: named media that a dataset gives in place of a sample (a text under :data:`RESPONSE`); empty where the
            response is to be drawn.
        prefix: what was drawn of the response before; it counts towards max_new_tokens, and position L of the response
            is drawn with the same random number whether or not it comes after a prefix.
    """

    request_id: str
    group_id: str
    prompt_id: str
    sample_index: int
    seed: int
    prompt: str
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    media: Mapping[str, MediaArtifact] = field(default_factory=dict)
    system_prompt: str = ""
    target: Mapping[str, MediaArtifact] = field(default_factory=dict)
    prefix: TokenPrefix | None = None

    def __post_init__(self) -> None:
        """Refuse settings that no engine can carry out (`ConfigError`)."""
        for name, holds in (
            ("max_new_tokens", self.max_new_tokens >= 1),
            ("temperature", 0.0 <= self.temperature < float("inf")),
            ("top_p", 0.0 < self.top_p <= 1.0),
            ("top_k", self.top_k >= 0),
        ):
            if not holds:
                raise ConfigError(f"request '{self.request_id}' has {name}={getattr(self, name)}")
        if self.prefix is not None and self.prefix.length > self.max_new_tokens:
            raise ConfigError(
                f"request '{self.request_id}' has max_new_tokens={self.max_new_tokens} and goes on after "
                f"{self.prefix.length} tokens"
            )

    def after(self, prefix: TokenPrefix | None) -> TokenRequest:
        """The same request, going on after `prefix`; None leaves it as it is."""
        return self if prefix is None else replace(self, prefix=prefix)

    @property
    def scored_temperature(self) -> float:
        """What logits are divided by where log-probs are taken."""
        return self.temperature or 1.0


@dataclass
class TokenTrajectory:
    """What one request produced; tensors live on the host.

    Args:
        request: as it was asked for first, without a prefix.
        policy_version: version of the weights that made it; the oldest, where several did.
        inputs: the encoded prompt (:data:`TokenInputs`), media features included, so that the actor encodes nothing.
        response_ids: (L,) int64, end token included; L >= 1.
        log_probs: (L,) fp32, from the full forward; NaN where an engine cannot give them. Of tokens that were drawn
            before an interruption, those seen while decoding: their weights are gone.
        sampled_log_probs: (L,) fp32, as seen while decoding; NaN where an engine cannot give them.
        finish_reason: why it ended.
        artifacts: named media; always a text called 'response'.
        batch_size / batch_row: the pack that it was scored in, and its row there.
        policy_versions: (L,) int64, of the weights that drew each token, where that was not one version.
        teacher: as in :class:`Trajectory`.
    """

    request: TokenRequest
    policy_version: int
    inputs: TokenInputs
    response_ids: torch.Tensor
    log_probs: torch.Tensor
    sampled_log_probs: torch.Tensor
    finish_reason: FinishReason
    artifacts: dict[str, MediaArtifact]
    batch_size: int = 1
    batch_row: int = 0
    engine: str = ""
    policy_versions: torch.Tensor | None = None
    teacher: TeacherOutput | None = None

    @property
    def prompt_ids(self) -> torch.Tensor:
        """(P,) int64."""
        return self.inputs["ids"]

    @property
    def length(self) -> int:
        """L, tokens of the response."""
        return int(self.response_ids.shape[0])

    def __repr__(self) -> str:
        """Without tensors (see :class:`Trajectory`)."""
        return (
            f"TokenTrajectory({self.request.request_id!r}, version={self.policy_version}, tokens={self.length}, "
            f"finish={self.finish_reason!r})"
        )

    def __post_init__(self) -> None:
        for name, artifact in self.artifacts.items():
            if not isinstance(artifact, MediaArtifact):
                raise ArtifactError(f"request '{self.request.request_id}' returned an unlabelled value as '{name}'")


AnyRequest: TypeAlias = RolloutRequest | TokenRequest
AnyTrajectory: TypeAlias = Trajectory | TokenTrajectory


@dataclass(frozen=True)
class TokenRow:
    """One sequence to score: an encoded prompt and its response (L,) int64."""

    inputs: TokenInputs
    response_ids: torch.Tensor


@dataclass(frozen=True)
class TokenScores:
    """One forward over B sequences; L is the longest response, and what stands on padding is finite but means nothing.

    Args:
        log_prob: (B, L) fp32.
        mask: (B, L) bool, True on response tokens.
        entropy: (B, L) fp32 of softmax(logits / temperature), or None.
        logits: (B, L, V) fp32, divided by the temperature, or None.
    """

    log_prob: torch.Tensor
    mask: torch.Tensor
    entropy: torch.Tensor | None = None
    logits: torch.Tensor | None = None


class Decoding(Protocol):
    """B prompts on their way, with whatever the model remembers of them (a KV cache)."""

    def logits(self) -> torch.Tensor:
        """(B, V) fp32 of the next token, not divided by a temperature."""
        ...

    def advance(self, ids: torch.Tensor) -> None:
        """Append one token (B,) int64 to every row."""
        ...


@runtime_checkable
class AutoregressiveAdapter(Protocol):
    """One loaded autoregressive or omni model of a family. Constructed as ``Adapter(load: ModelLoad)``.

    Components (`ModelLoad.components`): 'transformer' is the trainable stage, 'text_encoder' are the frozen towers that
    turn media into embeddings; an actor that is given encoded prompts needs the transformer alone. The tokenizer is
    always there.
    """

    family: str
    trainable_stage: str
    """Name of what is trained ('language_model', 'thinker', 'talker')."""
    transformer: torch.nn.Module
    """The trainable stage as one module, all of whose parameters may be trained."""
    end_ids: frozenset[int]
    """Tokens that end a response."""

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        """What each component in the folder needs, read from its config files only (before any weights load)."""
        ...

    def build_inputs(self, prompt: str, media: Mapping[str, MediaArtifact], system_prompt: str = "") -> TokenInputs:
        """A prompt in the model's chat format with its media encoded; no gradient.

        Args:
            system_prompt: first message of the conversation; empty takes the one of the model's options.

        Raises:
            ArtifactError: media of a modality or layout that the family does not take.
            DataError: a prompt that spells one of the model's media tokens.
        """
        ...

    def begin(self, prompts: Sequence[TokenInputs]) -> Decoding:
        """Read the prompts as one batch."""
        ...

    def score(
        self, rows: Sequence[TokenRow], temperature: float, *, entropy: bool = False, logits: bool = False
    ) -> TokenScores:
        """One full forward; gradients flow where they are enabled. The same rows in the same order give equal bits."""
        ...

    def response_ids(self, text: str) -> torch.Tensor:
        """(L,) int64 of a given response, end token included."""
        ...

    def read_response(self, ids: Sequence[int], stop: Sequence[str] = ()) -> dict[str, MediaArtifact]:
        """Named media of a response, text under :data:`RESPONSE`, cut before the first stop text."""
        ...

    def lora_targets(self) -> tuple[str, ...]:
        """Default LoRA target module names of the transformer, as published for the family."""
        ...

    def rollout_layout(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Canonical name and tensor -> names and tensors as the rollout engine (vLLM) loads them."""
        ...


@dataclass
class TokenReplay:
    """What the actor recomputed for B responses of up to L tokens; padding is 0 in `mask`.

    Args:
        log_prob: (B, L) fp32 with gradient.
        mask: (B, L) fp32, 1 on response tokens.
        entropy: (B, L) fp32, where `TokenAlgorithm.needs_entropy` (with gradient).
        reference_log_prob / old_log_prob / teacher_log_prob: (B, L) fp32 under that policy, where required.
        logits / teacher_logits: (B, L, V) fp32, where `TokenAlgorithm.needs_logits`; the first with gradient.
    """

    log_prob: torch.Tensor
    mask: torch.Tensor
    entropy: torch.Tensor | None = None
    reference_log_prob: torch.Tensor | None = None
    old_log_prob: torch.Tensor | None = None
    teacher_log_prob: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    teacher_logits: torch.Tensor | None = None


@dataclass
class TokenRows:
    """The stored side of B responses, aligned with :class:`TokenReplay`.

    Args:
        old_log_prob: (B, L) fp32, what ratios are taken against; 0 on padding, NaN for given responses.
        advantage: (B,) fp32.
        weight: (B, L) or (B,) fp32 as `TokenAlgorithm.row_weights` gives it; 0 on padding.
        importance_weight: (B, L) fp32 or None, rollout-correction weights.
        sample_ids: B request ids, for error messages.
        unit: (B,) int64, which rows belong to one unit of the selection (pairs), or None.
    """

    old_log_prob: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    importance_weight: torch.Tensor | None = None
    sample_ids: Sequence[str] = field(default_factory=tuple)
    unit: torch.Tensor | None = None


@runtime_checkable
class TokenAlgorithm(Protocol):
    """Constructed as ``Algorithm(options)``; `omni_portable.algorithms.token_base` has the common answers.

    The loss of a mini-batch is sum(loss * row weight) / total weight over all its rows, whatever micro-batches they are
    computed in: `row_weights` and `total_weight` together are the algorithm's loss aggregation.
    """

    name: str
    requires: Requires
    row_kind: TokenRowKind
    rollout_policy: Policy
    needs_entropy: bool
    needs_logits: bool
    dynamic_sampling: bool
    """Groups without a signal are left out, and a step of which nothing is left is skipped."""
    refill_rounds: int
    """How often further prompts may be drawn in one step for groups without a signal; 0 never."""

    def shape_rewards(self, rewards: torch.Tensor, lengths: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
        """(N,) fp32 rewards -> (N,), given response lengths and max_new_tokens (N,) int64."""
        ...

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        """(N,) fp32 shaped rewards and group ids -> (N,) fp32."""
        ...

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """Which of the N samples to train on, and in which order; `rewards` as they were scored.

        May be none where `dynamic_sampling`.
        """
        ...

    def row_weights(self, mask: torch.Tensor, weights: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
        """(B, L) fp32 mask, (B,) sample weights, (B,) max_new_tokens -> weight of each row, (B, L) or (B,)."""
        ...

    def total_weight(self, lengths: torch.Tensor, weights: torch.Tensor) -> float:
        """Denominator of the mini-batch's loss from the lengths (N,) and weights (N,) of all its samples."""
        ...

    def old_policy_decay(self, round_number: int) -> float | None:
        """As in :class:`Algorithm`."""
        ...

    def loss(self, replay: TokenReplay, rows: TokenRows) -> LossRows:
        """Loss of each row, of the shape of `rows.weight`."""
        ...


AnyAlgorithm: TypeAlias = Algorithm | TokenAlgorithm
