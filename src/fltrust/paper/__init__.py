"""The paper's tables and figures as data: which experiments stand where, and what the paper printed there."""

from fltrust.paper.choices import CHOICES, RATES, STUDY
from fltrust.paper.exhibit import PUBLISHED, Cell, Exhibit, Figures
from fltrust.paper.figures import ADAPTIVE, CLIENTS, CONVERGENCE, MALICIOUS, ROOT_SIZE
from fltrust.paper.tables import METHODS, ROOT_BIAS, VARIANTS

EXHIBITS: dict[str, Exhibit] = {
    exhibit.name: exhibit
    for exhibit in (METHODS, VARIANTS, ROOT_BIAS, CONVERGENCE, ROOT_SIZE, CLIENTS, MALICIOUS, ADAPTIVE, CHOICES, RATES, STUDY)
}

__all__ = ["EXHIBITS", "PUBLISHED", "Cell", "Exhibit", "Figures"]
