"""The accelerators and the names by which people call them."""

from __future__ import annotations

import pytest

from holdover.errors import ConfigError
from holdover.plan.accelerators import accelerators, find_accelerator


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100 80GB", "A100 80GB"),
        ("a100-80gb", "A100 80GB"),
        ("A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),  # as nvidia-smi names them
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("Tesla T4", "T4"),
        ("h100", "H100"),
        ("h100-pcie", "H100 PCIe"),
        ("H200", "H200"),
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("RTX_4090", "RTX 4090"),
        ("4080super", "RTX 4080 Super"),
        ("4070 ti", "RTX 4070 Ti"),
        ("3090", "RTX 3090"),
        ("A6000", "RTX A6000"),
        ("rtx 6000 ada", "RTX 6000 Ada"),
        ("AMD Instinct MI300X", "MI300X"),
        ("7900xtx", "Radeon RX 7900 XTX"),
        ("gaudi2", "Gaudi 2"),
        ("m3-max-128gb", "M3 Max 128GB"),
        ("Apple M2 Ultra 192 GB", "M2 Ultra 192GB"),
        ("tpu-v5e", "TPU v5e"),
        ("trainium2", "Trainium 2"),
        ("910b-64gb", "Ascend 910B 64GB"),
    ],
)
def test_names_as_people_and_tools_write_them(text: str, name: str) -> None:
    assert find_accelerator(text).name == name


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("A100", ["A100 40GB", "A100 80GB"]),
        ("v100", ["V100 16GB", "V100 32GB"]),
        ("M3 Max", ["M3 Max 36GB", "M3 Max 128GB"]),
        ("4060 ti", ["RTX 4060 Ti 8GB", "RTX 4060 Ti 16GB"]),
        ("910B", ["Ascend 910B 32GB", "Ascend 910B 64GB"]),
    ],
)
def test_an_ambiguous_name_lists_the_choices(text: str, choices: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--gpu: .* can mean several: ") as caught:
        find_accelerator(text)
    for choice in choices:
        assert choice in caught.value.reason


def test_an_unknown_name_says_what_is_like_it_or_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"no accelerator 'RTX 4091'; did you mean .*RTX 4090"):
        find_accelerator("RTX 4091")
    with pytest.raises(ConfigError, match=r"--card: .*\d+ are known, .*; give --memory"):
        find_accelerator("abacus", flag="--card")
    with pytest.raises(ConfigError, match="names no accelerator"):
        find_accelerator("NVIDIA GPU")


def test_every_name_and_alias_finds_its_own_line() -> None:
    for one in accelerators():
        for name in (one.name, one.name.lower().replace(" ", "-"), *one.aliases):
            assert find_accelerator(name) is one, name


def test_the_table_is_plausible() -> None:
    table = accelerators()
    assert len(table) >= 40
    assert len({one.name for one in table}) == len(table)
    assert {"NVIDIA", "AMD", "Intel", "Apple", "Google", "AWS", "Huawei"} <= {
        one.vendor for one in table
    }
    for one in table:
        # A tool's number is near the marketed one; unified memory keeps a share for the system.
        share = one.usable_bytes / one.memory_bytes
        assert (0.6 if one.unified else 0.92) <= share <= 1.0, one.name
        assert 2**32 <= one.usable_bytes <= 2**39
        assert 50e9 <= one.bandwidth_bytes_s <= 10e12


def test_exact_bytes_of_well_known_cards() -> None:
    assert find_accelerator("A100 80GB").usable_bytes == 80 * 2**30
    assert find_accelerator("H100").usable_bytes == 85_520_809_984
    assert find_accelerator("RTX 4090").usable_bytes == 24_564 * 2**20
    assert find_accelerator("MI300X").usable_bytes == 206_141_652_992
    assert find_accelerator("M1 Pro 16GB").usable_bytes == 10_922 * 2**20
    assert find_accelerator("A100 80GB").bandwidth_bytes_s == 2_039_000_000_000
