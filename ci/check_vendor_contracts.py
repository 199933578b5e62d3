"""Holds every use that our code makes of vendors' packages against the real, pinned ones.

    python ci/check_vendor_contracts.py                        our source against manifests and stored signatures
    python ci/check_vendor_contracts.py --update               write the manifests
    python ci/check_vendor_contracts.py --download             read the pinned packages too (network, some minutes)
    python ci/check_vendor_contracts.py --download --update    write manifests and signatures

Packages are downloaded by name, parsed and never imported. docs/vendor-contracts.md explains files and messages.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ci.vendor_contracts.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
