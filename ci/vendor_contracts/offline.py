"""What can be checked without the packages: manifests against our source, both against the stored signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.vendor_contracts import contract, exceptions, outsiders, store, tables
from ci.vendor_contracts.check import Finding, findings
from ci.vendor_contracts.exceptions import Exceptions, Unchecked
from ci.vendor_contracts.packages import STACKS, pins, version_of

REFRESH = "run: python ci/check_vendor_contracts.py --download --update"


@dataclass
class Report:
    """What came out: problems, uses that no source tells about, and counts of names per device."""

    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    agreed: int = 0
    total: int = 0


def report(root: Path) -> Report:
    """Everything that is wrong with the source tree and the stored signatures."""
    result = Report()
    entries = contract.entries(root)
    spellings, needs = tables.spellings(root), tables.needs(root)
    wanted = contract.manifests(entries) | {tables.MANIFEST: tables.manifest(spellings)}
    stale = contract.stale(root, wanted)
    result.problems += [f"{line}; run: python ci/check_vendor_contracts.py --update" for line in stale]
    result.problems += outsiders.unlisted(root)
    allowed = exceptions.read(root)
    used: set[Unchecked] = set()
    lacking: dict[str, list[str]] = {}
    for stack in STACKS:
        stored, pinned = store.read(root, stack), pins(root, stack)
        result.problems += _outdated(stack, stored["sources"], pinned)
        result.problems += tables.unknown(spellings, stack, stored["registries"])
        result.problems += tables.disagreements(needs, stack, pinned)
        found = findings(entries, stack, stored["modules"])
        concerned = [entry for entry in entries if stack in entry.stacks]
        result.total += len(concerned)
        result.agreed += len(concerned) - len({finding.entry.name for finding in found})
        _sort(found, allowed, used, lacking, result)
    result.problems += [
        f"{entry.name} is asked for with hasattr, but no pinned package has it"
        for entry in entries
        if entry.probed and len(lacking.get(entry.name, ())) == len(entry.stacks)
    ]
    result.problems += [
        f"{exceptions.FILE}: the exception for '{one.name}' is unnecessary: it is not used, or can be checked"
        for one in allowed.unchecked
        if one not in used
    ]
    return result


def update(root: Path) -> list[str]:
    """Write the manifests and remove those of packages that are not used any more; the paths that changed."""
    wanted = contract.manifests(contract.entries(root)) | {tables.MANIFEST: tables.manifest(tables.spellings(root))}
    changed = []
    for path, text in wanted.items():
        file = root / path
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            changed.append(path)
    for file in (root / contract.CONTRACTS).glob("*.json"):
        if file.relative_to(root).as_posix() not in wanted:
            file.unlink()
            changed.append(f"{file.relative_to(root).as_posix()} (removed)")
    return changed


def _sort(
    found: Sequence[Finding], allowed: Exceptions, used: set[Unchecked], lacking: dict[str, list[str]], result: Report
) -> None:
    """Drift is a problem, except of a name that is asked for with `hasattr`; the unknown must be an exception."""
    for finding in found:
        name, verdict = finding.entry.name, finding.verdict
        text = f"{finding.where} ({finding.stack}): {name}: {verdict.reason}"
        covering = [one for one in allowed.unchecked if one.covers(name, finding.stack)]
        if verdict.outcome == "drift" and finding.entry.probed:
            lacking.setdefault(name, []).append(finding.stack)
        elif verdict.outcome == "drift":
            result.problems.append(text)
        elif covering:
            used.update(covering)
            result.unchecked.append(f"{name} ({finding.stack}): {covering[0].reason}")
        else:
            result.problems.append(
                f"{text}; where nothing tells, add an exception with the reason to {exceptions.FILE}"
            )


def _outdated(stack: str, sources: Sequence[dict[str, str]], pinned: dict[str, str]) -> list[str]:
    """Packages whose pinned version is another one than the signatures are of."""
    stored = {(source["distribution"], source["version"]) for source in sources}
    wanted = {(package.distribution, version_of(package, pinned)) for package in STACKS[stack]}
    return [
        f"{store.path(stack)} is of other versions than {distribution} {version}: {REFRESH}"
        for distribution, version in sorted(wanted - stored)
    ] + [
        f"{store.path(stack)} is of {distribution} {version}, which is not asked for: {REFRESH}"
        for distribution, version in sorted(stored - wanted)
    ]
