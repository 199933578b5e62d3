"""GRPO on tokens (arXiv 2402.03300): group-relative advantages and a clipped ratio per token. Loads without torch.

Every token of a response has the response's advantage A = (r - mean of its group) / (std of its group + epsilon).
"""

from omni_portable.algorithms.token_options import DualClipOptions
from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="grpo",
    summary="GRPO: group-relative advantages and a clipped policy gradient on the tokens of a response",
    target="omni_portable.algorithms.grpo.algorithm:GRPO",
    options=DualClipOptions,
    capabilities={"kind": "token", "needs_log_probs": True, "min_group_size": 2},
)
