"""The strategy: a Flower server that one bad client cannot hurt.

Every rule of `fltrust.rules` is used as it is; this file is the loop around it, in the order of the paper's Algorithm 2.
"""

import dataclasses
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fltrust import codec
from fltrust.errors import InputError
from fltrust.flower.audit import FederationDirectory
from fltrust.flower.fetch import in_process, look_of
from fltrust.flower.internals import public_keys, run_id
from fltrust.flower.layout import Arrays, Buffers, Layout, is_statistic
from fltrust.flower.logs import about
from fltrust.flower.mailbox import GRACE, Mailbox
from fltrust.flower.membership import Exclusion, Quarantine, Source, fingerprint
from fltrust.flower.memory import Remembered
from fltrust.flower.operations import Operations, Settings
from fltrust.flower.replies import Limits, is_gone, one_of
from fltrust.flower.root import Root, loss_of, settings_of
from fltrust.flower.round import Round
from fltrust.flower.salt import salted
from fltrust.flower.verdicts import plain
from fltrust.randomness import reseed, stream
from fltrust.rules import Rule
from fltrust.training.optimisers import SGD, ServerOptimiser

RECONNECT = 300.0  # seconds that nodes have to come back after the server was restarted, and the SuperLink after it went away

log = logging.getLogger("flwr")  # Flower's own, so that `flwr run --stream` shows these lines too


class RobustStrategy(Strategy):
    """A rule of `fltrust.rules` as a Flower strategy: `RobustStrategy(FLTrust(), root=root_of(module, data, lr=0.1)).start(grid, arrays)`.

    Parameters
    ----------
    rule : Rule
        Turns the nodes' replies into one update.
    root : callable or None, default None
        Takes the global arrays and returns how the server's own training changes each of them. FLTrust, its variants and Zeno++ need it.
    directory : str, Path or None, default None
        Where records and model are kept. A run that was interrupted there resumes.
    global_lr : float, default 1.0
        alpha of the paper: the model moves by this times the rule's update.
    fraction_train, min_train_nodes
        As in Flower's FedAvg.
    min_available_nodes : int, default 2
        The first round waits for this many nodes. Later rounds wait for them at most one deadline.
    min_replies : float, default 0.5
        With fewer valid replies a round keeps the model: a number of replies, or, below 1, a part of the nodes that were asked. Nodes that
        are alone in a round can work out much of the root update from the next model.
    buffers : names or callable, default is_statistic
        Arrays that are not parameters, by name or by a function of the name. They are not part of the cosine. They come from the root's
        training, not from the nodes.
    take_buffers : bool, default False
        Takes buffers from the nodes after all: the median of all valid replies in each coordinate. This needs an honest majority, so it is
        refused for rules with a root, which do not need one.
    server : ServerOptimiser or None, default None
        The server's optimiser (momentum, Adam). None moves the model by global_lr times the rule's update.
    registered : bool, default False
        Says that the SuperLink authenticates nodes by registered keys, so that an id always means the same node. Rules that remember each
        client (FoolsGold) and fingerprints in the lists below need it. Without keys a node gets a new id at every start and could shed its
        past.
    names : str, Path or None, default None
        A TOML file that gives nodes names, by id or by the fingerprint of their key.
    ban : list or file, default ()
        Nodes that are not asked: ids, fingerprints and names, or a file with one on each line. The file is read again before every round.
    allow : list, file or None, default None
        In the same forms. If given, no other nodes are asked.
    quarantine : int, Quarantine or None, default None
        After this many rejected replies a node is not asked for some rounds. None always asks again; rejected replies have no influence.
    metrics_port, metrics_address
        Where Prometheus finds the run's metrics.
    log : "text" or "json", default "text"
        "json" writes each line of the log as a JSON object.
    most_examples : int or None, default None
        FedAvg weights nodes by the number of examples they report, capped at this. None ignores the reports.
    most_bytes : int or None, default None
        The largest reply. None allows the model's size, 1 MiB, and 1 KiB for each array.
    most_value : float, default 1e9
        The largest absolute value in a reply.
    least_norm : float or None, default None
        Updates shorter than this part of the root update (without a root: of the weights) are rejected. None is 1e-4 of the root update, or
        1e-6 of the weights.
    seed : int or None, default None
        Makes the choice of nodes repeatable. None makes it unpredictable.
    poll : float, default 0.5
        Seconds between two looks for replies.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        root: Root | None = None,
        directory: str | Path | None = None,
        global_lr: float = 1.0,
        fraction_train: float = 1.0,
        min_train_nodes: int = 2,
        min_available_nodes: int = 2,
        min_replies: float = 0.5,
        buffers: Buffers = is_statistic,
        take_buffers: bool = False,
        server: ServerOptimiser | None = None,
        registered: bool = False,
        names: str | Path | None = None,
        ban: Source = (),
        allow: Source | None = None,
        quarantine: int | Quarantine | None = None,
        metrics_port: int | None = None,
        metrics_address: str = "127.0.0.1",
        log: Literal["text", "json"] = "text",
        most_examples: int | None = None,
        most_bytes: int | None = None,
        most_value: float = 1e9,
        least_norm: float | None = None,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        seed: int | None = None,
        poll: float = 0.5,
    ) -> None:
        if rule.needs_root and root is None:
            raise InputError(f"{type(rule).__name__} needs a root update: give root=..., such as root_of(module, data, lr=...)")
        _require(
            not (take_buffers and rule.needs_root),
            f"{type(rule).__name__} needs no honest majority, but take_buffers does: leave it out, the root gives the buffers",
        )
        _require(
            registered or not rule.needs_ids,
            f"{type(rule).__name__} remembers each client, and without registered keys nobody knows who a node is: run the SuperLink with "
            "node authentication and say registered=True",
        )
        name = type(rule).__name__
        _require(not rule.needs_root_loss or loss_of(root) is not None, f"{name} needs a loss on the root set: give root=root_of(...)")
        held_out = (settings_of(root) or {}).get("hold_out", False)
        _require(
            held_out or not rule.holds_out, f"{name} needs a part of the root set to measure models on: give root_of(..., hold_out=True)"
        )
        _require(server is None or not rule.holds_out, f"{name} sets the model itself: leave out the server's optimiser")
        _require(0 < global_lr < 1e30, f"global_lr must be a positive number, not {global_lr}")
        _require(0 <= fraction_train <= 1, f"fraction_train must be 0 to 1, not {fraction_train}")
        _require(min_train_nodes >= 1, f"min_train_nodes must be at least 1, not {min_train_nodes}")
        _require(
            0 < min_replies < 1 or (min_replies >= 1 and min_replies == int(min_replies)),
            f"min_replies must be a part of the nodes between 0 and 1, or a whole number of replies, not {min_replies}",
        )
        _require(most_examples is None or most_examples >= 1, f"most_examples must be at least 1, not {most_examples}")
        _require(most_bytes is None or most_bytes >= 1, f"most_bytes must be at least 1, not {most_bytes}")
        _require(most_value > 0, f"most_value must be positive, not {most_value}")
        _require(least_norm is None or 0 <= least_norm < 1, f"least_norm must be at least 0 and less than 1, not {least_norm}")
        _require(poll > 0, f"poll must be positive, not {poll}")
        if isinstance(quarantine, int):
            quarantine = Quarantine(after=quarantine)
        self.operator = Settings(names, ban, allow, quarantine, registered, metrics_port, metrics_address, log)
        self.rule, self.root, self.server = rule, root, server or SGD()
        self.directory = None if directory is None else Path(directory)
        self.global_lr, self.min_replies, self.seed, self.poll = global_lr, min_replies, seed, poll
        self.fraction_train, self.min_train_nodes, self.min_available_nodes = fraction_train, min_train_nodes, min_available_nodes
        self.buffers = buffers
        if least_norm is None:
            least_norm = 1e-6 if root is None else 1e-4
        self.limits = Limits(most_bytes, most_value, most_examples, weighted_by_key, take_buffers, least_norm)
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self._time_to_live: float | None = None  # of messages; None: Flower's default
        self._wait = float("inf")  # seconds for nodes to be there
        self._round: Round | None = None
        self._remembered: Remembered | None = None  # before the first round
        self._guarded: Grid | None = None  # whose replies `start` fetches itself
        self._operations = Operations(self.operator)

    # ---------------------------------------------------------------- the loop

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the rounds that are not done yet; `timeout` is each one's deadline in seconds.

        `evaluate_fn` measures the global model on the server, as in Flower. Clients are not asked to evaluate it: what they report about
        themselves proves nothing.
        """
        initial = {name: array.numpy() for name, array in initial_arrays.items()}
        layout = Layout.of(initial, self.buffers)
        counted = [name for name in layout.buffers if initial[name].dtype.kind == "f"]
        _require(
            not (self.rule.holds_out and counted),
            f"{type(self.rule).__name__} measures and restores parameters, not buffers such as {min(counted, default='')!r}: use GroupNorm",
        )
        config = ConfigRecord() if train_config is None else train_config
        result = Result(arrays=initial_arrays)
        self._time_to_live = 2 * timeout  # after the deadline a reply can still arrive and be named late; then Flower drops it
        with ExitStack() as stack:
            mailbox = Mailbox(grid, look_of(grid, layout, self.limits), self.poll)
            self._guarded = grid
            stack.callback(setattr, self, "_guarded", None)
            done, arrays = 0, initial
            self._remembered = None
            folder = None
            records: list[dict[str, Any]] = []
            if self.directory is not None:
                folder = stack.enter_context(FederationDirectory(self.directory, self._declaration(layout)))
                done, arrays, records = folder.resume(layout, initial)
                self._remembered = folder.remembered(done, self.rule, self.server, layout.vector(arrays.__getitem__))
                result.arrays = _as_record(arrays)
                for record in records:
                    if record.get("metrics"):
                        result.evaluate_metrics_serverapp[record["round"]] = MetricRecord(record["metrics"])
            self._operations = Operations(self.operator, self.directory)
            stack.enter_context(self._operations.running(records))
            self.summary()
            self._wait = max(timeout, RECONNECT) if done else float("inf")
            if done:
                log.info("%s: going on after round %d", self.directory, done)
            elif evaluate_fn is not None and (measured := evaluate_fn(0, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = measured
            for t in range(done + 1, num_rounds + 1):
                # Step I: the nodes that were drawn receive the global model.
                unasked = mailbox.unasked
                this, started = self._sent(t, result.arrays, config, grid, mailbox, timeout)
                # Step II: nodes and server train from there, at the same time.
                self._train_root(this)
                # Step III: the server aggregates what arrives and moves the global model.
                grace = GRACE
                if time.monotonic() > started + timeout:
                    log.warning("the root update took longer than the %s s that nodes have: replies that are there now count", timeout)
                    grace = timeout  # nothing has been fetched yet
                for asked, reply in mailbox.arrivals(t, started + timeout, grace):
                    if asked.t == t:
                        this.take(asked.node, reply)
                    elif not is_gone(reply):
                        this.late.append((asked.node, asked.t))
                this.unasked = mailbox.unasked - unasked
                arrays = this.close()
                self._remembered = this.remembered
                self._wait = timeout
                if this.kept is None:
                    result.arrays = _as_record(arrays)
                measured = None if evaluate_fn is None else evaluate_fn(t, result.arrays)
                if measured is not None:
                    result.evaluate_metrics_serverapp[t] = measured
                result.train_metrics_clientapp[t] = MetricRecord(dict(this.count()))
                self._say(this, num_rounds, measured)
                record = {
                    **this.record(),
                    **_measurements(measured),
                    "seconds": round(time.monotonic() - started, 3),
                    "run_id": run_id(),
                }
                self._operations.conclude(record)
                if folder is not None:
                    folder.save(record, arrays, self._remembered)
        return result

    def _sent(self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, mailbox: Mailbox, timeout: float) -> tuple[Round, float]:
        """A round whose messages are on their way, and since when. What cannot be sent is made anew, as long as a round may take."""
        began = time.monotonic()
        while True:
            messages = self.configure_train(t, arrays, config, grid)
            this, started = self._opened(t), time.monotonic()  # after the wait for enough nodes
            try:
                sent, problem = mailbox.send(messages, t), "Flower took none of the messages"
            except Exception as raised:
                sent, problem = set(), f"{type(raised).__name__}: {raised}"
            if sent:
                this.not_sent(set(this.nodes) - sent)
                return this, started
            if started - began >= timeout:
                raise InputError(f"round {t} could not be sent to anybody for {timeout} s: {plain(problem)}")
            log.warning("round %d could not be sent, once more: %s", t, plain(problem))
            time.sleep(self.poll)

    def summary(self) -> None:
        log.info("%s as the rule, %s", self.rule, "no root" if self.root is None else "with a root update")
        log.info("%s of the nodes, at least %d, train in a round", f"{self.fraction_train:.0%}", self.min_train_nodes)

    def _declaration(self, layout: Layout) -> dict[str, Any]:
        """What decides the numbers, and must be the same when a run goes on."""
        return {
            "rule": codec.plain(self.rule),
            "server": codec.plain(self.server),
            "root": settings_of(self.root),
            "seed": self.seed,
            "global_lr": self.global_lr,
            "fraction_train": self.fraction_train,
            "min_train_nodes": self.min_train_nodes,
            "min_replies": self.min_replies,
            "limits": dataclasses.asdict(self.limits),
            "arrays": {name: [str(layout.dtypes[name]), list(shape)] for name, shape in layout.shapes.items()},
            "buffers": sorted(layout.buffers),
        }

    # ---------------------------------------------------------------- Flower's methods: a round for whoever else drives the strategy

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        if grid is not self._guarded and not in_process(grid):
            raise InputError(
                "RobustStrategy fetches replies itself, since Flower's own way lets one node harm the others: call its start(...), "
                "not another loop or a strategy around it"
            )
        nodes, excluded = self._drawn(server_round, grid)
        before = {name: array.numpy() for name, array in arrays.items()}
        layout = Layout.of(before, self.buffers)
        least = math.ceil(self.min_replies * len(nodes)) if self.min_replies < 1 else int(self.min_replies)
        self._round = Round(
            server_round,
            self.rule,
            layout,
            before,
            nodes,
            self.limits,
            self.global_lr,
            least,
            self._remembered or Remembered.first(self.rule, self.server, layout.vector(before.__getitem__)),
            self.server,
            self._secret(server_round, "rule") if self.rule.needs_generator else None,
            self._secret(server_round, "evidence"),
            excluded,
            self.root,
        )
        unpredictable = salted(arrays)
        return [self._message(node, server_round, unpredictable, config) for node in nodes]

    def _secret(self, t: int, name: str) -> torch.Generator:
        """Randomness of round t; nobody can predict it unless there is a seed."""
        generator = torch.Generator()
        return generator.manual_seed(secrets.randbits(63)) if self.seed is None else reseed(generator, self.seed, name, t)

    def _message(self, node: int, t: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        """Round t's message to a node. Its id is a hash of its content, and whoever knows the id can answer it in the node's name.

        So each message holds a random number of its own: the other nodes cannot work out its id from their own messages.
        """
        ours = ConfigRecord({**config, "server-round": t, "nonce": secrets.token_hex(16)})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: ours})
        return Message(content, node, MessageType.TRAIN, ttl=self._time_to_live, group_id=str(t))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Here a reply must be believed about who sent it; `start` knows better."""
        this = self._opened(server_round)
        self._train_root(this)
        by_node: dict[int, list[Message]] = {}
        for reply in replies:
            by_node.setdefault(reply.metadata.src_node_id, []).append(reply)
        for node, answers in by_node.items():
            this.take(node, one_of(answers))
        arrays = this.close()
        self._remembered = this.remembered
        self._operations.conclude(this.record())
        return None if this.kept else _as_record(arrays), MetricRecord(dict(this.count()))

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def _drawn(self, t: int, grid: Grid) -> tuple[list[int], dict[int, Exclusion]]:
        """The nodes of round t: all that may be asked or a sample; with a seed the same again if the same nodes are there.

        And why nodes that are there may not be asked.
        """
        started, waiting = time.monotonic(), ""
        while True:
            nodes, excluded = self._operations.admit(self._connected(grid), t, self.min_train_nodes)
            least = max(self.min_available_nodes - self._operations.not_awaited(t), self.min_train_nodes)
            if time.monotonic() - started >= self._wait:
                least = self.min_train_nodes  # those who left cannot hold up the others
            if len(nodes) >= least:
                break
            out = "".join(f", {count} {verdict}" for verdict, count in Counter(why.verdict for why in excluded.values()).items())
            if waiting != (waiting := f"waiting for nodes: {len(nodes)} may take part{out}; {least} must"):
                log.log(logging.WARNING if excluded else logging.INFO, waiting, extra=about("waiting", round=t))
            time.sleep(self.poll)
        self._operations.announce(t, nodes, excluded)
        count = max(int(self.fraction_train * len(nodes)), self.min_train_nodes)
        if self.seed is None:  # who knows the nodes of a round in advance can prepare for it
            return sorted(secrets.SystemRandom().sample(nodes, count)), excluded
        picked = stream(self.seed, "nodes", t).choice(len(nodes), count, replace=False)
        return [nodes[i] for i in sorted(picked)], excluded

    def _connected(self, grid: Grid) -> dict[int, str | None]:
        """The nodes that are there, with the fingerprints of registered keys; a SuperLink that went away has some time to come back."""
        started = time.monotonic()
        while True:
            try:
                if self.operator.registered:
                    return {node: fingerprint(key) for node, key in public_keys(grid).items()}
                return dict.fromkeys(grid.get_node_ids())
            except Exception as problem:  # not that somebody stopped the run: Flower's RunNotRunningException is none of these
                if time.monotonic() - started >= RECONNECT:
                    raise InputError(f"the SuperLink could not be asked for its nodes for {RECONNECT:.0f} s: {plain(problem)}") from problem
                log.warning("the SuperLink could not be asked for its nodes, once more: %s", plain(problem))
                time.sleep(self.poll)

    def _opened(self, t: int) -> Round:
        if self._round is None or self._round.t != t:
            raise InputError(f"round {t} was not configured: call configure_train first")
        return self._round

    def _train_root(self, this: Round) -> None:
        if self.root is not None:
            this.set_root(self.root(dict(this.before)))

    def _say(self, this: Round, num_rounds: int, measured: MetricRecord | None) -> None:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in this.count().items() if count)
        log.info(
            "round %d/%d: %s%s%s",
            this.t,
            num_rounds,
            counts,
            f", {len(this.late)} late" if this.late else "",
            "" if measured is None else f"; {plain(dict(measured))}",
            extra=about("round", round=this.t),
        )
        for node, entry in this.entries.items():
            if entry.verdict == "rejected":
                called = self._operations.called(node)
                log.info("  %s: %s (%s)", called, entry.reason, entry.detail, extra=about("rejected", round=this.t, node=node))
        if this.kept:
            log.warning("round %d keeps the model: %s", this.t, this.why, extra=about("kept", round=this.t, kind=this.kept))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(otherwise)


def _as_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _measurements(measured: MetricRecord | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {name: value for name, value in (measured or {}).items() if np.isfinite(value).all()}  # JSON has no NaN
    error = next((metrics[name] for name in ("test_error", "test-error") if name in metrics), None)
    if error is None and "accuracy" in metrics:
        error = 1 - metrics["accuracy"]
    return {"test_error": error, "metrics": metrics}
