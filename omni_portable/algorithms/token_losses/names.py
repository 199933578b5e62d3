"""Names that recipes use for parts of token losses. Loads without torch."""

from __future__ import annotations

from typing import Literal

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
AGGREGATIONS: tuple[Aggregation, ...] = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)

KLEstimator = Literal["kl", "abs", "mse", "low_var_kl"]
KLName = Literal["k1", "k2", "k3", "abs"]
"""As the estimators are called by their author; k1, k2 and k3 are 'kl', 'mse' and 'low_var_kl' in verl."""

ESTIMATORS: dict[str, KLEstimator] = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}
