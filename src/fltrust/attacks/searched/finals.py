"""The end of a search: what other attacks would send and the search's own finalists, compared on the rule itself."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from fltrust.attacks.searched.basis import PUSHES, Basis, along_of, products_of, usable_and_along
from fltrust.attacks.searched.damage import Closed
from fltrust.attacks.searched.response import has_closed_form
from fltrust.attacks.searched.scene import Aim, Scene
from fltrust.attacks.searched.view import as_seen, without_fallback
from fltrust.rules.fallback import Fallback
from fltrust.rules.pairs import inner_products_with
from fltrust.rules.rule import Aggregate, Received, Rule

_RIVALS, _OWN = 3, 2  # the best by the closed form, which are run on the rule
_PARTS = 1.0, 0.5, 0.25, 0.1  # how far finalists go from honest updates, for a rule that refuses what harms too much


def most_damaging(scene: Scene, aim: Aim, basis: Basis, rivals: Tensor, own: Tensor, ahead: int) -> Tensor:
    """The rows (m, d) with the largest damage, of what rivals (R, m, d) and the search's own finalists (F, m, d) send.

    All of them are run on the rule, with its memory; under a fallback, weaker forms of the finalists too. If the rule is Anchor or has a
    closed form, then only the best three rivals and two finalists that inner products name. These can err where a row lies exactly on a
    threshold of the rule, and rounding decides. Under a fallback, what the rule within does only gives the order: they are run one after
    the other, until none that is left can do more, let through or refused.
    """
    if scene.rule.holds_out:
        own = torch.cat([torch.lerp(scene.updates[: scene.m], own, part) for part in _PARTS])
    rows, within = torch.cat((rivals, own)), without_fallback(scene)
    if aim.is_loss or (scene.rule.holds_out and ahead) or not has_closed_form(as_seen(within.rule, ahead)):
        return _largest(scene, aim, rows, ahead)
    values = _closed(within, aim, basis, rows, ahead)
    if isinstance(scene.rule, Fallback):
        return _largest_let_through(scene, scene.rule, aim, rows, values)
    best = (
        values[: len(rivals)].topk(min(_RIVALS, len(rivals))).indices,
        len(rivals) + values[len(rivals) :].topk(min(_OWN, len(own))).indices,
    )
    return _largest(scene, aim, rows.index_select(0, torch.cat(best)), ahead)


def _largest(scene: Scene, aim: Aim, rows: Tensor, ahead: int) -> Tensor:
    return rows.index_select(0, _damages(scene, aim, rows, ahead).argmax()[None])[0]


def _damages(scene: Scene, aim: Aim, rows: Tensor, ahead: int) -> Tensor:
    return torch.stack([aim.mean_damage(scene, one, ahead) for one in rows]).nan_to_num(-torch.inf, torch.inf)


def _largest_let_through(scene: Scene, rule: Fallback, aim: Aim, rows: Tensor, values: Tensor) -> Tensor:
    """Of rows (F, m, d) whose damage is `values` (F,) if the fallback lets them through. If not, what it does is the same for all."""
    refusing = replace(scene, rule=replace(rule, rule=_Absurd()), memory=scene.memory._replace(rule=()))
    if_refused = float(aim.mean_damage(refusing, rows[0], 0))
    done, best = -math.inf, rows[0]
    for place in values.argsort(descending=True).tolist():
        if done >= max(float(values[place]), if_refused):
            break
        damage = float(aim.mean_damage(scene, rows[place], 0).nan_to_num(-torch.inf, torch.inf))
        if damage > done:
            done, best = damage, rows[place]
    return best


class _Absurd(Rule):
    """What no fallback lets through."""

    def aggregate(self, received: Received) -> Aggregate:
        return Aggregate(torch.full_like(received.updates[0], torch.inf), None)


def _closed(scene: Scene, aim: Aim, basis: Basis, sent: Tensor, ahead: int) -> Tensor:
    """The damage (F,) that rows (F, m, d) do, from their inner products: the basis has them as further vectors."""
    count, m, _ = sent.shape
    needed = slice(m, len(scene.updates) + PUSHES)  # honest updates, root update, centre: rules look at nothing else
    if as_seen(scene.rule, ahead) is not scene.rule:
        basis = _with_sums(scene, aim, basis)
        needed = slice(m, len(basis.rows))
    k, flat = len(basis.rows), sent.flatten(0, 1)  # (F m, d)
    across, within = inner_products_with(flat[None], basis.rows[None, needed])[0], inner_products_with(sent, sent)
    heard, along = usable_and_along(flat, aim.target)
    unit = torch.where(heard, basis.scale, torch.inf)  # broken rows count as zeros
    across = torch.nn.functional.pad((across / unit[:, None] / basis.scale).nan_to_num(0), (m, k - needed.stop))  # (F m, k)
    unit = unit.view(count, m)
    within = (within / unit[:, :, None] / unit[:, None]).nan_to_num(0)
    apart = torch.eye(count, dtype=torch.float64, device=sent.device)[:, None, :, None] * within[:, :, None]  # other candidates never meet
    products = torch.cat((torch.cat((basis.products, across.T), 1), torch.cat((across, apart.reshape(len(flat), -1)), 1)))
    eye = torch.eye(len(products), dtype=torch.float64, device=sent.device)
    centre = torch.nn.functional.pad(basis.centre, (0, len(flat)))
    longer = basis._replace(products=products, eye=eye, centre=centre, along=torch.cat((basis.along, along)))
    return Closed(scene, aim, longer, ahead)(eye[k:].view(count, m, -1)).nan_to_num(-torch.inf, torch.inf)


def _with_sums(scene: Scene, aim: Aim, basis: Basis) -> Basis:
    """The basis of updates as clients send them, the root update, and what Anchor remembers: the search's own has running means."""
    n = len(scene.updates)
    rows = torch.cat((scene.updates, basis.rows[basis.root][None], scene.memory.sums[scene.known.client_ids]))
    centre, along = basis.centre.new_zeros(len(rows)), along_of(rows, aim.target)
    return basis._replace(rows=rows, products=products_of(rows, basis.scale), root=n, centre=centre, along=along, sums=n + 1)
