"""What `fltrust audit` would have shown in a run: kept as a small file, since the run directory is removed once its result is written."""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fltrust.audit import Audit, Finding
from fltrust.errors import InputError
from fltrust.store.files import read_json, replace
from fltrust.store.records import MOST_ROUNDS

AUDITS = "audits"  # in the folder of a red team: KEY.json for each run
ACCUSED = ("hostile", "suspicious")


def keep(directory: Path, out: Path) -> None:
    """Audits a run directory that is still there; a run on another machine has none here."""
    if not directory.is_dir():
        return
    try:
        content = seen_in(Audit(directory))
    except InputError as problem:  # a run without a recorded client
        content = {"problem": str(problem)}
    path = out / AUDITS / f"{directory.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, json.dumps(content, indent=1).encode())


def kept(key: str, out: Path) -> dict[str, Any] | None:
    """What the audit of a run showed; None if nobody looked, or if the file is damaged."""
    path = out / AUDITS / f"{key}.json"
    try:
        content = read_json(path) if path.is_file() else {}
    except InputError:
        return None
    return content if _whole(content) else None


def _whole(content: Mapping[str, Any]) -> bool:
    """Whether it is what `seen_in` returns: a page is made of it."""
    counts = [content.get(name) for name in ("rounds", "malicious", "found", "hostile", "honest", "accused")]
    since = content.get("since", "")
    sides = [content.get(name) for name in ("trust", "share")]
    means = [side.get(who, "") if isinstance(side, dict) else "" for side in sides for who in ("malicious", "honest")]
    return (
        all(type(count) is int and 0 <= count <= MOST_ROUNDS for count in counts)
        and (since is None or (type(since) is int and 0 <= since <= MOST_ROUNDS))
        and isinstance(content.get("evidence"), str)
        and all(mean is None or (isinstance(mean, int | float) and abs(mean) <= sys.float_info.max) for mean in means)
    )


def seen_in(audit: Audit) -> dict[str, Any]:
    """Who was accused, rightly and wrongly, since when, and how the two sides differ in trust and in their share of the model."""
    findings = audit.findings()
    bad, honest = ([one for one in findings if bool(one.malicious) is side] for side in (True, False))
    found = [one for one in bad if one.verdict in ACCUSED]
    since = [one.since for one in found if one.since is not None]
    return {
        "rounds": len(audit.rounds),
        "malicious": len(bad),
        "found": len(found),
        "hostile": sum(one.verdict == "hostile" for one in found),
        "honest": len(honest),
        "accused": sum(one.verdict in ACCUSED for one in honest),
        "since": min(since, default=None),
        "evidence": found[0].evidence[0] if found and found[0].evidence else "",
        "trust": _sides(bad, honest, "mean_trust"),
        "share": _sides(bad, honest, "mean_share"),
    }


def _sides(bad: Sequence[Finding], honest: Sequence[Finding], name: str) -> dict[str, float | None]:
    return {"malicious": _mean(getattr(one, name) for one in bad), "honest": _mean(getattr(one, name) for one in honest)}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 5) if known else None
