"""The ids of the suite: what is registered under each. Nothing here imports JAX, so that listings are instant."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium

from ..errors import UserError, unknown

if TYPE_CHECKING:
    from .environment import Environment

NAMESPACE = "equimorph"

# Prefixes of ids that other libraries' environments have here, and the functions that bring them in.
LIBRARIES = {
    "gymnax": ".adapters.gymnax:make_gymnax",
    "gymnasium": ".adapters.gymnasium_host:make_host",
    "jaxmarl": ".adapters.jaxmarl_in:make_from_jaxmarl",
    "brax": ".adapters.brax:make_brax",
    "jumanji": ".adapters.jumanji:make_jumanji",
}


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What is registered under an id.

    Attributes:
        id: such as "BrockMirman-v0".
        entry_point: the environment's class (or a factory with its keyword arguments), or "module:Class", imported
            when first made.
        options: constructor arguments.
        calibrations: named sets of overrides: constructor options and parameters.
        summary: one line for listings.
    """

    id: str
    entry_point: str | Callable[..., Environment]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    calibrations: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    summary: str = ""

    def load(self) -> Callable[..., Environment]:
        """The class or factory behind the id."""
        if not isinstance(self.entry_point, str):
            return self.entry_point
        try:
            return load_attribute(self.entry_point)
        except (ModuleNotFoundError, AttributeError) as error:
            raise UserError(f"environment {self.id!r} is registered as {self.entry_point!r}, but {error}") from None


_specs: dict[str, EnvSpec] = {}


def load_attribute(place: str) -> Any:
    """What stands at "module:name"; a module that begins with a dot is of this package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module, __name__.rpartition(".")[0]), name)


def register(
    id: str,
    entry_point: str | Callable[..., Environment],
    *,
    calibrations: Mapping[str, Mapping[str, Any]] | None = None,
    summary: str = "",
    **options: Any,
) -> None:
    """Register an environment, so that `make(id)`, the command line and `gymnasium.make("equimorph/" + id)` know it.

    Args:
        id: a new id, by convention "Name-v0".
        entry_point: a subclass of `Environment`, a factory, or "module:Class".
        calibrations: named sets of overrides for `make(id, calibration=...)`.
        summary: one line for listings.
        **options: constructor arguments that every `make` passes.

    Raises:
        UserError: the id is empty, taken or not one that Gymnasium could read, or the entry point is none.
    """
    if not isinstance(id, str) or not id:
        raise UserError(f"an environment id must be text that is not empty, got {id!r}")
    if not re.fullmatch(r"[\w.-]+", id):
        raise UserError(f"an environment id is made of letters, digits, '_', '.' and '-', got {id!r}")
    if id in _specs or id in gymnax_ids():
        raise UserError(f"environment {id!r} is already registered; choose another id or the next version")
    if not callable(entry_point) and not (isinstance(entry_point, str) and entry_point.count(":") == 1):
        raise UserError(f"the entry point of {id!r} must be a class, a factory or 'module:Class', got {entry_point!r}")
    _add(EnvSpec(id, entry_point, dict(options), dict(calibrations or {}), summary))


def _add(spec: EnvSpec) -> None:
    """Keep what is registered, for ourselves and for Gymnasium.

    No `max_episode_steps`: the environments end their episodes themselves, and Gymnasium's time limit on top would call
    the end of a task truncation.
    """
    _specs[spec.id] = spec
    name = f"{NAMESPACE}/{spec.id}"
    if name not in gymnasium.registry:  # test runners import the package's root under a second name
        adapter = "equimorph.envs.adapters.gymnasium"
        gymnasium.register(
            name,
            entry_point=f"{adapter}:single_environment",
            vector_entry_point=f"{adapter}:vector_environment",
            kwargs={"env_id": spec.id},
        )


def list_envs() -> list[str]:
    """The ids of this suite's environments, sorted. gymnax's own ids work in `make` too."""
    return sorted(_specs)


def spec(id: str) -> EnvSpec:
    """What is registered under `id`.

    Raises:
        UserError: no such id; the message names the nearest one.
    """
    name = _imported(id)
    if name not in _specs:
        raise unknown("environment", name, [*_specs, *gymnax_ids()])
    return _specs[name]


def _imported(id: str) -> str:
    """The id behind "module:id"; the module, which registers it, is imported first."""
    module, colon, name = id.rpartition(":")
    if not colon:
        return id
    if not module:
        raise UserError(f"the id {id!r} names no module before its ':'; an environment of your own is module:id")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {module!r}, which should register environment {name!r}: {error}") from None
    return name


def is_foreign(id: str) -> bool:
    """Whether an id is another library's: one with its prefix, or a bare id of gymnax's that nobody took."""
    library, colon, _ = id.partition(":")
    return library in LIBRARIES if colon else id not in _specs and id in gymnax_ids()


def gymnax_ids() -> list[str]:
    """The ids that come from gymnax."""
    import gymnax

    return list(gymnax.registered_envs)


def _builtin(id: str, entry_point: str, *, calibrations: Mapping[str, Mapping[str, Any]], summary: str) -> None:
    _add(EnvSpec(id, entry_point, {}, calibrations, summary))


_builtin(
    "BrockMirman-v0",
    ".economies.brock_mirman:BrockMirman",
    calibrations={
        "default": {},
        "patient": {"beta": 0.99, "rho": 0.95, "sigma": 0.01},
        "externality": {"eta": 0.2},
    },
    summary="log utility, full depreciation: save alpha*beta of output, whatever the shock (Brock and Mirman 1972)",
)
_builtin(
    "StochasticAK-v0",
    ".economies.stochastic_ak:StochasticAK",
    calibrations={"default": {}, "stress": {"gamma": 5.0, "mu": 0.05}},
    summary="risky linear returns, power utility: a share that depends on the shock's law (Levhari, Srinivasan 1969)",
)
_builtin(
    "CellCount-v0",
    ".tissues.cell_count:CellCount",
    calibrations={"default": {}, "hazard": {"mode": "hazard"}, "secretion": {"mode": "secretion", "target": 20.0}},
    summary="organ size control: cells decide on dividing so that n* of them are there at the end",
)
_builtin(
    "CellCountPooled-v0",
    ".tissues.cell_count:pooled",
    calibrations={"default": {}, "secretion": {"mode": "secretion", "target": 20.0}},
    summary="organ size control from above: one rate, or two secretion levels, for all cells; a single agent",
)
_builtin(
    "Elongation-v0",
    ".tissues.elongation:Elongation",
    calibrations={
        "default": {},
        "unoriented": {"oriented": False},
        "decision": {"mode": "decision"},
        "deshpande": {
            "oriented": False,
            "dimensions": 3,
            "capacity": 150,
            "founders": 15,
            "max_steps_in_episode": 135,
            "substeps": 2,
            "dt": 0.15,
            "kT": 0.0,
        },
    },
    summary="axis extension: cells choose who divides and along which axis, so that the tissue becomes long",
)
_builtin(
    "TargetShape-v0",
    ".tissues.target_shape:TargetShape",
    calibrations={"default": {}, "L": {"shape": "L"}, "V": {"shape": "V"}},
    summary="growth to a silhouette: cells divide and push so that they fill an ellipse, an L or a V",
)
_builtin(
    "TypeBalance-v0",
    ".tissues.type_balance:TypeBalance",
    calibrations={"default": {}, "silent": {"secreting": False}},
    summary="two cell types kept equal in number, one division at a time",
)
_builtin(
    "WoundHealing-v0",
    ".tissues.wound_healing:WoundHealing",
    calibrations={"default": {}, "homeostasis": {"wound_radius": 0.0}},
    summary="homeostasis under death, and repair after a disc of cells is ablated",
)
_builtin(
    "Chemotaxis-v0",
    ".tissues.chemotaxis:Chemotaxis",
    calibrations={"default": {}},
    summary="active Brownian cells swim to the source of a chemical; differentiable from end to end",
)
_builtin(
    "Aggregation-v0",
    ".tissues.aggregation:Aggregation",
    calibrations={"default": {}},
    summary="active Brownian cells find each other by smell; differentiable from end to end",
)
_builtin(
    "FrenchFlag-v0",
    ".tissues.french_flag:FrenchFlag",
    calibrations={"default": {}, "logits": {"mode": "logits"}},
    summary="positional information: noisy morphogens tell cells of a sheet of any length which stripe is theirs",
)
_builtin(
    "StressHomogeneity-v0",
    ".tissues.stress_homogeneity:StressHomogeneity",
    calibrations={"default": {}},
    summary="even growth: cells temper a morphogen's drive to divide by the pressure that they feel",
)
_builtin(
    "ImmunePatrol-v0",
    ".tissues.immune_patrol:ImmunePatrol",
    calibrations={"default": {}, "moves": {"goals": False}, "open": {"obstacles": 0.0}},
    summary="immune cells search a tissue with obstacles, staying in contact: a goal, and a move towards it",
)
_builtin(
    "RBCLabor-v0",
    ".economies.rbc_labor:RBCLabor",
    calibrations={
        "default": {},
        "volatile": {"sigma": 0.035},
        "risk_averse": {"tau": 50.0, "sigma": 0.035},
        "capped": {"labor_cap": "mean"},
    },
    summary="business cycles with saving and labour, the latter capped in a variant (Aruoba et al. 2006)",
)
_builtin(
    "OLG-v0",
    ".economies.olg:OLG",
    calibrations={"default": {}, "atomistic": {"households": 16}},
    summary="overlapping generations, log utility: known saved shares by age at any prices (Krueger and Kubler 2004)",
)
_builtin(
    "Growth-v0",
    ".economies.growth:Growth",
    calibrations={
        "default": {},
        "g1": {"gamma": 1.0},
        "g2": {},
        "g5": {"gamma": 5.0},
        "annual_log": {"normalised": False, "gamma": 1.0, "delta": 0.1, "rho": 0.9, "sigma": 0.04},
    },
    summary="stochastic growth, power utility, partial depreciation (Brock and Mirman 1972; calibrated as is usual)",
)
_builtin(
    "BufferStock-v0",
    ".economies.buffer_stock:BufferStock",
    calibrations={
        "default": {},
        "hark": {},
        "two_point": {
            "transitory": "two_point",
            "permanent_points": 1,
            "beta": 0.95,
            "interest": 1.02,
            "growth": 1.0,
            "sd_permanent": 0.0,
            "sd_transitory": 0.5,
            "unemployment": 0.0,
        },
        "deaton": {
            "transitory": "normal",
            "permanent_points": 1,
            "beta": 1 / 1.1,
            "interest": 1.05,
            "growth": 1.0,
            "sd_permanent": 0.0,
            "unemployment": 0.0,
        },
        "carroll": {"unemployment": 0.005, "benefit": 0.0},
    },
    summary="saving with risky income and a borrowing limit that binds for the poor (Deaton 1991; Carroll 1997)",
)
_builtin(
    "FishWar-v0",
    ".economies.fish_war:FishWar",
    calibrations={"default": {}, "five": {"num_players": 5}},
    summary="players draw on one stock: Markov-perfect against cooperative, both known (Levhari and Mirman 1980)",
)
_builtin(
    "LogitPricing-v0",
    ".economies.logit_pricing:LogitPricing",
    calibrations={
        "default": {},
        "grid": {"grid": 15},
        "calvano": {"grid": 15, "memory": 1},
    },
    summary="firms set prices under logit demand, once or for ever: Nash, monopoly, collusion (Calvano et al. 2020)",
)
_builtin(
    "Auction-v0",
    ".economies.auction:auction",
    calibrations={"default": {}, "double": {"format": "double"}},
    summary="sealed bids under private values: first price (Vickrey 1961), double (Chatterjee and Samuelson 1983)",
)
_builtin(
    "LinearTax-v0",
    ".economies.linear_tax:LinearTax",
    calibrations={"default": {}},
    summary="a planner sets a linear income tax; workers answer by their formula (Sheshinski 1972)",
)
_builtin(
    "Aiyagari-v0",
    ".economies.aiyagari:Aiyagari",
    calibrations={
        "default": {},
        "general": {"equilibrium": "general"},
        "histogram": {"equilibrium": "general", "households": "histogram"},
    },
    summary="saving with risky wages, at given prices or in general equilibrium of many households (Aiyagari 1994)",
)
_builtin(
    "KrusellSmith-v0",
    ".economies.krusell_smith:KrusellSmith",
    calibrations={"default": {}, "histogram": {"households": "histogram"}},
    summary="unemployment risk in booms and slumps: wealth's distribution moves prices (Krusell and Smith 1998)",
)
_builtin(
    "Irreversible-v0",
    ".economies.irreversible:Irreversible",
    calibrations={"default": {}, "unconstrained": {"phi": 0.0}},
    summary="growth with a floor under investment that binds in a third of periods (Guerrieri and Iacoviello 2015)",
)
_builtin(
    "IRBC-v0",
    ".economies.irbc:IRBC",
    calibrations={
        "default": {},
        "smooth": {},
        "adjustment": {"delta": 0.01, "ka": 0.5, "ies_first": 0.25, "ies_last": 1.0},
        "irreversible": {"delta": 0.01, "ka": 0.5, "ies_first": 0.25, "ies_last": 1.0, "irreversible": True},
    },
    summary="any number of countries, one planner: capital goes where it is productive (Juillard and Villemot 2011)",
)
_builtin(
    "Cournot-v0",
    ".economies.cournot:cournot",
    calibrations={
        "default": {},
        "asymmetric": {"num_firms": 3, "c": [1.0, 2.0, 3.0]},
        "adjustment": {"dynamics": "adjustment", "b": 2.0, "c": 0.0},
    },
    summary="firms choose quantities, once or with costs of adjustment: Nash, Markov-perfect and joint optimum known",
)
