"""The template families, by the name that `Config.template` gives.

A family is a module that declares what it can do, and of five functions:

    CAN                              -> Abilities, what it takes besides a plain product
    configs(problem, device)         -> configs worth a look, legal or not
    why_not(problem, config)         -> empty, or why its kernels cannot compute this so
    fits(problem, config, device)    -> whether memory and registers of the device hold it
    predict(problem, config, device) -> (seconds, what bounds them)
    plan(problem, config, name)      -> Plan, the text of its kernels
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Protocol

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.batched_tma import family as batched_tma
from gemm_templates.families.decompose_k import family as decompose_k
from gemm_templates.families.gated import family as gated
from gemm_templates.families.gated_gluon import family as gated_gluon
from gemm_templates.families.gemv import family as gemv
from gemm_templates.families.gluon import family as gluon
from gemm_templates.families.gluon_batched import family as gluon_batched
from gemm_templates.families.gluon_scaled import family as gluon_scaled
from gemm_templates.families.grouped import family as grouped
from gemm_templates.families.split_k import family as split_k
from gemm_templates.families.tiled import family as tiled
from gemm_templates.families.tma import family as tma
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import Config, Problem
from triton_rt import overlapped


class Family(Protocol):
    """What the module of every family has; all but `CAN` are its functions."""

    CAN: Abilities

    def configs(self, problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
        """What is worth a look for a problem, legal or not."""
        ...

    def why_not(self, problem: Problem, config: Config) -> str:
        """Empty if the kernels compute this problem with this schedule, else what was expected."""
        ...

    def fits(self, problem: Problem, config: Config, device: DeviceInfo) -> bool:
        """Whether the device has the memory and the registers for it, and suits it at all."""
        ...

    def predict(self, problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
        """Seconds, and what bounds them."""
        ...

    def plan(self, problem: Problem, config: Config, name: str) -> Plan:
        """The launches, the first of which is the kernel `name`."""
        ...


FAMILIES: Mapping[str, Family] = {
    "tiled": tiled,
    "tma": tma,
    "gluon": gluon,
    "gluon_scaled": gluon_scaled,
    "gated": gated,
    "gated_gluon": gated_gluon,
    "split_k": split_k,
    "decompose_k": decompose_k,
    "gemv": gemv,
    "batched_tma": batched_tma,
    "grouped": grouped,
    "gluon_batched": gluon_batched,
}


def able(ability: str) -> frozenset[str]:
    """The names of the families that have an ability of `Abilities`."""
    return frozenset(name for name, family in FAMILIES.items() if getattr(family.CAN, ability))


def family_of(config: Config) -> Family:
    """Raises InvalidConfig if there is none of that name."""
    found = FAMILIES.get(config.template)
    if found is None:
        raise InvalidConfig(f"template {config.template!r}: expected one of {list(FAMILIES)}")
    return found


def why_not(problem: Problem, config: Config) -> str:
    """Empty if the config's family can compute the problem with it, and all that surrounds it.

    Raises InvalidConfig if there is no such family."""
    family = family_of(config)
    can = family.CAN
    if problem.gate is not None and not can.gate:
        return f"gated problems are for {sorted(able('gate'))}"
    if problem.jagged and not can.jagged:
        return f"jagged problems are for {sorted(able('jagged'))}"
    if (problem.prologue_a or problem.prologue_b) and not can.prologues:
        return f"prologues are for {sorted(able('prologues'))}"
    if problem.pick_b and (not can.prologues or problem.pick_b.columns % config.block_n):
        among = sorted(able("prologues"))
        return f"tiles of {problem.pick_b.columns} columns or a part of them are for {among}"
    if problem.block_scale and not can.block_scale:
        return f"block scales are for {sorted(able('block_scale'))}"
    if problem.multiplies_fp8 and can.fp8 != "all" and not (problem.fast_accum and can.fp8):
        of = sorted(name for name in able("fp8") if FAMILIES[name].CAN.fp8 == "all")
        return f"fp8: {of}, with fast_accum {sorted(able('fp8') - {*of})}"
    if problem.sums == "i32" and not can.integers:
        return f"integers are for {sorted(able('integers'))}"
    if problem.multiplies_bytes and config.block_k < 32:
        return "elements of 8 bits need block_k >= 32"
    if problem.block_scale and problem.block_scale.block_k % config.block_k:
        return f"block_k does not divide the {problem.block_scale.block_k} that share a scale"
    return family.why_not(problem, config)


@lru_cache(1 << 10)
def make_plan(problem: Problem, config: Config, name: str | None = "matmul") -> Plan:
    """The kernels for a problem; the first is called `name`, or (None) by its sizes and a digest of
    all texts, so that who measures a kernel and who runs it, for whichever matmul, compile it once.

    Raises InvalidConfig if the config cannot run this problem at all (device limits are the
    business of `candidates`), InvalidProblem if a name is taken."""
    if wrong := why_not(problem, config):
        raise InvalidConfig(f"{config} for {problem}: {wrong}")
    family = family_of(config)
    if name is None:
        steps = [replace(step.source, name="") for step in family.plan(problem, config, "_").steps]
        name = f"matmul_{problem.sizes}_{sha256(repr(steps).encode()).hexdigest()[:8]}"
    plan = family.plan(problem, config, name)
    if not config.overlap:
        return plan
    return replace(plan, steps=tuple(_overlapped(step) for step in plan.steps))


def _overlapped(step: TemplateKernel) -> TemplateKernel:
    """Launched as the kernel before it in the stream ends, for which it waits."""
    return step if step.source.pdl else replace(step, source=overlapped(step.source))


def overlaps(device: DeviceInfo) -> bool:
    """Whether launches may overlap those before them on a device."""
    return device.capability >= HOPPER


def source(problem: Problem, config: Config, name: str = "matmul") -> TemplateKernel:
    """The kernel of a config that needs one launch and no workspace; raises like `make_plan`."""
    plan = make_plan(problem, config, name)
    if len(plan.steps) > 1 or plan.workspaces:
        raise InvalidConfig(
            f"{config}: {len(plan.steps)} launches and {len(plan.workspaces)} workspaces; "
            "`make_plan` gives them all"
        )
    return plan.steps[0]
