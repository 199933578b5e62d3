"""The configuration of a run as dataclasses: every key, its type, its default, and what it means.

Torch-free. The comment-like string under a field is its documentation (`docs/configuration.md` is generated from it).
Sections with plugin options (`algorithm`, `reward.scorers.*`, `model.options`, ...) are validated against the options
dataclass of the plugin that the section names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omni_portable.config.schema_data import DataConfig, MediaConfig, TargetConfig, ValidationConfig

__all__ = [
    "ActorConfig",
    "ConsistencyConfig",
    "DataConfig",
    "DataPlaneConfig",
    "DeviceConfig",
    "HybridConfig",
    "LauncherConfig",
    "LoraConfig",
    "MediaConfig",
    "ModelConfig",
    "RewardConfig",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "RunConfig",
    "TargetConfig",
    "TeacherConfig",
    "TeacherPoolConfig",
    "TrainerConfig",
    "ValidationConfig",
]


@dataclass
class DeviceConfig:
    name: str = "auto"
    """Device by name ('cpu', ...), optionally with a generation after a colon; 'auto' takes the single one present."""
    dtype: str = "auto"
    """Arithmetic of the transformer by name; 'auto' is the device's documented default."""
    attention: dict[str, str] = field(default_factory=dict)
    """Component -> kernel family; a component left out gets the device's documented default."""
    verify_attention: bool = True
    """Compare the chosen kernels with fp32 math attention before training."""
    deterministic: bool = True
    """Ask the device for deterministic kernels and report what it cannot promise."""
    threads: int = 0
    """CPU threads for arithmetic; 0 keeps the library's default (all cores)."""


@dataclass
class LoraConfig:
    rank: int = 0
    """0 trains all weights of the transformer."""
    alpha: float = 0.0
    """Scale numerator; 0 means 2 x rank."""
    targets: list[str] = field(default_factory=list)
    """Module name suffixes; empty means the family's published targets."""
    dropout: float = 0.0
    """Must be 0 for exact on-policy ratios; anything else is refused by algorithms that use ratios."""
    path: str = ""
    """Folder of a saved LoRA (peft) to start from, such as a run's `export`; `rank` must be the saved one."""


@dataclass
class TeacherConfig:
    path: str = ""
    """Model folder of the same family; empty means the student's own base model."""
    lora: str = ""
    """Folder of a saved LoRA (peft) on top of it."""


@dataclass
class ModelConfig:
    family: str = "???"
    """Model family (an entry point of omni_portable.models)."""
    path: str = "???"
    """Folder in diffusers / transformers format, the hub's id of a model that was downloaded, 'builtin:NAME' for a
    packaged model, or 'tiny:FAMILY' for one with random weights."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the family."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    teachers: dict[str, TeacherConfig] = field(default_factory=dict)
    """Name -> teacher, for algorithms that distil."""
    teacher_field: str = ""
    """Field of a prompt that names its teacher; may be empty where there is one teacher."""


@dataclass
class RolloutConfig:
    engine: str = "native"
    """Rollout engine (an entry point of omni_portable.rollout_engines)."""
    n: int = 16
    """Samples per prompt (the group size)."""
    max_num_seqs: int = 32
    """Requests packed into one transformer forward."""
    num_steps: int = 8
    """Denoising steps."""
    height: int = 512
    """Pixels of a sample; a family may ask for multiples of a size."""
    width: int = 512
    """Pixels of a sample, as `rollout.height`."""
    num_frames: int = 1
    """Frames of a sample; 1 for images."""
    frame_rate: float = 0.0
    """Frames per second of a video; 0 for images."""
    guidance_scale: float = 1.0
    """Classifier-free guidance; 1 turns it off (one forward per step)."""
    negative_prompt: str = ""
    """Prompt that guidance moves away from, for every sample; needs a rollout.guidance_scale other than 1."""
    max_new_tokens: int = 256
    """Tokens of a response at most, end token included (models that write tokens)."""
    temperature: float = 1.0
    """What logits are divided by, for tokens; 0 always takes the most likely one."""
    top_p: float = 1.0
    """Likeliest tokens that are sampled from, by their total probability; 1 keeps all. Log-probs are untruncated."""
    top_k: int = 0
    """Likeliest tokens that are sampled from, by their number; 0 keeps all."""
    stop: list[str] = field(default_factory=list)
    """Texts that end a response, beside the model's own end tokens."""
    validation_temperature: float = 0.0
    """As `temperature`, for validation."""
    prompt_cache_size: int = 1024
    """Prompt embeddings kept by the engine (least recently used goes first); 0 turns the cache off."""
    replicas: int = 1
    """Copies of the rollout engine, each in a process of its own (launchers of several processes)."""
    attempts: int = 2
    """Times that requests are handed to a replica at most, where replicas die under them."""
    sleep_level: int = 0
    """Rollout engine while the actor trains: 0 stays resident, 1 sleeps with a copy, 2 discards its weights."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the engine."""


@dataclass
class ActorConfig:
    engine: str = "single"
    """Train engine (an entry point of omni_portable.train_engines)."""
    lr: float = 1e-4
    """Learning rate of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    beta1: float = 0.9
    """AdamW's decay of the mean of gradients."""
    beta2: float = 0.999
    """AdamW's decay of the mean of squared gradients."""
    eps: float = 1e-8
    """AdamW's term beside the root of the squared gradients."""
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up."""
    grad_clip: float = 1.0
    """Largest gradient norm; 0 turns clipping off."""
    mini_batch_size: int = 0
    """Samples per optimizer step; 0 means all samples of a rollout. Must divide data.train_batch_size x rollout.n."""
    micro_batch_size: int = 0
    """Samples per forward / backward; 0 means rollout.max_num_seqs, which makes on-policy ratios exactly 1."""
    epochs: int = 1
    """Passes over each rollout."""
    ema_decay: float = 0.0
    """Exponential moving average of the trained weights; 0 turns it off. Validation then uses the average."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them; saves memory, costs time."""
    world_size: int = 1
    """Processes that train together; those of one `sequence_parallel` or `tensor_parallel` group share their samples,
    and micro-batches are dealt to the groups."""
    sharding: str = "full"
    """Weights are always sharded over the processes. 'full' frees a block's gathered weights after its forward and
    gathers them again for its backward; 'keep' keeps them in between (faster, more memory)."""
    offload: str = "none"
    """'cpu' keeps shards of weights, gradients and optimizer state in the host's memory; 'none' on the device."""
    reduce_dtype: str = "float32"
    """In which gradients are summed over the processes."""
    gradient_sync: str = "last"
    """'last' sums gradients over the processes once per optimizer step (each holds a whole gradient until then);
    'each' after every backward (more communication, the gradient stays sharded)."""
    sequence_parallel: int = 1
    """Processes that split the tokens of a sample between them (Ulysses), where the model has a plan for it."""
    tensor_parallel: int = 1
    """Processes that split single layers between them, where the model family has a plan for it."""
    rank_timeout_s: float = 600.0
    """Seconds that processes wait for each other before the run stops. One that dies is noticed at once."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the engine."""


@dataclass
class RewardConfig:
    scorers: dict[str, Any] = field(default_factory=dict)
    """Name -> {kind, weight, options of the kind}. The total is the weighted sum."""
    on_error: str = "fail"
    """When a scorer fails for a sample after its retries: 'fail' stops the run, 'drop_group' leaves the prompt out."""
    retries: int = 0
    """Further attempts before a scorer counts as failed."""
    timeout_s: float = 120.0
    """Seconds one scorer may take for one batch."""
    overlap: bool = False
    """Score samples as soon as their forward pass is done, beside the rollout of the next ones."""
    workers: int = 1
    """Instances of all scorers, each of which scores one set of samples at a time; under launchers of several
    processes, each in a process of its own."""


@dataclass
class TeacherPoolConfig:
    """Where the teachers of `model.teachers` live, and what is done when one fails."""

    placement: str = "engine"
    """'engine': inside the train engine, where they score during the update. 'pool': workers of their own, which score
    samples as soon as they are drawn, beside the drawing of the next; under launchers of several processes, each in a
    process of its own."""
    workers: int = 1
    """Workers of each teacher ('pool')."""
    timeout_s: float = 600.0
    """Seconds a teacher may take for one set of samples ('pool')."""
    retries: int = 0
    """Further attempts before a teacher counts as failed ('pool')."""
    on_error: str = "fail"
    """When a teacher has failed ('pool'): 'fail' stops the run, 'drop_group' leaves the prompt out."""
    max_mib: int = 256
    """Largest output of a teacher for one sample, in MiB ('pool'). Whole distributions over a large vocabulary take
    more than most things."""


@dataclass
class HybridConfig:
    enabled: bool = False
    """Lend the actor's devices to rollout while the actor waits for a step's samples (asynchronous modes): a further
    rollout engine beside the actor, which sleeps while the actor trains."""
    lend_below: float = 1.0
    """Lend where, when a step is due, less than this share of its samples is drawn and scored."""
    reclaim_at: float = 1.0
    """Take the devices back as soon as this share is; at the latest when all samples are. What the lent engine has not
    finished is drawn by the others."""
    sleep_level: int = 1
    """Lent engine while the actor trains: 0 stays resident, 1 sleeps with a copy, 2 discards its weights."""
    actor_sleeps: list[str] = field(default_factory=list)
    """What of the actor sleeps, with a copy on the host, while its devices are lent: 'weights', 'optimizer'."""


@dataclass
class TrainerConfig:
    mode: str = "sync"
    """Execution mode. 'sync': rollout and training take turns, staleness 0. 'separate_async': rollout runs ahead while
    the actor trains; new weights get in between requests. 'fully_async': as that, but new weights interrupt requests,
    which then go on (tokens) or start again (diffusion)."""
    sync_interval: int = 1
    """Optimizer steps after which the actor's weights are handed to rollout ('separate_async', 'fully_async'); they go
    at the end of a round, at which the policy version grows by 1."""
    sync_attempts: int = 1
    """Times that weights are sent to rollout before a failed update stops the run; rollout rests meanwhile."""
    actor_sleeps: list[str] = field(default_factory=list)
    """What of the actor sleeps, with a copy on the host, while rollout draws ('sync'): 'weights', 'optimizer'."""
    hybrid: HybridConfig = field(default_factory=HybridConfig)
    total_steps: int = 20
    """Rollouts (each with one or more optimizer steps)."""
    seed: int = 0
    """All randomness of the run follows from it: noise, order of prompts, initial LoRA matrices."""
    run_dir: str = ""
    """Where everything is written; empty means runs/<family>/<recipe>."""
    resume: str = "never"
    """'never' refuses a directory that holds a run; 'auto' continues its newest checkpoint; or a checkpoint folder."""
    save_interval: int = 10
    """Steps between checkpoints; 0 saves only at the end."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept; 0 keeps all."""
    validate_interval: int = 0
    """Steps between validations; 0 validates only before and after."""
    validate_before: bool = True
    """Validate before the first step, to have something to compare with."""
    validation_samples: int = 1
    """Samples per validation prompt, always with the same seeds."""
    validation_images: int = 16
    """Samples drawn on the validation grid."""
    loggers: list[str] = field(default_factory=lambda: ["jsonl", "tensorboard"])
    """Where metrics go; the report needs 'jsonl'."""
    progress: str = "auto"
    """'rich' draws a live display, 'plain' prints a line per step, 'auto' draws on a terminal, 'off' is silent."""


@dataclass
class LauncherConfig:
    name: str = "local"
    """Launcher (an entry point of omni_portable.launchers): where the roles run."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the launcher."""
    restarts: int = 3
    """Times that lost rollout replicas (all together), and each lost reward or teacher worker, are started again before
    the run stops."""


@dataclass
class DataPlaneConfig:
    name: str = "local"
    """Data plane (an entry point of omni_portable.data_planes): where finished groups wait."""
    max_staleness: int = 0
    """Largest difference of policy versions a group may have when it is trained on."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the data plane."""


@dataclass
class ConsistencyConfig:
    measure: str = "first_mini_batch"
    """What the rollout's log-probs are compared on before any update: 'first_mini_batch' (free), 'full', or 'off'."""
    max_logprob_gap: float | None = None
    """Stop when the largest absolute gap before an update exceeds this; null only records it."""
    batch_shapes: list[int] = field(default_factory=lambda: [1, 2, 4, 7, 16, 32])
    """Batch sizes at which the first rollout's transitions are scored again, to report how far a log-prob depends on
    the batch it was computed in; empty skips it."""
    probe: bool = True
    """After each weight sync re-run a fixed request and require its output to change when, and only when, the
    weights changed by more than rounding may hide."""


@dataclass
class RolloutCorrectionConfig:
    mode: str = "auto"
    """'auto': 'decoupled' with importance 'step' where rollout runs ahead of training and the algorithm takes ratios,
    else 'off'. 'off': ratios are taken against the rollout's log-probs as they are; 'decoupled': the actor scores the
    rollout again, ratios are taken against that, and what the two engines differ by is corrected as below; 'bypass': as
    'off', and the differences are only measured, and rejected where they leave their bounds."""
    importance: str = "off"
    """Weights exp(actor - rollout): 'off', per 'step', or per 'trajectory' (sum over its stored steps)."""
    threshold: float = 2.0
    """Weights are truncated at this; they are 1 where both engines agree."""
    lower: float = 0.0
    """Above 0: weights outside [lower, threshold] become 0 instead."""
    normalize: bool = False
    """Divide the weights by their mean over the rollout."""
    reject: dict[str, str] = field(default_factory=dict)
    """Statistic of a sample -> bounds beyond which it is not trained on, e.g. {mean_k3: '0.01', mean_k1: '0.5_2'}. In
    quotes, since YAML and the command line read 0.5_2 as 0.52."""


@dataclass
class RunConfig:
    """One run. `algorithm` is {name: NAME, ...options of the algorithm}."""

    recipe: str = ""
    """Filled in by the loader: the recipe's path as given."""
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: dict[str, Any] = field(default_factory=dict)
    """Name of the algorithm and its options."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    teacher: TeacherPoolConfig = field(default_factory=TeacherPoolConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    dataplane: DataPlaneConfig = field(default_factory=DataPlaneConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    consistency: ConsistencyConfig = field(default_factory=ConsistencyConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
