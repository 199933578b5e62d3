"""GRPO on tokens (arXiv 2402.03300): group-relative advantages and a clipped ratio per token. Loads without torch.

    L   = mean over all tokens of (l + kl_coef KL(policy, reference) - entropy_coef entropy)
    l   = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A < 0
    rho = exp(lp - lp_old) of a token
    A   = (r - mean of the prompt's group) / (std of the group + advantage_epsilon), the same at every token

`aggregation` takes other means; `kl_estimator` says how KL is estimated. Dual clip: arXiv 1912.09729. As in verl.
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
