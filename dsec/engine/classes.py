"""Runtime classes of a cluster's workers: remembered in the store, learnt by one probe where nothing is remembered.

A record counts as long as the host's fingerprint is the same; reading it takes neither numpy nor torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from dsec.core import canon
from dsec.errors import AbsentError, ClusterError, CorruptObject
from dsec.runtime import host, numerics
from dsec.store import root
from dsec.store.root import Store

__all__ = ["KINDS", "known", "probe", "remember"]

KINDS = ("cpu", "gpu")
_PROBE = """
import json, sys
from dsec.runtime import numerics
with numerics.pinned():
    print(json.dumps(numerics.class_record(sys.argv[1]).to_json()))
"""
_SECONDS = 120.0


def known(store: Store, address: str | None) -> dict[str, str | None]:
    """Class id by kind of worker, None where no record holds.

    Parameters
    ----------
    address
        Of an existing scheduler, None for a cluster of this host.
    """
    found: dict[str, str | None] = dict.fromkeys(KINDS)
    try:
        record = root.get_json(store, _name(address))
    except (AbsentError, CorruptObject):
        return found
    if record["host"] == _host(address):
        found.update(record["classes"])
    return found


def probe(devices: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Class records of this host by kind of worker, from processes that start as workers do.

    Parameters
    ----------
    devices
        Device by kind of worker: ``cpu`` or ``cuda``.

    Raises
    ------
    ClusterError
        If a probe fails.
    """
    records = {device: _probed(device) for device in sorted(set(devices.values()))}
    return {kind: records[device] for kind, device in devices.items()}


def remember(store: Store, address: str | None, records: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """File class records by kind of worker; gives their ids."""
    ids: dict[str, str | None] = {kind: str(record["class_id"]) for kind, record in records.items()}
    named = {"host": _host(address), "classes": ids, "records": {kind: dict(r) for kind, r in records.items()}}
    root.replace_json(store, _name(address), named)
    return {**dict.fromkeys(KINDS), **ids}


def _host(address: str | None) -> str:
    return host.host_fingerprint(numerics.VARIABLES) if address is None else address


def _name(address: str | None) -> str:
    place = canon.digest("dsec/cluster/1", address or [host.host_fingerprint(numerics.VARIABLES)])
    return f"classes/{place[:2]}/{place}"


def _probed(device: str) -> dict[str, Any]:
    environment = {**os.environ, **numerics.VARIABLES}
    command = [sys.executable, "-c", _PROBE, device]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"the numeric probe of {device} did not end within {_SECONDS:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ClusterError(f"the numeric probe of {device} failed: {last}", hint="is torch installed for it?")
    record: dict[str, Any] = json.loads(done.stdout)
    return record
