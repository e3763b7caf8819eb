"""Which configs are worth measuring: an analytic model of time."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil
from pathlib import Path

import torch

from gemm_templates.device import DeviceInfo, device_info
from gemm_templates.errors import UnsupportedProblem
from gemm_templates.families import dense
from gemm_templates.problem import ITEMSIZE, STRIDES_OF, Config, Problem
from gemm_templates.registry import FAMILIES, family_of, overlaps, why_not


@dataclass(frozen=True)
class Candidate:
    """A config, or the vendor call (`config` None), with the model's time in seconds."""

    config: Config | None
    predicted: float
    why: str = ""

    @property
    def label(self) -> str:
        """The config as text, which names times and failures."""
        return "extern" if self.config is None else str(self.config)


def is_legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """Whether the config runs this problem on the device: its tiles fit into shared memory and
    registers, and the operands can be addressed."""
    family = family_of(config)
    if not family.CAN.runs_on(device) or (config.overlap and not overlaps(device)):
        return False
    if problem.multiplies_fp8 and device.capability < (8, 9):
        return False
    return not why_not(problem, config) and family.fits(problem, config, device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds, and what bounds them, as the config's family sees it."""
    return family_of(config).predict(problem, config, device)


def predict_extern(problem: Problem, device: DeviceInfo) -> tuple[float, str]:
    """The vendor's matmul, and an elementwise kernel for the epilogue: it reads and writes the
    result once more. The library has kernels like these, without the cost of descriptors; exact
    f32 products run at about 0.7 of the peak."""
    m, n = problem.m, problem.n
    if m * n == 0:
        return 0.0, "empty"
    if problem.gate:
        both = replace(problem, gate=None, epilogue=None, n=2 * n, b_stride=None, out_stride=None)
        products, why = predict_extern(both, device)
        moved = 3 * m * n * ITEMSIZE[problem.out_dtype]
        more = moved / (0.9 * device.dram_rate) + 0.6 * dense.LAUNCH
        return products + more, why + " + gate kernel"
    problem = problem.even
    m, n, batch = problem.m, problem.n, problem.batch
    a_dtype, b_dtype = problem.operand("a"), problem.operand("b")
    aligned = frozenset({"a", "b", "out"})
    plain = Problem(
        m,
        n,
        problem.k,
        a_dtype,
        b_dtype,
        problem.out_dtype,
        batch=batch,
        aligned=aligned,
        bias=problem.bias,
        input_precision=problem.input_precision,
        fast_accum=problem.fast_accum,
    )
    if device.needs_cuda_cores(problem.a_dtype, problem.input_precision):
        tiles = ceil(m / 128) * ceil(n / 64) * batch / device.sms
        rounding = min(2.0, ceil(tiles) / tiles)
        rate = 0.7 * device.rate(problem.a_dtype, problem.input_precision)
        time, why = problem.flops / rate * rounding + dense.LAUNCH, "arithmetic"
    else:
        # Its split-K is not ours: a few tiles with a long K take no longer than a wait allows.
        like = [family for family in FAMILIES.values() if family.CAN.vendor]
        made = [replace(c, maps=False) for f in like for c in f.configs(plain, device)]
        times = [predict(plain, c, device) for c in made if is_legal(plain, c, device)]
        time, why = min(times, default=(problem.flops / device.matrix_rate, "arithmetic"))
        if time > 5 * dense.DESCRIPTORS:
            time -= 0.5 * dense.DESCRIPTORS
        time = max(time, problem.flops / (_vendor_share(problem) * device.matrix_rate))
    for tensor, prologue, elements in (
        ("a", problem.prologue_a, m * problem.k * batch),
        ("b", problem.prologue_b, n * problem.k * batch),
    ):
        if prologue:  # a kernel of its own, which writes what the matmul reads
            passed = elements * (problem.loaded(tensor) + ITEMSIZE[problem.operand(tensor)])
            time += passed / (0.9 * device.dram_rate) + 0.6 * dense.LAUNCH
    if problem.epilogue and not problem.epilogue.free:
        out_size = ITEMSIZE[problem.out_dtype]
        traffic = m * n * batch * (2 * out_size + problem.epilogue.bytes_per_element)
        work = m * n * batch * (dense.STORE + problem.epilogue.instructions)
        time += max(traffic / (0.9 * device.dram_rate), work / (device.sms * 1.1 * dense.LANES))
        time += 0.6 * dense.LAUNCH  # the second of two launches that follow each other
        why += " + epilogue kernel"
    return time, why


def _vendor_share(problem: Problem) -> float:
    """The part of the tensor cores' rate that the vendor's kernels reach. Rows of 16-bit elements
    that begin at odd places cost most of it, those that begin at even ones two thirds (H200, 2049
    and 4097 cubed, logits of 30522 and 50257: 95 to 148 and 245 of 790 TFLOP/s)."""
    share = 1.0
    for tensor, dtype in (
        ("a", problem.a_dtype),
        ("b", problem.b_dtype),
        ("out", problem.out_dtype),
    ):
        rows, columns = STRIDES_OF[tensor][:2]
        lead = rows if problem.dims()[columns] == 1 else columns
        if ITEMSIZE[dtype] == 2 and not problem.is_multiple(lead, 8):
            share = min(share, 0.31 if problem.is_multiple(lead, 2) else 0.14)
    return share


def offered(problem: Problem, device: DeviceInfo) -> list[Config]:
    """What every family proposes, legal or not; launches overlap where the device can do that."""
    return [
        replace(config, overlap=overlaps(device))
        for family in FAMILIES.values()
        if family.CAN.runs_on(device)
        for config in family.configs(problem, device)
    ]


def candidates(
    problem: Problem,
    device: DeviceInfo | torch.device | str = "cuda",
    *,
    limit: int = 6,
    configs: Sequence[Config] | None = None,
) -> list[Candidate]:
    """The `limit` candidates with the least predicted time, best first; the vendor call is
    always among them. Every config is legal for the device. Tiles of different size, or with
    another number of them on a multiprocessor, come before variants of one: the model knows
    these better than stages, and the measurement decides. Two places are kept for
    what does not share K over programs, where that is predicted to be nearly as fast.

    configs: by default what every family proposes."""
    info = device if isinstance(device, DeviceInfo) else device_info(device)
    return [*_candidates(problem, info, limit, None if configs is None else tuple(configs))]


@lru_cache(1 << 10)
def _candidates(
    problem: Problem, info: DeviceInfo, limit: int, configs: tuple[Config, ...] | None
) -> tuple[Candidate, ...]:
    """What compiles candidates ahead asks for them, and what measures them does again."""
    found = []
    for config in offered(problem, info) if configs is None else configs:
        if is_legal(problem, config, info) and not _too_large(problem, config):
            found.append(Candidate(config, *predict(problem, config, info)))
    found.sort(key=lambda c: c.predicted)  # equal ones stay in the order of the lists above
    first: list[Candidate] = []
    rest: list[Candidate] = []
    seen: set[tuple[object, ...]] = set()
    for candidate in found:
        c = candidate.config
        assert c is not None
        persistent = family_of(c).CAN.persistent
        together = dense.resident(problem, c, info, persistent=persistent)
        kind = (c.template, c.block_m * c.block_n, together, c.split_k)
        (rest if kind in seen else first).append(candidate)
        seen.add(kind)
    near = [c for c in first if c.predicted <= 1.3 * first[0].predicted]
    found = _with_whole([*near, *rest, *first[len(near) :]], max(0, limit - 1))
    found = [*found, Candidate(None, *predict_extern(problem, info))]
    return tuple(sorted(found, key=lambda c: (c.predicted, c.label)))


# Seconds by which the model may be wrong about what sharing K costs: 16 x 3072 x 768 took 7.4 us
# so on an H200 and 5.2 whole, where it says 6.7 and 9.1.
_SHARING = 3e-6


def _with_whole(found: Sequence[Candidate], limit: int) -> list[Candidate]:
    """The first `limit`, but two of them whole, if there are two within `_SHARING` of the first.

    [k2, k4, k8, k2, k16, whole, k4, whole] -> [k2, k4, k8, whole, whole]
    """
    taken = list(found[:limit])
    if limit < 3 or len(found) <= limit:
        return taken
    latest = found[0].predicted + _SHARING
    missing = 2 - sum(not _shares(c) for c in taken)
    whole = [c for c in found[limit:] if not _shares(c) and c.predicted <= latest]
    for candidate in whole[: max(0, missing)]:
        last = max(i for i, c in enumerate(taken) if _shares(c))
        del taken[last]
        taken.append(candidate)
    return taken


def _shares(candidate: Candidate) -> bool:
    """Whether several programs share the K of every tile (Gluon: of the last tiles alone)."""
    config = candidate.config
    return bool(config and config.split_k > 1 and not family_of(config).CAN.shares_last)


# Templates that are all predicted to take this many times the vendor's call are not measured: the
# model is not off by as much.
HOPELESS = 1.25

# Where the vendor's call is predicted to take this many times the first template, that template is
# waited for, whatever time is left.
SLOW = 1.5


def worth_measuring(found: Sequence[Candidate]) -> bool:
    """Whether some template may be faster than the vendor's call."""
    extern = min((c.predicted for c in found if c.config is None), default=float("inf"))
    return any(c.config is not None and c.predicted <= HOPELESS * extern for c in found)


def best_config(problem: Problem, device: DeviceInfo | torch.device | str = "cuda") -> Config:
    """The config with the least predicted time. Raises UnsupportedProblem if none is legal."""
    for candidate in candidates(problem, device):
        if candidate.config is not None:
            return candidate.config
    raise UnsupportedProblem(f"{problem}: no config fits the device")


def explain(
    problem: Problem, found: Sequence[Candidate], measured: dict[str, float] | None = None
) -> str:
    """A table of predicted and measured times in microseconds, fastest first."""
    times = measured or {}
    rows = sorted(found, key=lambda c: (times.get(c.label, c.predicted), c.label))
    lines = [
        str(problem),
        f"{'config':<26}{'predicted':>10}{'measured':>10}{'TFLOP/s':>9}  bound by",
    ]
    for c in rows:
        time = times.get(c.label)
        shown = f"{time * 1e6:.1f}" if time is not None else "-"
        speed = f"{problem.flops / time / 1e12:.0f}" if time else "-"
        lines.append(f"{c.label:<26}{c.predicted * 1e6:>10.1f}{shown:>10}{speed:>9}  {c.why}")
    return "\n".join(lines)


@cache
def model_digest() -> str:
    """Tells the candidates of this model from those of another version."""
    folder = Path(__file__).parent
    files = [folder / f"{name}.py" for name in ("model", "device", "epilogue_cost", "registry")]
    files += sorted(p for p in (folder / "families").rglob("*.py") if p.name != "kernel.py")
    data = b"".join(p.read_bytes() for p in files)
    return hashlib.sha256(data).hexdigest()[:12]


def _too_large(problem: Problem, config: Config) -> bool:
    """A tile of twice the matrix wastes half of its work; but pairs have none of less than 64 rows,
    and read weights."""
    least = 64 if problem.gate else 16
    return (config.block_m > least and config.block_m >= 2 * problem.m) or (
        config.block_n > 16 and config.block_n >= 2 * problem.n
    )
