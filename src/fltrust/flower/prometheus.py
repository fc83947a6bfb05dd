"""What Prometheus can ask a running federation, at http://ADDRESS:PORT/metrics. All of it follows from the records."""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from fltrust.errors import InputError
from fltrust.flower.alarms import Naming
from fltrust.flower.verdicts import ALARMS, KEPT, NOT_ASKED, VERDICTS
from fltrust.store.records import shares_of

MOST_NODES = 100  # that have a series of their own; the rest count as "others", so nodes cannot fill the memory of a Prometheus
SECONDS = (1, 3, 10, 30, 60, 180, 600, 1800, 3600)


class Metrics:
    """`with Metrics(9464) as metrics: metrics.add(record, name)`."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as problem:
            raise InputError("metrics_port needs prometheus_client: pip install 'fltrust[operate]'") from problem
        self._port, self._address = port, address
        self._registry = CollectorRegistry()
        self._rounds = Counter("fltrust_rounds", "rounds that are finished", registry=self._registry)
        self._kept = Counter("fltrust_rounds_kept", "rounds that kept the model, by reason", ["reason"], registry=self._registry)
        self._seconds = Histogram("fltrust_round_seconds", "how long rounds took", buckets=SECONDS, registry=self._registry)
        self._replies = Counter("fltrust_replies", "what became of replies, by verdict", ["verdict"], registry=self._registry)
        self._alarms = Counter("fltrust_alarms", "alarms, by kind", ["kind"], registry=self._registry)
        self._rejected = Counter(
            "fltrust_node_rejected", f"rejected replies by node, for {MOST_NODES} nodes", ["node"], registry=self._registry
        )
        self._nodes = Gauge("fltrust_nodes", "nodes of the last round", ["state"], registry=self._registry)
        self._error = Gauge("fltrust_test_error", "test error after the last round", registry=self._registry)
        self._largest = Gauge("fltrust_largest_share", "the largest share that a node had in the last round", registry=self._registry)
        self._round = Gauge("fltrust_round", "the last round that is finished", registry=self._registry)
        self._error.set(math.nan)  # nobody measured it yet
        for counter, words in ((self._kept, KEPT), (self._alarms, ALARMS), (self._replies, set(VERDICTS) - set(NOT_ASKED))):
            for word in words:
                counter.labels(word)  # from the start, so that the first one is seen as a rise
        self._own: set[int] = set()  # nodes with a series

    def __enter__(self) -> Self:
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(self._port, self._address, self._registry)
        except (OSError, OverflowError) as problem:
            raise InputError(f"metrics cannot be served at {self._address}:{self._port}: {problem}") from problem
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, record: Mapping[str, Any], name: Naming) -> None:
        verdicts, shares, error = record["verdict"], shares_of(record), record.get("test_error")
        self._rounds.inc()
        self._round.set(record["round"])
        if (kept := record.get("kept")) is not None:
            self._kept.labels(kept).inc()
        if (seconds := record.get("seconds")) is not None:
            self._seconds.observe(seconds)
        for node, verdict in zip(record["clients"], verdicts, strict=True):
            if verdict not in NOT_ASKED:
                self._replies.labels(verdict).inc()
            if verdict == "rejected":
                self._rejected.labels(self._label(node, name)).inc()
        self._replies.labels("late").inc(len(record.get("late") or []))
        for alarm in record.get("alarms") or []:
            self._alarms.labels(alarm["kind"]).inc()
        for state in NOT_ASKED:
            self._nodes.labels(state).set(verdicts.count(state))
        self._nodes.labels("asked").set(sum(verdict not in NOT_ASKED for verdict in verdicts))
        self._largest.set(max((share or 0.0 for share in shares or []), default=0.0))
        if error is not None:
            self._error.set(error)

    def _label(self, node: int, name: Naming) -> str:
        if node not in self._own and len(self._own) >= MOST_NODES:
            return "others"
        self._own.add(node)
        return name(node)
