"""An experiment's task: loads the data, sets the root set aside, splits the rest over the clients, poisons the malicious clients' share."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fltrust import datasets
from fltrust.codec import built
from fltrust.datasets import Examples
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.models import initialise
from fltrust.objectives import Objective
from fltrust.randomness import stream
from fltrust.registry import DATASETS, METRICS, MODELS, OBJECTIVES, RULES, plugin_files
from fltrust.rules.rule import try_rule
from fltrust.tasks.arrays import standardised
from fltrust.tasks.splits import partition
from fltrust.tasks.task import Task


def build_task(
    run: Experiment,
    *,
    device: str = "cpu",
    data_dir: str | None = None,
    load: Callable[[str, str | None], Examples] = datasets.examples_of,
) -> Task:
    """Builds an experiment's task: loads the data, splits them over server and clients, and poisons the malicious clients' part.

    Parameters
    ----------
    run : Experiment
        Its fields decide the data set, the split, the model and the attack.
    device : str, default "cpu"
        Where the examples and the model are kept: "cpu" or "cuda".
    data_dir : str or None, default None
        The folder of the data files; None takes the usual one.
    load : callable, default reads the registered data set
        Takes the name of a data set and `data_dir`, and returns its `Examples`. To build many tasks, give one with a cache.

    Examples
    --------
    >>> import numpy as np
    >>> from fltrust import Experiment, build_task
    >>> from fltrust.datasets import Examples
    >>> inputs, targets = np.array([[-1.0], [1.0]] * 10, np.float32), np.array([0, 1] * 10)
    >>> points = Examples(inputs, targets, inputs[:2], targets[:2], num_classes=2)
    >>> numbers = {"num_clients": 4, "clients_per_round": 4, "malicious": 1, "root_size": 4, "global_lr": 0.1, "loss": "mean"}
    >>> run = Experiment(dataset="points", model="logistic", **numbers)
    >>> build_task(run, load=lambda name, data_dir: points)
    Task(20 + 2 examples of shape (1,), float32; 2 classes; 4 clients, 1 malicious; root set of 4; LogisticRegression with 4 weights; cpu)
    """
    if refusal := try_rule(run.rule, run.clients_per_round, run.num_clients):  # before any work
        raise InputError(refusal)
    examples = load(run.dataset, data_dir)
    if run.num_clients > len(examples.train_labels):
        raise InputError(f"{run.num_clients:,} clients for {len(examples.train_labels):,} examples: there cannot be more of them")
    objective: Objective = built(OBJECTIVES, examples.objective, {})
    labels, num_classes = _labels(run, examples, objective)
    held = partition(
        labels,
        examples.owners,
        num_clients=run.num_clients,
        num_classes=num_classes,
        bias=run.bias,
        split=run.split,
        root_size=run.root_size,
        root_bias=run.root_bias,
        root_sampling=run.root_sampling,
        malicious=run.malicious,
        root=_own_root(run, examples),
        rng=stream(run.seed, "partition"),
    )
    shuffled = stream(run.seed, "malicious").permutation(run.num_clients)  # so that chance decides who is malicious
    if run.split is not None and run.split.knows_malicious:
        shuffled = np.arange(run.num_clients)
    network = MODELS.entry(run.model).kind(examples.train.shape[1:], examples.num_classes)
    if run.standardise and examples.train.dtype.kind in "iu" and examples.train.dtype != np.uint8:
        raise InputError(f"{run.dataset}: tokens cannot be standardised")
    train, test = standardised(examples.train, examples.test) if run.standardise else (examples.train, examples.test)
    return Task.from_arrays(
        train,
        examples.train_labels,
        test,
        examples.test_labels,
        clients=held.clients.taken(shuffled),
        root=held.root,
        model=initialise(network, stream(run.seed, "weights"), run.initialisation),
        num_classes=examples.num_classes,
        objective=objective,
        malicious=run.malicious,
        attack=run.attack,
        seed=run.seed,
        device=device,
        files={**data_files(examples), **plugins_of(run)},
        warnings=examples.warnings,
    )


def _own_root(run: Experiment, examples: Examples) -> NDArray[np.int64] | None:
    """The root set that the data name themselves."""
    if examples.root is not None and len(examples.root) != run.root_size:
        raise InputError(f"{run.dataset} names {len(examples.root)} examples as the root set: leave out root_size = {run.root_size}")
    return examples.root


def data_files(examples: Examples) -> dict[str, str]:
    """The files that the data were read from, and the plug-in that defines their objective, with their sha256."""
    return {**examples.files, **plugin_files(type(built(OBJECTIVES, examples.objective, {})))}


def plugins_of(run: Experiment) -> dict[str, str]:
    """The plug-ins that the run uses, as files whose change another run would need."""
    named = [MODELS.entry(run.model).kind, *(METRICS.entry(name).kind for name in run.metrics)]
    named += [DATASETS[run.dataset].load] if run.dataset in DATASETS else []  # one's own data have hashes of their own
    rules = RULES.layers(run.rule)  # one may hold another
    return plugin_files(*named, *(type(part) for part in (*rules, run.attack, run.split, run.server)))


def _labels(run: Experiment, examples: Examples, objective: Objective) -> tuple[NDArray[np.int64], int]:
    """The class of each training example, for splitting, and how many there are; examples without a single class are all alike."""
    if examples.train_labels.ndim == 1 and objective.classes != 0:
        return examples.train_labels, objective.classes or examples.num_classes
    if run.bias is not None or (run.root_sampling != "random" and examples.root is None):
        raise InputError(f'{run.dataset}: examples have no single class: set split = {{ name = "iid" }} and root_sampling = "random"')
    return np.zeros(len(examples.train_labels), np.int64), 1
