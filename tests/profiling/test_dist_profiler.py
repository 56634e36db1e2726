"""``profiler.tool=vtune`` in real verl's ``DistProfiler``, as a real ITT collector sees it."""

from __future__ import annotations

from pathlib import Path

import itt_collector
import wheels

from .conftest import Child

#: A worker as verl's own are: stages decorated by ``DistProfiler.annotate``, and a marker outside of them.
WORKER = """
from types import SimpleNamespace
from verl.utils.profiler import DistProfiler, ProfilerConfig, marked_timer

class Worker:
    def __init__(self, tool_config=None, rank=0, **config):
        config = dict(tool="vtune", enable=True, ranks=[0], tool_config=tool_config) | config
        self.profiler = DistProfiler(rank, ProfilerConfig(**config))
        self.runs = 0

    @DistProfiler.annotate(color="red", role="train_batch")
    def train(self, value):
        return value + 1

    @DistProfiler.annotate(message="named")
    def named(self):
        pass

    @DistProfiler.annotate()
    def anonymous(self):
        pass

    @DistProfiler.annotate(role="raises")
    def raises(self):
        self.runs += 1
        raise KeyError("the user's own")

def between():
    with marked_timer("between", {}):
        pass
"""

STEPS = """
worker = Worker()
assert worker.train(1) == 2
worker.profiler.step()  # verl steps through what isn't profiled, too
worker.profiler.start(role="train", profile_step=2)
worker.train(1); worker.named(); worker.anonymous(); between(); worker.profiler.step()
worker.profiler.stop()
between()
assert worker.train(1) == 2
worker.profiler.start(); worker.train(1); worker.profiler.stop(); worker.profiler.stop()
"""

DISCRETE = """
for tool_config in ({"vtune": {"discrete": True}}, {"discrete": True}, SimpleNamespace(discrete=True)):
    worker = Worker(tool_config)
    worker.profiler.start()
    between(); worker.train(1); between(); worker.named(); worker.profiler.step()
    try:
        worker.raises()
    except KeyError:
        pass
    worker.profiler.stop()
"""

RAISES = """
worker = Worker()
worker.profiler.start()
try:
    worker.raises()
except KeyError as error:
    assert error.args == ("the user's own",) and worker.runs == 1
else:
    raise AssertionError
worker.train(1)
worker.profiler.stop()
"""

RANKS = """
asked_for = (0, dict(ranks=[1])), (1, dict(ranks=[1])), (3, dict(ranks=[], all_ranks=True)), (0, dict(enable=False))
for rank, asked in asked_for:
    worker = Worker(rank=rank, **asked)
    worker.profiler.start()
    worker.train(rank)
    worker.profiler.stop()
"""

COLOCATED = """
actor, critic = Worker(), Worker()
actor.profiler.start(); critic.profiler.start()
actor.train(1)
actor.profiler.stop()
critic.train(1)
critic.profiler.stop()
"""


def stages(*names: str) -> list[str]:
    return [word for name in names for word in (name, "end")]


def test_what_the_collector_receives(child: Child, log: Path, verl: Path) -> None:
    """Started paused, it gets the profiled steps of the ranks asked for, balanced whatever a stage does."""
    child(
        WORKER + STEPS + DISCRETE + RAISES + RANKS + COLOCATED, collect=True, start_paused=True, xpu=True, path=(verl,)
    )
    calls = itt_collector.read(log)
    itt_collector.ranges(calls)
    received = [
        call.name if call.call in ("begin", "event") else call.call for call in calls if call.call != "attached"
    ]
    one, train = ["resume", *stages("train_batch"), "pause"], stages("train_batch")
    steps = ["resume", *stages("train_batch", "named", "anonymous", "between"), "step", "pause", *one]
    discrete = [word for name in ("train_batch", "named", "raises") for word in ("resume", *stages(name), "pause")]
    raises = ["resume", *stages("raises", "train_batch"), "pause"]
    ranks = one * 2
    assert received == [*steps, *discrete * 3, *raises, *ranks, "resume", *train * 2, "pause"]


TRAINERS = """
from types import SimpleNamespace as Of
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.profiler import marked_timer

class Workers:
    start_profile = stop_profile = lambda self, **kwargs: None

def between(name):
    with marked_timer(name, {}):
        pass

def trainer(cls, tool, **more):
    class Made(cls):
        __init__ = step = save = lambda self, *args, **kwargs: None
    Made.__abstractmethods__ = frozenset()
    made = Made()
    profiler = Of(tool=tool, steps=[2], profile_continuous_steps=False)
    known = dict(actor_rollout_wg=Workers(), use_reference_policy=False, use_critic=False, total_training_steps=3)
    vars(made).update(known, config=Of(global_profiler=profiler), **more)
    return made

for tool in ("vtune", "torch"):
    told = trainer(RayPPOTrainer, tool)
    keeps = trainer(PPOTrainer, tool, prev_step_profile=False, curr_step_profile=False)
    for step in (1, 2, 3):
        told.global_steps = keeps.global_steps = step
        told._start_profiling(step == 2); between(f"told {step}"); told._stop_profiling(step == 2)
        keeps._start_profiling(); between(f"keeps {step}"); keeps._stop_profiling()
"""


def test_a_trainer_collects_its_own_process_with_its_workers(child: Child, log: Path, verl: Path, core: Path) -> None:
    child(TRAINERS, collect=True, start_paused=True, xpu=True, path=(verl, core))
    received = [(call.call, call.name) for call in itt_collector.read(log) if call.call != "attached"]
    one = ("resume", "-"), ("begin", "{}"), ("end", "-"), ("pause", "-")
    assert received == [(call, name.format(label)) for label in ("told 2", "keeps 2") for call, name in one]


def test_steps_that_are_not_profiled_are_not_marked(child: Child, log: Path) -> None:
    """A collector that runs from the start would see them."""
    child(WORKER + STEPS, collect=True, xpu=True, path=(wheels.installed("verl==0.9.1"),))
    assert [call.name for call in itt_collector.read(log) if call.call == "event"] == ["step"]


def test_what_somebody_else_set_up_stays(child: Child, verl: Path) -> None:
    child(
        WORKER
        + """
def implementation(**config):
    return type(DistProfiler(0, ProfilerConfig(tool_config=None, **config))._impl).__name__

assert implementation(tool="vtune") == "VTuneProfiler"
assert implementation(tool="torch_memory") == "TorchMemoryProfiler"
assert implementation(tool="unknown") == implementation(tool=None) == "_NoOpProfiler"

class Theirs:
    pass

class Knowing(DistProfiler):  # somebody's, who knows vtune
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._impl = Theirs()

assert type(Knowing(0, ProfilerConfig(tool="vtune", tool_config=None))._impl) is Theirs
""",
        xpu=True,
        path=(verl,),
    )


def test_why_nothing_is_collected_is_said_once(child: Child) -> None:
    use = """
for _ in range(2):
    worker = Worker()
    worker.profiler.start(); worker.train(1); worker.profiler.stop()
print("went on")
"""
    no_ittapi = "import sys; sys.modules['ittapi'] = None  # as if it were not installed\n"

    def said(code: str, **options: object) -> dict[str, int]:
        done = child(code, xpu=True, path=(wheels.installed("verl==0.9.1"),), **options)
        assert done.stdout.endswith("went on\n")
        words = "no collector is attached", "pip install ittapi"
        return {word: done.stderr.count(word) for word in words if word in done.stderr}

    disabled = WORKER + use.replace("Worker()", "Worker(enable=False)")
    assert said(disabled + use) == {"no collector is attached": 1}  # a profiler that is off has nothing to say
    assert said(no_ittapi + WORKER + use) == {"pip install ittapi": 1}
    assert said(no_ittapi + WORKER + use, collect=True) == {"pip install ittapi": 1}


def test_who_left_it_out_and_asks_for_it_is_told_once(child: Child, verl: Path) -> None:
    code = (
        WORKER
        + """
import verl_xpu_shim
Worker(enable=False)
Worker(tool="torch_memory")
print("asked", file=sys.stderr)
for _ in range(2):
    worker = Worker()
    worker.profiler.start(); assert worker.train(1) == 2; worker.profiler.stop()
"""
    )
    said = child("import sys\n" + code, xpu=True, path=(verl,), VERL_XPU_SHIM_DISABLE="dist_profiler").stderr
    before, _, after = said.partition("asked")
    told = "profiler.tool=vtune does nothing in this process: VERL_XPU_SHIM_DISABLE=dist_profiler leaves out"
    assert (before.count(told), after.count(told)) == (0, 1)
    no_xpu = child("import sys\n" + code, path=(verl,), VERL_XPU_SHIM_DISABLE="dist_profiler").stderr
    assert told not in no_xpu
