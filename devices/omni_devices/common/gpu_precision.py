"""The switches of torch that trade equal bits or full precision for speed on GPUs, all set to the safe side."""

from __future__ import annotations


def full_precision() -> dict[str, str]:
    """Deterministic convolutions without a search for the fastest, no TF32, no reduced-precision sums.

    Returns:
        What was set, name -> value, for a report.
    """
    import torch

    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
    return {
        "torch.backends.cudnn.deterministic": "True",
        "torch.backends.cudnn.benchmark": "False",
        "torch.backends.cudnn.allow_tf32": "False",
        "torch.backends.cuda.matmul.allow_tf32": "False",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "False",
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "False",
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": "False",
    }
