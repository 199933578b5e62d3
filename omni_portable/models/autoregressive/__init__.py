"""What autoregressive and omni families share: decoding, scoring, sampling, collation. Imports nothing by itself."""
