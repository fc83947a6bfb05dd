"""What the searched attack costs a round, on synthetic updates: no data set, no training.

    PYTHONPATH=src python bench/search.py --device cuda
    PYTHONPATH=src python bench/search.py --device cpu --d 20000 --repeats 2 krum

100 clients, 20 malicious, 140,000 parameters, 500 candidates. On a GPU each search is timed twice: as it is, and as a CUDA graph, as the
simulator runs it where the rule has a closed form. There the candidates are timed by themselves too: one Gram matrix and the damage of
each. Times are medians; the fastest and the slowest stand beside them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from fltrust.attacks import Knowledge, Searched
from fltrust.attacks.attack import Server, take_step
from fltrust.attacks.searched.basis import basis_of, candidates_in, products_of
from fltrust.attacks.searched.damage import damage_of
from fltrust.attacks.searched.rivals import rivals_rows, rivals_with
from fltrust.attacks.searched.scene import aim_of, scene_of
from fltrust.attacks.searched.view import viewed
from fltrust.codec import built
from fltrust.rules import RULES, Rule

CLIENTS, MALICIOUS = 100, 20
WARM = 3


def known_of(rule: Rule, d: int, device: str) -> Knowledge:
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    mean, weights = 0.3 * normal(d), normal(d)
    updates = mean + normal(CLIENTS, d)
    return Knowledge(
        updates[:MALICIOUS],
        updates[MALICIOUS:],
        mean + normal(d),
        n=CLIENTS,
        tolerate=MALICIOUS,
        num_clients=CLIENTS,
        generator=generator,
        client_ids=torch.arange(CLIENTS, device=device),
        round=torch.ones((), dtype=torch.int64, device=device),
        weights=weights,
        global_lr=torch.full((), 0.1, device=device),
        server=Server(rule, rule.init(CLIENTS, weights), torch.ones(CLIENTS, device=device)),
    )


def candidates_alone(attack: Searched, known: Knowledge) -> tuple[int, Callable[[], object]]:
    """How many candidates there are, and what finds their damage."""
    scene = scene_of(known, attack.knowledge, attack.guess_root, attack.draws)
    rivals = rivals_with(attack.knowledge)
    sent, possible, _ = rivals_rows(rivals, known, [rival.init(CLIENTS, known.own[0]) for rival in rivals])
    result = scene.undisturbed()
    aim = aim_of(attack.aim, scene, result)
    view, mean_seen, _ = viewed(scene, attack.ahead)
    basis = basis_of(view, aim, result, torch.zeros_like(result), mean_seen(sent), possible)

    def play() -> torch.Tensor:
        measured = basis._replace(products=products_of(basis.rows, basis.scale))
        return damage_of(view, aim, measured, attack.ahead, attack.coordinates)(candidates_in(measured, CLIENTS, MALICIOUS))

    return len(play()), play


def milliseconds(play: Callable[[], object], device: str, repeats: int) -> list[float]:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    times = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        play()
        wait()
        times.append(1000 * (time.perf_counter() - started))
    return sorted(times)


def graphed(play: Callable[[], object], generator: torch.Generator) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            play()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        play()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", default=["fltrust", "krum", "nnm+geometric-median", "centred-clipping", "dnc", "median"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--d", type=int, default=140_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 0], help="of refinement; 0 shows what the candidates alone cost")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {CLIENTS} clients, {MALICIOUS} malicious, d = {options.d}", flush=True)

    def show(what: str, times: list[float]) -> None:
        print(f"{what:<48} {statistics.median(times):9.3f} ms a round ({times[0]:.3f} to {times[-1]:.3f})", flush=True)

    for rule in options.rules:
        for steps in options.steps:
            made = built(RULES, rule, {"tolerate": MALICIOUS, "trim": MALICIOUS})
            attack = Searched(steps=steps)
            known = known_of(made, options.d, options.device)
            memory = attack.init(CLIENTS, known.own[0])

            def play(attack: Searched = attack, known: Knowledge = known, memory: object = memory) -> object:
                return take_step(attack, replace(known), memory)  # a new one, which remembers nothing that was found in it

            milliseconds(play, options.device, min(WARM, options.repeats))
            show(f"{rule}, {steps} steps", milliseconds(play, options.device, options.repeats))
            if options.device == "cuda" and not attack.on_host_under(made):
                if steps == options.steps[0]:
                    count, alone = candidates_alone(attack, known)
                    times = milliseconds(graphed(alone, known.generator), options.device, options.repeats)
                    show(f"{rule}, {count} candidates alone, as a graph", times)
                show(f"{rule}, {steps} steps, as a graph", milliseconds(graphed(play, known.generator), options.device, options.repeats))


if __name__ == "__main__":
    main()
