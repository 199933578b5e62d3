"""Settings that runs of packaged recipes share in tests of engines in processes of their own."""

from __future__ import annotations

BARE = (
    "data.validation=''",
    "device.threads=1",
    "consistency.batch_shapes=[]",
    "trainer.progress=plain",
    "trainer.loggers=[jsonl]",
)
"""Steps, and nothing besides."""
EIGHT = (*BARE, "data.train_batch_size=2", "rollout.n=4")
"""As those, of eight samples."""
VLLM = ("rollout.engine=vllm", "rollout.options.max_model_len=256", "rollout.options.kv_cache_mib=32")
"""An engine of little memory."""
