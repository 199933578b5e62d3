"""Parts that more than one device is built from: proofs of attention and collectives, storages that sleep."""
