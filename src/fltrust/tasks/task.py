"""A Task: all examples as tensors on the device, who owns which, and the model to train; a batch is an index.

k examples; the malicious clients come first.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fltrust.attacks.attack import Attack, MaliciousClient, relabelled
from fltrust.codec import built
from fltrust.errors import InputError
from fltrust.experiment import BatchNorm
from fltrust.models import Model
from fltrust.objectives import CrossEntropy, Objective
from fltrust.randomness import reseed
from fltrust.registry import ATTACKS, OBJECTIVES
from fltrust.tasks.arrays import as_inputs, as_targets, count_classes, split_between
from fltrust.tasks.holdings import Holdings, Indices
from fltrust.tasks.splits import Split

CLIENT_BATCH = 64  # examples of a client whose statistics batch norm may use in evaluation
TEST_BATCH = 1_000


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Data with owners, a model and an objective: all that a simulation trains and measures.

    `build_task` makes one from an experiment. `Task.from_arrays` makes one from your own arrays, and checks them.

    Parameters
    ----------
    inputs : Tensor
        (k, ...) float32 (pixels / 255, or features as they are) or int64 (tokens).
    targets : Tensor
        (k, ...) int64 classes, or numbers if the objective has no classes.
    test_inputs : Tensor
        (j, ...), like `inputs`.
    test_targets : Tensor
        (j, ...), like `targets`.
    num_classes : int
        0 if targets are not classes.
    clients : Holdings
        The examples of each client, as indices into `inputs`. Malicious clients come first.
    malicious : int
        How many clients are malicious.
    root : array of int64
        The server's own examples. No client holds any of them.
    clean : array of int64
        All clients' examples before any poisoning, for the training error.
    model : Model
        The network and its first weights.
    objective : Objective, default CrossEntropy()
        The loss and the prediction.
    attack : Attack or None, default None
        The attack that has poisoned the malicious clients' examples.
    files : dict, default empty
        Each data file that was read, and its sha256.
    warnings : tuple of str, default ()
        What a reader of the results should know about these files.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from fltrust import Task
    >>> inputs, targets = np.array([[-1.0], [1.0]] * 3), [0, 1] * 3
    >>> clients, root = [np.array([0, 1]), np.array([2, 3])], np.array([4, 5])
    >>> task = Task.from_arrays(inputs, targets, inputs[:2], targets[:2], clients=clients, root=root, model=torch.nn.Linear(1, 2))
    >>> task
    Task(6 + 2 examples of shape (1,), float32; 2 classes; 2 clients, 0 malicious; root set of 2; Linear with 4 weights; cpu)
    >>> task.sizes
    array([2, 2])
    """

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int
    clients: Holdings
    malicious: int
    root: Indices
    clean: Indices
    model: Model
    objective: Objective = field(default_factory=CrossEntropy)
    attack: Attack | None = None
    files: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", Holdings.of(self.clients))  # a list of arrays will do too

    @staticmethod
    def from_arrays(
        inputs: ArrayLike,
        targets: ArrayLike,
        test_inputs: ArrayLike,
        test_targets: ArrayLike,
        *,
        clients: Sequence[Indices] | int,
        root: Indices | int,
        model: nn.Module,
        split: Split | None = None,
        objective: Objective | str = CrossEntropy(),  # noqa: B008
        num_classes: int | None = None,
        malicious: int = 0,
        attack: Attack | str | None = None,
        seed: int = 0,
        device: str = "cpu",
        files: dict[str, str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> "Task":
        """Makes a task from your own arrays. What cannot work raises an InputError that says why.

        Parameters
        ----------
        inputs, test_inputs : arrays
            (k, ...). Bytes (uint8) are pixels and are divided by 255. Other integers are tokens. All other numbers become float32.
        targets, test_targets : arrays
            (k, ...), as the objective wants them. For CrossEntropy: classes from 0 on, one per example or per token.
        clients : sequence of arrays, or int
            The examples of each client, as indices into `inputs`. No example may be held twice. A number: so many clients, between whom
            the examples are split.
        root : array, or int
            The server's examples, as indices into `inputs`. A number (if `clients` is one): so many, as many of each class.
        model : torch.nn.Module
            Any module that takes a batch of inputs. Its parameters are the first weights. Dropout layers work; batch norm uses each batch's
            statistics in training and, unless `batch_norm` says otherwise, the root set's in tests.
        split : Split or None, default None
            How the examples are split if `clients` is a number; None splits them at random and evenly. See 'fltrust list splits'.
        objective : Objective or str, default CrossEntropy()
            The loss and the prediction: "cross-entropy", "binary" (one logit per answer), "squared-error", or one of your own.
        num_classes : int or None, default None
            None counts the classes of the targets.
        malicious : int, default 0
            The first so many clients follow the `attack`.
        attack : Attack, str or None, default None
            It poisons the malicious clients' examples.
        seed : int, default 0
            Of the randomness with which it does so, and of the split.
        device : str, default "cpu"
            Where the examples and the model are kept: "cpu" or "cuda".
        files : dict or None, default None
            Each data file that was read, and its sha256.
        warnings : tuple of str, default ()
            What a reader of the results should know about these files.

        Examples
        --------
        >>> import numpy as np, torch
        >>> rng = np.random.default_rng(0)
        >>> tokens = rng.integers(0, 5, (20, 9))  # 20 sequences; each token is the answer to those before it
        >>> Task.from_arrays(
        ...     tokens[:16, :-1], tokens[:16, 1:], tokens[16:, :-1], tokens[16:, 1:],
        ...     clients=[np.arange(6), np.arange(6, 12)], root=np.arange(12, 16), model=torch.nn.Embedding(5, 5),
        ... )
        Task(16 + 4 examples of shape (8,), int64; 5 classes; 2 clients, 0 malicious; root set of 4; Embedding with 25 weights; cpu)
        """
        inputs, test_inputs = np.asarray(inputs), np.asarray(test_inputs)  # tensors and lists will do too
        objective = cast(Objective, built(OBJECTIVES, objective, {}))
        attack = None if attack is None else cast(Attack, built(ATTACKS, attack, {}))
        if isinstance(clients, int | np.integer):
            clients, root = split_between(np.asarray(targets), clients, root, split, objective, num_classes, malicious, seed)
        elif isinstance(root, int | np.integer) or split is not None:
            raise InputError("the clients' examples are given: root must be indices too, and there is nothing to split")
        clients = Holdings.of(clients)
        root = np.asarray(root, np.int64)
        if not 0 <= malicious <= len(clients):
            raise InputError(f"{malicious} malicious clients of {len(clients)}")
        clean = clients.examples
        if not len(clean) or not len(root) or not len(test_inputs):
            raise InputError(
                f"{len(clean)} examples of clients, {len(root)} of the root set, {len(test_inputs)} for testing: none may be empty"
            )
        held = np.concatenate([clean, root])
        if held.min() < 0 or held.max() >= len(inputs):
            raise InputError(f"an index of a client or of the root set is outside 0..{len(inputs) - 1}")
        if len(np.unique(held)) < len(held):
            raise InputError("an example is held twice: clients and the root set must not overlap")
        if inputs.shape[1:] != test_inputs.shape[1:]:
            raise InputError(f"training examples have the shape {inputs.shape[1:]}, test examples {test_inputs.shape[1:]}")
        examples, test_examples = as_inputs(inputs), as_inputs(test_inputs)
        if examples.dtype != test_examples.dtype:
            raise InputError(f"training examples are {inputs.dtype}, test examples {test_inputs.dtype}")
        wanted, test_wanted = (as_targets(part, len(of), objective) for part, of in ((targets, inputs), (test_targets, test_inputs)))
        if wanted.shape[1:] != test_wanted.shape[1:]:
            raise InputError(f"training targets have the shape {tuple(wanted.shape[1:])}, test targets {tuple(test_wanted.shape[1:])}")
        task = Task(
            inputs=examples,
            targets=wanted,
            test_inputs=test_examples,
            test_targets=test_wanted,
            num_classes=count_classes(objective, num_classes, wanted, test_wanted),
            clients=clients,
            malicious=malicious,
            root=root,
            clean=clean,
            model=Model(model),
            objective=objective,
            attack=attack,
            files=files or {},
            warnings=warnings,
        )
        task._try_model()
        return task._poisoned(attack, seed).to(device)

    def _try_model(self) -> None:
        """Refuses what could not work, before any work."""
        trigger = self.attack.trigger if self.attack else None
        if trigger is not None and (not self.num_classes or self.targets.dim() != 1):
            raise InputError("a backdoor has one target class per example: these targets are of another kind")
        if trigger is not None and not 0 <= trigger.target < self.num_classes:
            raise InputError(f"the trigger's target {trigger.target} is none of the {self.num_classes} classes")
        wanted = self.attack.wanted_class if self.attack else None
        if wanted is not None and (wanted >= self.num_classes or self.targets.dim() != 1):
            raise InputError(f"the attack is about class {wanted}, and these data have {self.num_classes or 'no'} classes")
        if self.attack is not None and trigger is None:
            self.attack.backdoor(self.test_inputs[:2], self.test_targets[:2])
        inputs, targets = self._hardest()
        chance = torch.get_rng_state()
        try:
            outputs = self.model.outputs(self.model.initial_weights, inputs)
            shape = tuple(outputs.shape)
        except Exception as problem:  # any module may be given
            kind = f"shape {tuple(inputs.shape[1:])}, {str(inputs.dtype).removeprefix('torch.')}"
            raise InputError(f"the model cannot take examples of {kind}: {_one_line(problem)}") from problem
        if not torch.equal(torch.get_rng_state(), chance):
            raise InputError(
                "the model draws random numbers of its own, so no run could be repeated: use layers of nn.Dropout, "
                "not functional.dropout nor the dropout=... of attention and recurrent layers"
            )
        name = type(self.objective).__name__
        if not shape or shape[0] != len(targets):
            raise InputError(f"the model must give an output for each example: {len(targets)} examples gave outputs of shape {shape}")
        if why := self.objective.misfit(outputs, targets, self.num_classes):
            raise InputError(why)
        try:
            parts = {"loss": self.objective.loss(outputs, targets), "error": self.objective.error(outputs, targets)}
        except Exception as problem:  # so may any objective
            raise InputError(f"{name} cannot take outputs of shape {shape}: {type(problem).__name__}: {_one_line(problem)}") from problem
        for what, part in parts.items():
            if not isinstance(part, Tensor) or part.shape != (len(targets),):
                got = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
                raise InputError(f"{name}.{what} must give one number per example, ({len(targets)},), not {got}")
        if self.attack is not None and self.attack.relabels:
            relabelled(self.attack, targets, outputs)

    def _hardest(self) -> tuple[Tensor, Tensor]:
        """Two examples to try the model on; for tokens one with the largest of all, which an embedding may not have."""
        if self.inputs.is_floating_point():
            return self.inputs[:2], self.targets[:2]
        peaks = [(int(part.max()), part, targets) for part, targets in self._parts]
        _, part, targets = max(peaks, key=lambda peak: peak[0])
        row = int(part.flatten(1).amax(1).argmax())
        return torch.stack((self.inputs[0], part[row])), torch.stack((self.targets[0], targets[row]))

    @property
    def _parts(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return (self.inputs, self.targets), (self.test_inputs, self.test_targets)

    def __repr__(self) -> str:
        kind = f"{len(self.clean) + len(self.root):,} + {len(self.test_inputs):,} examples"
        shape = f"of shape {tuple(self.inputs.shape[1:])}, {str(self.inputs.dtype).removeprefix('torch.')}"
        classes = f"{self.num_classes} classes" if self.num_classes else "no classes"
        clients = f"{len(self.clients):,} clients, {self.malicious:,} malicious; root set of {len(self.root):,}"
        model = f"{type(self.model.module).__name__} with {self.model.d:,} weights"
        return f"Task({kind} {shape}; {classes}; {clients}; {model}; {self.device})"

    def _poisoned(self, attack: Attack | None, seed: int) -> "Task":
        """The task after the malicious clients changed their own examples: each gets a new place behind the clean ones."""
        if attack is None or not attack.poisons:
            return self
        inputs, targets, clients = [self.inputs], [self.targets], list(self.clients[: self.malicious])
        count = len(self.inputs)
        for i in range(self.malicious):
            own = torch.from_numpy(clients[i])
            client = MaliciousClient(self.num_classes, i, reseed(torch.Generator(), seed, "poison", i))
            poisoned, flipped = attack.poison(self.inputs[own], self.targets[own], client)
            for part, like in ((poisoned, self.inputs), (flipped, self.targets)):
                if not isinstance(part, Tensor):
                    raise InputError(f"{type(attack).__name__}.poison must return tensors, not a {type(part).__name__}")
                if (part.dtype, part.shape) != (like.dtype, (len(flipped), *like.shape[1:])):
                    raise InputError(f"{type(attack).__name__}.poison changed the kind of its examples: {part.dtype}, {tuple(part.shape)}")
            if (
                self.num_classes
                and not like.is_floating_point()
                and len(flipped)
                and not 0 <= flipped.min() <= flipped.max() < self.num_classes
            ):
                raise InputError(f"{type(attack).__name__}.poison made a label that is none of the {self.num_classes} classes")
            inputs.append(poisoned)
            targets.append(flipped)
            clients[i] = np.arange(count, count + len(flipped))
            count += len(flipped)
        held = Holdings.of(clients) + self.clients[self.malicious :]
        return replace(self, inputs=torch.cat(inputs), targets=torch.cat(targets), clients=held)

    def attacked(self, attack: Attack, malicious: int | None = None, seed: int = 0) -> "Task":
        """The task whose first `malicious` clients (None: as many as it says itself) follow the attack, which may poison their examples."""
        malicious = self.malicious if malicious is None else malicious
        if (attack, malicious) == (self.attack, self.malicious):
            return self
        if self.attack is not None and self.malicious and self.attack.poisons:
            raise InputError(f"the task's data are poisoned for {type(self.attack).__name__} already: build it without an attack")
        if not 0 <= malicious <= len(self.clients):
            raise InputError(f"{malicious} malicious clients of {len(self.clients)}")
        task = replace(self.to("cpu"), attack=attack, malicious=malicious)
        task._try_model()
        return task._poisoned(attack, seed).to(self.device)

    @cached_property
    def sha256(self) -> str:
        """Of everything that decides a run's numbers: the examples, who holds them, the first weights and the objective."""
        digest = hashlib.sha256(f"{self.objective} {self.attack} {self.malicious} {self.model.module}".encode())
        tensors = (self.inputs, self.targets, self.test_inputs, self.test_targets, self.model.initial_weights)
        for array in (*(tensor.cpu().numpy() for tensor in tensors), self.root, *self.clients):
            digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def norm_batches(self, of: BatchNorm = "root") -> list[Tensor]:
        """The inputs whose statistics batch norm uses in evaluation, batch by batch.

        The server can trust the root set alone: a malicious client's examples may be poisoned, and nobody has the test examples beforehand.
        """
        if of == "test":
            return [_spread(self.test_inputs, TEST_BATCH)]
        # One example alone has no variance.
        owners = [self.root] if of == "root" else [_spread(own, CLIENT_BATCH) for own in self.clients if len(own) > 1]
        return [self.inputs[torch.from_numpy(own).to(self.device)] for own in owners]

    def to(self, device: str | torch.device) -> "Task":
        """The task with its examples and its model on a device."""
        self.model.module.to(device)  # its buffers and frozen parameters
        tensors = {name: getattr(self, name).to(device) for name in ("inputs", "targets", "test_inputs", "test_targets")}
        return replace(self, **tensors)

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self.clients.sizes


Rows = TypeVar("Rows", Tensor, Indices)


def _spread(rows: Rows, most: int) -> Rows:
    """At most so many of the rows, spread over all of them, which may be sorted by class."""
    return rows[:: -(-len(rows) // most)]


def _one_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [""])[0] or type(problem).__name__
