"""Parts of `ci/check_vendor_contracts.py`: what our code asks of vendor packages, held against their real sources."""
