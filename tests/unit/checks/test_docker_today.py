"""Docker as machines have it today: contexts, rootless, CDI, containerd's root, proxies."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checks.docker import (
    check_cgroup,
    check_context,
    check_nvidia_runtime,
    check_proxy,
    check_rootless,
)
from sparkdeploy.checks.report import Verdict
from sparkdeploy.node.containers import _host_options
from sparkdeploy.node.facts import containerd_root
from sparkdeploy.node.reports import (
    LOOPBACK,
    client_proxy,
    current_context,
    environment,
    keeps_gpu_for_ever,
    other_context,
    read_engine_info,
)
from sparkdeploy.recipe.load import load_recipe
from tests.fakes.plans import DOCKER, spec_of
from tests.unit.checks.recorded import Recording
from tests.unit.conftest import SHIPPED

V2 = spec_of(load_recipe(SHIPPED, "v2"))
ROOTLESS = "unix:///run/user/1000/docker.sock"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


def configured(folder: Path, content: object, contexts: dict[str, object] | None = None) -> Any:
    (folder / "config.json").write_text(json.dumps(content))
    for name, meta in (contexts or {}).items():
        path = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
        path.mkdir(parents=True)
        (path / "meta.json").write_text(json.dumps(meta))
    return {"DOCKER_CONFIG": str(folder)}


def test_another_context_of_dockers_command_is_known_with_its_engine(tmp_path: Path) -> None:
    meta = {"Name": "rootless", "Endpoints": {"docker": {"Host": ROOTLESS}}}
    env = configured(tmp_path, {"currentContext": "rootless"}, {"rootless": meta})
    other = other_context("", env)
    assert other is not None
    assert (other.name, other.address) == ("rootless", ROOTLESS)
    assert other_context(ROOTLESS, env) is None
    finding = check_context(replace(DOCKER, other_context=other))
    assert finding.verdict is Verdict.WARN
    assert "rootless" in finding.seen
    assert finding.fix is not None
    assert finding.fix.startswith("export DOCKER_HOST=unix:///var/run/docker.sock")
    # The variables go before the file, as for Docker's command.
    assert other_context("", {**env, "DOCKER_CONTEXT": "default"}) is None
    assert current_context({**env, "DOCKER_HOST": "tcp://x:1"}).address == "tcp://x:1"


@pytest.mark.parametrize("content", [{}, {"currentContext": ""}, {"currentContext": 0}, [], None])
def test_a_file_that_names_no_context_means_the_default(tmp_path: Path, content: object) -> None:
    assert other_context("", configured(tmp_path, content)) is None


def test_a_socket_is_the_same_by_each_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to(tmp_path / "run")
    env = {"DOCKER_HOST": f"unix://{tmp_path}/var/docker.sock"}
    assert other_context(f"unix://{tmp_path}/run/docker.sock", env) is None


@given(ANYTHING, ANYTHING)
def test_no_configuration_of_docker_is_too_strange(
    tmp_path_factory: pytest.TempPathFactory, content: object, meta: object
) -> None:
    env = configured(tmp_path_factory.mktemp("d"), content, {"x": meta})
    other_context("", {**env, "DOCKER_CONTEXT": "x"})
    assert environment({"A": "1"}, env)["A"] == "1"


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"proxies": {"default": {"httpProxy": "http://p:1", "noProxy": "lab, .corp"}}}, {}),
        ({}, {"https_proxy": "http://p:1", "NO_PROXY": "lab,.corp"}),
    ],
)
def test_no_proxy_stands_before_loopback(
    tmp_path: Path, config: object, own: dict[str, str]
) -> None:
    env = environment({"A": "1", **own}, configured(tmp_path, config))
    assert env["NO_PROXY"] == env["no_proxy"] == ",".join(("lab", ".corp", *LOOPBACK))
    assert environment(env, configured(tmp_path, config)) == env


def test_a_container_without_a_proxy_gets_no_variables(tmp_path: Path) -> None:
    assert environment({"A": "1"}, configured(tmp_path, {"proxies": {"default": {}}})) == {"A": "1"}


@pytest.mark.parametrize(
    ("info", "device"),
    [
        ({}, ""),
        ({"CDISpecDirs": ["/etc/cdi"]}, "nvidia.com/gpu=all"),
        ({"CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": None}, ""),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.com/net=all"}]}, ""),
        ({"DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}, None, {}]}, "nvidia.com/gpu=0"),
        (
            {"DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}, {"ID": "nvidia.com/gpu=all"}]},
            "nvidia.com/gpu=all",
        ),
    ],
)
def test_gpus_by_cdi_alone_are_enough(info: dict[str, Any], device: str) -> None:
    engine = read_engine_info(info)
    assert engine.cdi_device == device
    finding = check_nvidia_runtime(has_runtime=False, cdi_device=engine.cdi_device)
    assert (finding.verdict is Verdict.OK) == bool(device)
    (request,) = _host_options(V2, engine)["device_requests"]
    assert request["DeviceIDs"] == ([device] if device else [])
    assert request["Driver"] == ("cdi" if device else "")
    for policy, keeps in (("always", True), ("unless-stopped", True), ("on-failure", False)):
        limits = {"DeviceRequests": [request], "RestartPolicy": {"Name": policy}}
        assert keeps_gpu_for_ever({"HostConfig": limits}) is keeps
    # Where the runtime is registered, that is what containers have been started with.
    (request,) = _host_options(V2, replace(engine, has_nvidia_runtime=True))["device_requests"]
    assert request["Driver"] == ""


def test_a_rootless_engine_is_said_to_be_one() -> None:
    info = read_engine_info({"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless"]})
    assert check_rootless(info).verdict is Verdict.WARN
    assert check_rootless(read_engine_info({"SecurityOptions": None})).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("driver", "links", "verdict"),
    [
        ("cgroupfs", 0, Verdict.OK),
        ("systemd", 0, Verdict.WARN),
        ("systemd", 6, Verdict.OK),
        ("systemd", None, Verdict.NOT_SEEN),
    ],
)
def test_a_daemon_reload_takes_gpus_that_dev_char_does_not_name(
    driver: str, links: int | None, verdict: Verdict
) -> None:
    assert check_cgroup(replace(DOCKER, cgroup_driver=driver), links).verdict is verdict
    by_cdi = replace(DOCKER, cgroup_driver=driver, has_nvidia_runtime=False)
    assert check_cgroup(by_cdi, links).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("text", "root"),
    [
        (None, "/var/lib/containerd"),
        ("", "/var/lib/containerd"),
        ('version = 2\nroot = "/data/containerd"\n[plugins]\n', "/data/containerd"),
        ("root='/data/with blank'", "/data/with blank"),
        ('#root = "/no"\n[plugins.x]\nroot = "/of/a/plugin"\n', "/var/lib/containerd"),
        ('root = "relative"\n', "/var/lib/containerd"),
    ],
)
def test_the_disk_is_that_of_containerds_own_root(text: str | None, root: str) -> None:
    files = {} if text is None else {"/etc/containerd/config.toml": text}
    assert containerd_root(Recording(files)) == root


@pytest.mark.parametrize(
    ("engine", "client", "words"),
    [
        ("", "", "no proxy"),
        ("http://u:p@Proxy.lab:3128/", "http://proxy.lab:3128", "use proxy.lab:3128"),
        ("http://proxy.lab:3128", "", "builds and downloads use no proxy"),
        ("", "http://u:secret@proxy.lab:3128", "through no proxy, and"),
        ("http://a:1", "https://b:2", "through a:1, and builds and downloads use b:2"),
    ],
)
def test_the_engines_own_proxy_is_held_against_the_clients(
    tmp_path: Path, engine: str, client: str, words: str
) -> None:
    env = configured(tmp_path, {"proxies": {"default": {"httpProxy": client}}})
    info = read_engine_info({"HttpsProxy": "", "HttpProxy": engine})
    found = check_proxy(replace(info, client_proxy=client_proxy(env)))
    assert words in found.seen
    assert found.fix is None or "secret" not in found.fix
    same = found.verdict is Verdict.OK
    assert same == (words in {"no proxy", "use proxy.lab:3128"})
    of_shell = client_proxy({"DOCKER_CONFIG": "/nowhere", "https_proxy": client})
    assert of_shell == client_proxy(env)


@given(ANYTHING)
def test_no_proxy_section_breaks_the_look_at_it(content: Any) -> None:
    assert isinstance(read_engine_info({"HttpProxy": content}).proxy, str)
