"""The native rollout engine for autoregressive models: decodes in this process with the family's own adapter."""
