"""Sizes, settings and plug-ins: what a person types, and what they are told when it is wrong."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.codecs.base import codec_names, get_codec
from holdover.config import Config, flag
from holdover.errors import ConfigError, PluginError
from holdover.registry import load_all, load_plugin, plugin_names
from holdover.units import ceil_div, exact_div, format_bytes, parse_bytes, round_up


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("17B", 17),
        ("256MiB", 2**28),
        (" 1.5 gib ", 3 * 2**29),
        ("2G", 2**31),
        ("500MB", 500 * 10**6),
        ("1TB", 10**12),
        ("1TiB", 2**40),
    ],
)
def test_sizes_are_read(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1,5GiB", "12 parsecs", "nan", "0x10"])
def test_what_is_no_size_names_the_flag_and_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--memory: .* 256MiB"):
        parse_bytes(text, "--memory")


def test_a_size_of_no_machine() -> None:
    """mmap takes no more, and a float none of this length."""
    for text in (str(2**63), "9" * 400 + ".5", "99999999999999999999999999GiB"):
        with pytest.raises(ConfigError, match=r"--memory: .* more than any machine has"):
            parse_bytes(text, "--memory")


@given(st.integers(0, 2**62))
def test_exact_counts_survive_and_formatting_is_close(n_bytes: int) -> None:
    assert parse_bytes(str(n_bytes)) == n_bytes
    shown = parse_bytes(format_bytes(n_bytes).replace("PiB", "TiB"))
    scale = 1024 if "PiB" in format_bytes(n_bytes) else 1
    assert shown * scale == pytest.approx(n_bytes, rel=0.05)


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_rounding_says_which_way_it_goes(value: int, multiple: int) -> None:
    assert ceil_div(value, multiple) * multiple == round_up(value, multiple)
    assert 0 <= round_up(value, multiple) - value < multiple
    if value % multiple:
        with pytest.raises(AssertionError):
            exact_div(value, multiple)
    else:
        assert exact_div(value, multiple) * multiple == value


def test_an_unknown_setting_is_fatal_and_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"kv_memroy: no such setting; .*kv_memory"):
        Config.of({"kv_memroy": "1GiB"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_tokens": 0}, "--block-tokens: 0 is too small"),
        ({"max_sequences": -1}, "--max-sequences"),
        ({"max_context": 0}, "--max-context"),
        ({"threads": 0}, "--threads"),
        ({"kv_memory": "1GiB", "memory": "2GiB"}, "not both"),
        ({"kv_memory": "lots"}, "--kv-memory: 'lots' is not a size"),
        ({"step_tokens": 8}, "--step-tokens: 8 is less than --max-sequences 64"),
        ({"dtype": "fp8"}, "--dtype: 'fp8'"),
        ({"port": 65536}, "--port: 65536"),
        ({"grace_s": -1.0}, "--grace-s"),
        ({"grace_s": float("nan")}, "--grace-s"),
        ({"threads": 100_000}, "--threads: 100000 is too many; the most is 1024"),
        ({"prompt_ends": -1}, "--prompt-ends: -1 is too small; 0 keeps none"),
        ({"prompt_ends": 10**9}, "--prompt-ends: 1000000000 is too many; the most is 4096"),
        ({"api_keys": ("good", "")}, "--api-key: key 2 of 2 is empty"),
        ({"api_keys": ("padded ",)}, "--api-key: key 1 of 1 has a comma or a space"),
        ({"api_keys": ("k1,k2",)}, "--api-key: key 1 of 1 has a comma or a space"),
        ({"api_keys": ("\udcff",)}, "--api-key: .* cannot carry"),
        ({"api_keys": ("schlüssel",)}, "--api-key: .* cannot carry; use ASCII"),
    ],
)
def test_settings_that_cannot_work_name_their_flag(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.of(settings)


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Config().port = 1  # type: ignore[misc]
    assert {flag(f.name) for f in fields(Config)} >= {"--kv-memory", "--max-context", "--grace-s"}


def test_codecs_are_found_by_name_and_a_wrong_name_lists_them() -> None:
    assert {"fp32", "bf16", "fp16"} <= set(codec_names())
    with pytest.raises(ConfigError, match=r"--kv: no codec 'fp7'; there are: .*fp32"):
        get_codec("fp7")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with one good plug-in, one that fails, and files that are none."""
    folder = tmp_path / "plugins_for_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "good.py").write_text("WHAT = 1\n")
    (folder / "bad.py").write_text("import no_such_library\n")
    (folder / "base.py").touch()
    (folder / "_own.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder.name
    for name in [n for n in sys.modules if n.split(".")[0] == folder.name]:
        del sys.modules[name]


def test_files_are_plugins_by_name(package: str) -> None:
    assert plugin_names(package) == ("bad", "good")
    assert load_plugin(package, "good").WHAT == 1


def test_a_plugin_that_does_not_exist_or_fails_is_an_error_with_its_cause(package: str) -> None:
    with pytest.raises(PluginError, match="no 'best'; it has: bad, good"):
        load_plugin(package, "best")
    with pytest.raises(PluginError, match="bad failed to load: No module named 'no_such_library'"):
        load_plugin(package, "bad")
    with pytest.raises(PluginError):
        load_all(package)
