"""Launch arguments and the container of every shipped recipe, against reviewed files."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
from collections import defaultdict
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy import labels
from sparkdeploy.node.container import LOG_SIZE, ContainerSpec, Mount, Ulimit
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import serve_argv, serve_env
from sparkdeploy.plan.observed import ObservedNode
from sparkdeploy.plan.report import arguments_text, container_text, docker_run, typed
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.schema import LoraAdapter, Model, Recipe, Serve, Speculative
from tests.examples import examples
from tests.fakes.fabric import node_fact, two_node_plan
from tests.fakes.plans import FOLDERS, IMAGE, model_fact, observed, plan, spec_of
from tests.launching import container_spec
from tests.unit.conftest import REPOSITORY
from tests.unit.golden import assert_golden, difference

SHIPPED = sorted(path.stem for path in (REPOSITORY / "recipes").glob("*.yaml"))


def as_json(spec: ContainerSpec) -> str:
    return json.dumps(asdict(spec), indent=2, sort_keys=True) + "\n"


@pytest.fixture
def plain(shipped: Library) -> ContainerSpec:
    """The container of v2, which stands whole in a file and which others differ from."""
    return spec_of(load_recipe(shipped, "v2"))


@pytest.mark.parametrize("name", ["v2", "dflash"])
def test_the_whole_container_of_a_recipe(
    request: pytest.FixtureRequest, shipped: Library, name: str
) -> None:
    spec = spec_of(load_recipe(shipped, name))
    assert_golden(request, f"{name}/container.json", as_json(spec))


def written(spec: ContainerSpec, plain: ContainerSpec) -> str:
    """Return a container's command, after the variables that v2's container has not."""
    at = spec.command.index("--")
    variables = [f"{key}={value}" for key, value in spec.env.items() if plain.env.get(key) != value]
    vllm = shlex.join(spec.command[at + 1 :]).replace(" --", " \\\n  --")
    return "\n".join([*sorted(variables), shlex.join(spec.command[: at + 1]), vllm]) + "\n"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_arguments_of_a_recipe(
    request: pytest.FixtureRequest, shipped: Library, plain: ContainerSpec, name: str
) -> None:
    spec = spec_of(load_recipe(shipped, name))
    assert_golden(request, f"{name}/args.txt", written(spec, plain))


@pytest.mark.parametrize("name", SHIPPED)
def test_containers_differ_in_nothing_but_what_a_recipe_sets(
    shipped: Library, plain: ContainerSpec, name: str
) -> None:
    spec = spec_of(load_recipe(shipped, name))
    own = {"command": spec.command, "env": spec.env, "mounts": spec.mounts, "labels": spec.labels}
    assert spec == replace(plain, **own)  # type: ignore[arg-type]
    assert spec.env.keys() >= plain.env.keys()
    changed = {key for key, value in spec.labels.items() if plain.labels.get(key) != value}
    assert changed <= {labels.RECIPE, labels.SERVED_NAME, labels.ANSWERS}
    assert spec.labels.keys() == plain.labels.keys()
    assert spec.labels[labels.RECIPE] == name


@pytest.mark.parametrize("name", SHIPPED)
def test_all_that_vllm_reads_is_mounted_and_read_only(shipped: Library, name: str) -> None:
    spec = spec_of(load_recipe(shipped, name))
    writable = [mount.target for mount in spec.mounts if mount.mode != "ro"]
    assert writable == ["/cache"]
    named = re.findall(r"/m/[\w./-]+", " ".join(spec.command))
    targets = {mount.target for mount in spec.mounts if mount.target.startswith("/m/")}
    assert named
    for path in named:
        assert any(path == target or path.startswith(f"{target}/") for target in targets), path


def test_a_public_container_listens_everywhere_behind_the_key(
    request: pytest.FixtureRequest, shipped: Library, plain: ContainerSpec
) -> None:
    spec = spec_of(load_recipe(shipped, "v2"), is_public=True)
    assert_golden(request, "v2/public.diff", difference(as_json(plain), as_json(spec)))
    assert "0.0.0.0" in spec.command
    assert "--key-file" in spec.command


def test_a_model_of_root_is_served_by_an_unprivileged_user(shipped: Library) -> None:
    spec = container_spec(
        load_recipe(shipped, "v2"),
        model_fact(owner_uid=0, owner_gid=0),
        image=IMAGE,
        deployment=Deployment("main"),
        folders=FOLDERS,
    )
    assert spec.user == "65532:65532"


def test_the_fingerprint_ignores_labels_and_sees_everything_else(shipped: Library) -> None:
    spec = spec_of(load_recipe(shipped, "v2"))
    assert replace(spec, labels={"a": "b"}).fingerprint() == spec.fingerprint()
    for change in (
        {"image": "other"},
        {"command": ("x",)},
        {"env": {**spec.env, "A": "1"}},
        {"user": "1:1"},
        {"mounts": spec.mounts[1:]},
        {"gpus": "none"},
    ):
        assert replace(spec, **change).fingerprint() != spec.fingerprint()


def test_a_recipes_environment_wins_over_ours(shipped: Library) -> None:
    resolved = load_recipe(shipped, "v2", ["serve.env={VLLM_MARLIN_USE_ATOMIC_ADD: '1'}"])
    env = serve_env(resolved.recipe, resolved.engine)
    assert env["VLLM_MARLIN_USE_ATOMIC_ADD"] == "1"
    assert list(env) == sorted(env)


@pytest.mark.parametrize("spelling", ["--allowed-media-domains", "--allowed_media_domain"])
@pytest.mark.parametrize("shape", ["{0}=pictures.lab", "{0} pictures.lab other.lab"])
def test_the_users_own_list_of_domains_takes_the_place_of_none(
    shipped: Library, spelling: str, shape: str
) -> None:
    typed = json.dumps(shape.format(spelling).split())
    argv = spec_of(load_recipe(shipped, "v2", [f"serve.extra_args={typed}"])).command
    assert not [word for word in argv if "none.invalid" in word]
    assert argv[-len(json.loads(typed)) :] == tuple(json.loads(typed))


def any_recipe(serve: Serve, **model: Any) -> Recipe:
    made = Model(repo="a/b", **model)
    return Recipe(
        schema_version=1, name="any", title="any", engine="cuda-0.25", model=made, serve=serve
    )


no_list_of_domains = st.sampled_from(
    ["--", "-", "--a", "--allowed-me", "--allowed-origins", "none.invalid", "--no-allowed", "x"]
) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)


@settings(max_examples=examples(300))
@given(st.lists(no_list_of_domains, max_size=4))
def test_nothing_but_such_a_list_opens_the_door(words: list[str]) -> None:
    argv = serve_argv(any_recipe(Serve(extra_args=words)), "/m")
    assert argv[3] == "--allowed-media-domains=none.invalid"
    # A word behind it would be taken for one more domain.
    assert argv[4].startswith("--")


@pytest.mark.parametrize("spelling", ["--allowed-origins", "--allowed_origins", "--allowed-orig"])
def test_the_recipes_own_list_of_origins_takes_the_place_of_none(
    shipped: Library, spelling: str
) -> None:
    typed = [spelling, '["https://chat.example"]']
    recipe = load_recipe(shipped, "v2", [f"serve.extra_args={json.dumps(typed)}"])
    argv = spec_of(recipe).command
    assert "[]" not in argv
    assert argv[-2:] == tuple(typed)


optional_int = st.none() | st.integers(1, 10**6)
switch = st.none() | st.booleans()
serves = st.builds(
    Serve,
    port=st.integers(1024, 65535),
    attention_backend=st.none() | st.sampled_from(["FLASHINFER", "FLASH_ATTN"]),
    speculative=st.none() | st.builds(Speculative, method=st.just("mtp"), tokens=st.integers(1, 8)),
    kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
    max_model_len=optional_int,
    gpu_memory_utilization=st.floats(0.1, 1.0),
    load_format=st.none() | st.just("fastsafetensors"),
    max_num_batched_tokens=optional_int,
    max_num_seqs=optional_int,
    enable_chunked_prefill=switch,
    enable_prefix_caching=switch,
    enable_auto_tool_choice=switch,
    enforce_eager=switch,
    trust_remote_code=switch,
    override_generation_config=st.none() | st.just({"temperature": 0.7}),
)


@given(serves, st.booleans())
def test_every_valid_recipe_gives_each_flag_once(serve: Serve, is_public: bool) -> None:
    argv = serve_argv(any_recipe(serve), "/m", is_public=is_public)
    given_flags = [flags.flag_of(item) for item in argv if item.startswith("--")]
    assert len(given_flags) == len(set(given_flags))
    assert argv[:3] == ("vllm", "serve", "/m")
    assert all(argv)


def test_adapters_are_named_with_their_folders_behind_the_drafter() -> None:
    adapters = [LoraAdapter(name="one", repo="a/one"), LoraAdapter(name="two", path="/two")]
    drafter = Speculative(method="dflash", tokens=4, model="a/draft")
    recipe = any_recipe(Serve(speculative=drafter, lora=adapters), served_name=["first", "second"])
    assert [weights.source for weights in recipe.companions] == ["a/draft", "a/one", "/two"]
    argv = serve_argv(recipe, "/m", ["/d", "/1", "/2"])
    names = argv.index("--served-model-name")
    assert argv[names + 1 : names + 3] == ("first", "second")
    drafting = json.loads(argv[argv.index("--speculative-config") + 1])
    assert drafting == {"method": "dflash", "model": "/d", "num_speculative_tokens": 4}
    at = argv.index("--lora-modules")
    assert argv[at - 1] == "--enable-lora"
    assert [json.loads(word) for word in argv[at + 1 : at + 3]] == [
        {"name": "one", "path": "/1"},
        {"name": "two", "path": "/2"},
    ]


def test_further_keys_of_speculation_reach_vllm() -> None:
    drafting = Speculative.model_validate(
        {"tokens": 3, "model": "a/draft", "draft_sample_method": "probabilistic"}
    )
    argv = serve_argv(any_recipe(Serve(speculative=drafting)), "/m", ["/d"])
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "model": "/d",
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
    }


def words_of(text: str) -> list[str]:
    """A shell joins lines that end in a backslash."""
    return shlex.split(text.replace("\\\n", ""))


def read_back(text: str) -> ContainerSpec:
    """The container of a `docker run`, by Docker's rules for what is used here."""
    words = words_of(text)
    assert words[:3] == ["docker", "run", "--detach"]
    options: dict[str, list[str]] = defaultdict(list)
    while words[3].startswith("--"):
        name, _, value = words.pop(3).removeprefix("--").partition("=")
        options[name].append(value)
    image, *command = words[3:]
    mounts = [
        dict(field.partition("=")[::2] for field in row) for row in csv.reader(options["mount"])
    ]
    (log_driver,) = options["log-driver"]
    assert log_driver == "json-file"
    assert dict(option.split("=", 1) for option in options["log-opt"]) == LOG_SIZE
    assert (options["read-only"], options["restart"]) == (["true"], ["no"])
    return ContainerSpec(
        name=options["name"][0],
        image=image,
        entrypoint=tuple(options["entrypoint"]),
        command=tuple(command),
        env=dict(item.split("=", 1) for item in options["env"]),
        mounts=tuple(
            Mount(item["source"], item["target"], "ro" if "readonly" in item else "rw")
            for item in mounts
        ),
        user=options["user"][0],
        gpus="all" if options["gpus"] == ["all"] else "none",
        tmpfs=dict(item.split(":", 1) for item in options["tmpfs"]),
        shm_size_bytes=int(options["shm-size"][0]),
        ulimits=tuple(
            Ulimit(name, int(limits.split(":")[0]))
            for name, limits in (item.split("=") for item in options["ulimit"])
        ),
        devices=tuple(options["device"]),
        network=options["network"][0],
        cap_drop=tuple(options["cap-drop"]),
        cap_add=tuple(options["cap-add"]),
        security_options=tuple(options["security-opt"]),
        stop_timeout_s=int(options["stop-timeout"][0]),
        labels=dict(item.split("=", 1) for item in options["label"]),
    )


def as_docker_sees(spec: ContainerSpec) -> ContainerSpec:
    """An entrypoint of several words is one word and the beginning of the command."""
    first, *more = spec.entrypoint
    return replace(spec, entrypoint=(first,), command=(*more, *spec.command))


@pytest.mark.parametrize("recipe", ["baseline", "hybrid", "mtp-2", "v2", "v2-tq", "dflash"])
def test_the_docker_command_starts_the_container_of_the_plan(shipped: Library, recipe: str) -> None:
    made = plan(shipped, observed(), recipe)
    assert made.head.spec is not None
    assert read_back(container_text(made)) == as_docker_sees(made.head.spec.with_fingerprint())
    serve = made.head.spec.command[made.head.spec.command.index("--") + 1 :]
    assert tuple(words_of(arguments_text(made))) == serve


def test_each_node_of_a_cluster_has_its_command_below_its_name(shipped: Library) -> None:
    made = two_node_plan(shipped, ObservedNode(node_fact(2)))
    first, second = container_text(made).split("\n\n")
    for planned, text in zip(made.nodes, (first, second), strict=True):
        name, _, command = text.partition("\n")
        assert planned.spec is not None
        assert name == f"# {planned.node}"
        assert read_back(command) == as_docker_sees(planned.spec.with_fingerprint())
    silent = replace(made, nodes=(made.head, replace(made.nodes[1], spec=None)))
    assert container_text(silent) == f"{first}\n\n# spark-2: unknown, for it does not answer"


def test_paths_that_a_shell_or_docker_would_cut_stay_whole(shipped: Library) -> None:
    made = plan(shipped, observed())
    assert made.head.spec is not None
    odd = Mount('/home/a b,c"d:e', "/m/hub/x")
    spec = replace(
        made.head.spec, mounts=(odd,), devices=("/dev/infiniband",), cap_add=("IPC_LOCK",)
    )
    assert read_back(docker_run(spec)) == as_docker_sees(spec)


def test_a_shell_reads_what_was_typed() -> None:
    argv = ["--", "it's", 'a "b"', "$HOME", "--json={}", "a\\\n  b", "*", "", "-x", "--flag", "ü\n"]
    shown = subprocess.run(
        ["sh", "-c", typed(["printf", "%s\\0", *argv])], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split("\0")[:-1] == argv


def test_each_flag_begins_a_line() -> None:
    text = typed(["vllm", "serve", "/m", "--port", "1", "--eager", "--list", "a", "b"])
    assert text.splitlines() == [
        "vllm serve /m \\",
        "  --port 1 \\",
        "  --eager \\",
        "  --list a b",
    ]
