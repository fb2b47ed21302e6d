"""A plan in words, one line a step."""

import csv
import io
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sparkdeploy import labels
from sparkdeploy.checks.report import Verdict, finding_lines, legend, not_seen, signed
from sparkdeploy.estimate.report import treated_lines
from sparkdeploy.image.mods import ModFiles
from sparkdeploy.node.container import LOG_DRIVER, LOG_SIZE, ContainerSpec, Mount
from sparkdeploy.plan.images import mods_of, unresolved_tag
from sparkdeploy.plan.known_bad import MOE_BACKEND, failures
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.steps import BUDGET_CHECK, Action, Needs, NodePlan, Plan
from sparkdeploy.recipe import fallbacks
from sparkdeploy.recipe.flags import value_of
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.recipe.image_pins import InspectedEngine
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.mods import SCRIPT
from sparkdeploy.recipe.words import shown
from sparkdeploy.terminal.safe_text import visible_line
from sparkdeploy.terminal.style import Line, line_of, plain_text
from sparkdeploy.terminal.tables import (
    Block,
    Fill,
    TextColumn,
    TextRow,
    TextTable,
    laid_out,
    row_of,
)
from sparkdeploy.units import format_bytes, format_gib

MOD_LINES = 40
_NEXT = " \\\n  "
UNKNOWN_FINGERPRINT = "<hash of this container>"


def plan_lines(plan: Plan, start: str = "") -> list[Block]:
    """Return the plan in words: recipe, steps, needs, problems, warnings, what was not seen.

    `start` says how long one takes.
    """
    translation = plan.resolved.translation
    said: list[Block] = [_steps(plan), *_division(plan), _needs(plan.head.needs)]
    if start and plan.has_work:
        said.append(f"  start: {start}")
    said += _remarks(plan)
    if translation is not None:
        said += translation.short_lines()
    signs = (plain_text(line).split()[0] for line in laid_out(said, None))
    return [*_title(plan), *said, f"  ({legend(signs)})"]


def dockerfile_text(plan: Plan) -> str:
    text = "\n".join(
        f"# ---- stage {step.stage.name}: {step.stage.tag}\n{step.stage.dockerfile}"
        for step in plan.images
    )
    if unresolved_tag([step.stage for step in plan.images]) is None:
        return text
    for step in plan.images:
        # Fingerprints of what stands on a tag are nobody's yet.
        text = text.replace(step.stage.tag, f"<{step.stage.name}, resolved by up>")
    return text


def arguments_text(plan: Plan) -> str:
    return _by_node(plan, lambda spec: typed(spec.command[spec.command.index("--") + 1 :]))


def container_text(plan: Plan) -> str:
    return _by_node(plan, lambda spec: docker_run(fingerprinted(plan, spec)))


def fingerprinted(plan: Plan, spec: ContainerSpec) -> ContainerSpec:
    """Return the container with its hash; of one that is not wholly known, with a placeholder."""
    if not plan.observed.missing and unresolved_tag([it.stage for it in plan.images]) is None:
        return spec.with_fingerprint()
    # A hash of placeholders would look like that of the container that will be.
    return replace(spec, labels={**spec.labels, labels.FINGERPRINT: UNKNOWN_FINGERPRINT})


def _by_node(plan: Plan, text: Callable[[ContainerSpec], str]) -> str:
    """Return a shell's lines, where there are several nodes under a comment that names each."""
    if plan.topology.is_alone:
        return "\n".join(text(planned.spec) for planned in plan.nodes if planned.spec is not None)
    return "\n\n".join(
        f"# {planned.node}\n{text(planned.spec)}"
        if planned.spec is not None
        else f"# {planned.node}: unknown, for it does not answer"
        for planned in plan.nodes
    )


def fork_lines(resolved: Resolved) -> Iterator[str]:
    """Yield which fork a recipe needs; where no image is named, a problem says it."""
    if resolved.recipe.preview and resolved.engine.kind == "image":
        yield f"needs {resolved.recipe.preview}"


def backend_lines(plan: Plan) -> Iterator[str]:
    """Yield which of vLLM's kernels are asked for or expected on a GPU, and why."""
    serve, expected = plan.resolved.recipe.serve, plan.resolved.recipe.backends
    if plan.resolved.engine.runs_on != "cuda":
        return
    asked = {
        "attention": serve.attention_backend,
        "experts": value_of(serve.extra_args, MOE_BACKEND),
        "linear layers": value_of(serve.extra_args, "--linear-backend"),
    }
    logged = {"experts": expected.moe, "linear layers": expected.linear}
    said = [f"{layers} {name} (the recipe's)" for layers, name in asked.items() if name]
    for row, is_mended in failures(plan.case):
        if is_mended and row.arguments[0] == MOE_BACKEND:
            said.append(f"experts {row.arguments[1]} (known to fail: {row.name})")
    said += [f"{layers} {name} (expected of vLLM)" for layers, name in logged.items() if name]
    yield f"back ends: {'; '.join([*said, 'vLLM chooses the rest' if said else 'vLLM chooses'])}"


def _title(plan: Plan) -> Iterator[str]:
    recipe, engine = plan.resolved.recipe, plan.resolved.engine
    yield f"{recipe.name}: {recipe.title}"
    where = ", ".join(plan.topology.nodes)
    yield f"  engine {engine.name} on {where}, deployment {plan.deployment.name}"
    yield from (f"  {line}" for line in fork_lines(plan.resolved))
    model = plan.observed.model
    if model is not None:
        dense = model.dense_bytes if isinstance(model, ModelFact) else {}
        for line in treated_lines(recipe.checkpoint, model.layers, dense):
            yield f"  {line}"
    yield from (f"  {line}" for line in backend_lines(plan))
    if fallbacks.takes_piecewise_graphs(recipe, engine):
        yield (
            "  piecewise CUDA graphs: full ones with TurboQuant and speculation are proven "
            f"{fallbacks.proven_releases()}"
        )
        yield "    each step then waits longer for the CPU: also try --set serve.speculative=null"
    if fallbacks.turns_prefix_caching_off(recipe, engine):
        yield f"  without prefix caching: {fallbacks.NO_PREFIX_CACHING}"


def _steps(plan: Plan) -> TextTable:
    rows: list[TextRow | Line] = []
    tag = unresolved_tag([step.stage for step in plan.images])
    for step in plan.images:
        # Fingerprints of what stands on a tag are nobody's yet.
        name = step.stage.unpinned or (step.stage.tag if tag is None else step.stage.name)
        rows.append(_step(step.action, "image", name, step.reason))
    rows += map(line_of, _image_of_others(plan))
    for mod in mods_of(plan.resolved):
        rows += map(line_of, _mod_lines(mod))
    name = plan.resolved.recipe.model.source
    rows.append(_step(plan.checkpoint.action, "checkpoint", name, plan.checkpoint.reason))
    rows += (
        _step(planned.action, "container", _place(plan, planned), planned.reason)
        for planned in plan.nodes
    )
    columns = (TextColumn(), TextColumn("", Fill.WORDS), TextColumn("", Fill.WORDS))
    return TextTable(columns, tuple(rows), indent=2)


def _step(action: Action, kind: str, name: str, reason: str) -> TextRow:
    return row_of(line_of(signed(action.value), f" {kind}"), name, reason)


def _image_of_others(plan: Plan) -> Iterator[str]:
    """What the engine's image is called, which one that is, and what was found in it."""
    engine, name = plan.resolved.engine, plan.resolved.image
    if name is None or is_tag(engine.image):
        return
    is_it = "" if engine.image == name else f" is {engine.image}"
    yield f"      {shown(name)}{is_it}"
    if isinstance(engine, InspectedEngine):
        yield f"      it holds {engine.contents.describe()}"
    else:
        yield "      nobody has looked into it yet; `up` does"


def _mod_lines(mod: ModFiles) -> Iterator[str]:
    """What runs as root while the image is built: the whole script, as far as a screen holds it."""
    network = ", WITH a network" if mod.needs_network else ", without a network"
    others = [file.path for file in mod.files if file.path != SCRIPT]
    files = "1 file" if len(others) == 1 else f"{len(others)} files"
    beside = f", with {files} beside it" if others else ""
    yield f"      mod {mod.title}: its {SCRIPT} runs as root{network}{beside}:"
    lines = mod.script.splitlines()
    yield from (f"        | {visible_line(line)}" for line in lines[:MOD_LINES])
    if len(lines) > MOD_LINES or others:
        yield "        | ... all of it: plan --show mods"


def mods_text(plan: Plan) -> str:
    """Return every file of every mod as it would be in the image, and which mods are not here."""
    resolved = plan.resolved
    if not resolved.mods:
        return f"{shown(resolved.called)} has no mods"
    missing = [mod for mod in resolved.mods if mod.is_missing]
    return "\n".join(
        [
            *(f"# ---- mod {shown(mod.name)}: not here, `plan` says more" for mod in missing),
            *(
                f"# ---- mod {mod.title}: {path}\n{text}"
                for mod in mods_of(resolved)
                for path, text in mod.texts()
            ),
        ]
    )


def _place(plan: Plan, planned: NodePlan) -> str:
    if plan.topology.is_alone:
        return f"sparkdeploy-{plan.deployment.name} on port {plan.resolved.recipe.serve.port}"
    rank = planned.rank
    role = f"head, port {plan.resolved.recipe.serve.port}" if rank.is_head else "worker"
    rdma = f"RDMA {' '.join(rank.rdma)}" if rank.rdma else "no RDMA"
    return f"{rank.node}: rank {rank.number}, {role}, {rank.address} on {rank.interface}, {rdma}:"


def _division(plan: Plan) -> Iterator[str]:
    if plan.topology.is_alone:
        return
    for planned in plan.nodes:
        yield f"      {planned.node} takes {', '.join(_takes(planned))}"
    topology = plan.topology
    sizes = {
        "tensor": topology.tensor_parallel,
        "pipeline": topology.pipeline_parallel,
        "data": topology.data_parallel,
    }
    divided = ", ".join(f"{how} parallel {size}" for how, size in sizes.items() if size > 1)
    count = len(plan.nodes)
    yield f"  {divided} over {count} nodes, back end {topology.backend}"
    for name in topology.left_alone:
        yield f"  {name} is left alone: {count} nodes are enough"


def _takes(planned: NodePlan) -> Iterator[str]:
    needs = planned.needs
    yield f"{_memory(needs.weights_bytes)} of weights"
    yield f"memory {_memory(needs.memory_bytes)}"
    if not planned.rank.is_head:
        yield f"{_disk(needs.sent_bytes)} to be sent"


def _needs(needs: Needs) -> str:
    return (
        f"  to download {_disk(needs.download_bytes)} of model; disk: {_disk(needs.write_bytes)} "
        f"for it, {_disk(needs.image_bytes)} for images; memory {_memory(needs.memory_bytes)}"
    )


def _disk(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)


def _memory(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_gib(size_bytes)


def _remarks(plan: Plan) -> Iterator[Block]:
    rooms = [it for it in plan.findings if it.check == BUDGET_CHECK]
    # A warning is below.
    yield from (f"  {it.seen}" for it in rooms if it.verdict is Verdict.OK)
    yield from finding_lines(it for it in rooms if it.verdict is Verdict.NOT_SEEN)
    checks = [check for check in plan.observed.checks if check.verdict is Verdict.WARN]
    yield from finding_lines((*plan.problems, *plan.warnings, *checks))
    yield from finding_lines(not_seen("plan", sentence) for sentence in plan.observed.unobserved)


def typed(argv: Sequence[str]) -> str:
    """Return a command that a shell takes as `argv`; each flag begins a line, with its values."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--") and lines != [[]]:
            lines.append([])
        lines[-1].append(word)
    return _NEXT.join(shlex.join(line) for line in lines)


def docker_run(spec: ContainerSpec) -> str:
    first, *entry = spec.entrypoint
    options = [f"--{name}={value}" for name, value in _docker_options(spec)]
    words = ["docker", "run", "--detach", *options, f"--entrypoint={first}"]
    return typed(words) + _NEXT + typed([spec.image, *entry, *spec.command])


def _docker_options(spec: ContainerSpec) -> Iterator[tuple[str, str]]:
    yield "name", spec.name
    yield "user", spec.user
    yield "network", spec.network
    if spec.gpus == "all":
        yield "gpus", "all"
    yield "read-only", "true"
    yield from (("cap-drop", name) for name in spec.cap_drop)
    yield from (("cap-add", name) for name in spec.cap_add)
    yield from (("security-opt", option) for option in spec.security_options)
    yield from (("device", device) for device in spec.devices)
    yield "shm-size", str(spec.shm_size_bytes)
    yield from (("ulimit", f"{item.name}={item.value}:{item.value}") for item in spec.ulimits)
    yield from (("tmpfs", f"{path}:{options}") for path, options in spec.tmpfs.items())
    yield from (("mount", _mount(mount)) for mount in spec.mounts)
    yield from (("env", f"{name}={value}") for name, value in spec.env.items())
    yield from (("label", f"{name}={value}") for name, value in spec.labels.items())
    yield "restart", spec.restart_policy
    yield "stop-timeout", str(spec.stop_timeout_s)
    yield "log-driver", LOG_DRIVER
    yield from (("log-opt", f"{name}={value}") for name, value in LOG_SIZE.items())


def _mount(mount: Mount) -> str:
    """Docker reads its fields as a line of CSV."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    line = io.StringIO()
    readonly = ["readonly"] if mount.mode == "ro" else []
    csv.writer(line, lineterminator="").writerow([*fields, *readonly])
    return line.getvalue()
