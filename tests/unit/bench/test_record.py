"""A record says everything again when it is read, and its schema is the documented one."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from sparkdeploy.authoring.outlook import machine_wanted, measured_on
from sparkdeploy.bench.files import read_record, record_text, write_record
from sparkdeploy.bench.record import SCHEMA_VERSION, CheckpointOrigin, EngineOrigin, Run
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.errors import BenchError
from sparkdeploy.server.metrics import Speculation
from sparkdeploy.settings import load_settings
from tests.fakes.bench_runs import decode, fields_of, loaded_run, sample_run, sweep
from tests.unit.conftest import REPOSITORY
from tests.unit.estimate.shipped import HARDWARE

SCHEMA_FILE = REPOSITORY / "docs" / "bench-record.schema.json"


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    run = sample_run()
    path = tmp_path / "folder" / "run.json"
    treatment = asdict(Conversion(fp8_mode="online", lm_head="int8", draft_rows=32768))
    checkpoint = CheckpointOrigin("lab/model", "c" * 40, "f" * 16, treatment)
    run = replace(run, origin=replace(run.origin, checkpoint=checkpoint))
    write_record(run, path)
    assert read_record(path) == run
    assert [item.name for item in path.parent.iterdir()] == ["run.json"]


def test_the_documented_schema_is_the_real_one(request: pytest.FixtureRequest) -> None:
    schema = TypeAdapter(Run).json_schema()
    if request.config.getoption("--update-golden"):
        SCHEMA_FILE.write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
    assert fields_of(json.loads(SCHEMA_FILE.read_text())) == fields_of(schema)


def test_an_estimate_is_scaled_by_whole_suites_of_prompts_that_do_not_grow() -> None:
    settings = load_settings()
    spark, other = (machine_wanted(name, HARDWARE) for name in ("spark", "h200"))
    run = sample_run("v2")
    uncounted = replace(decode(99.0), is_complete=False), replace(sweep(99.0), is_complete=True)
    drafting = replace(run.origin, engine=EngineOrigin(flags="{'draft_tensor_parallel_size': 1}"))
    others = replace(run, suites=(*run.suites, *uncounted), origin=drafting)
    of_two = replace(run.origin, engine=EngineOrigin(flags="{'tensor_parallel_size': 2}"))
    found = []
    for record in (run, loaded_run("v2", speed=51.0), others, replace(run, origin=of_two)):
        write_record(record, settings.state_dir / "bench" / "run.json")
        found += measured_on(spark, settings)
        assert measured_on(other, settings) == []
    assert found == [found[0]] * 3
    # Of one stream, from the request to its last token; several at once are faster together.
    assert found[0].end_to_end_tok_s == pytest.approx(0.96 * 51, rel=0.1)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    content = json.loads(record_text(sample_run())) | {"schema": SCHEMA_VERSION + 1}
    path.write_text(json.dumps(content))
    with pytest.raises(BenchError, match="schema 2") as caught:
        read_record(path)
    assert caught.value.hint == "update sparkdeploy"


def test_a_field_of_a_later_version_of_the_same_schema_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(record_text(sample_run())) | {"colour": "red"}))
    assert read_record(path) == sample_run()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a record"),
        ("[]", "not a record of a run"),
        ("{}", "not a record of a run"),
        ('{"schema": 1}', "damaged: run_id"),
    ],
)
def test_what_is_no_record_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=words):
        read_record(path)


def test_acceptance_is_counted_per_position() -> None:
    counted = Speculation(10, 20, 15, (9, 6))
    assert counted.acceptance == pytest.approx(0.75)
    assert counted.acceptance_per_position == pytest.approx((0.9, 0.6))
    assert counted.tokens_a_step == pytest.approx(2.5)
    assert counted + Speculation(10, 20, 5, (5,)) == Speculation(20, 40, 20, (14, 6))
