"""A page that needs nothing else, parsed as a browser would."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holdover.bench.page import Point, bar_chart, line_chart
from holdover.errors import ConfigError
from holdover.html_page import page_html, write_html


class Read(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append(data.strip())


def charts() -> list[tuple[str, str]]:
    lines = {"a": [(4, Point(31.7, 30, 35)), (1, Point(1240.0))], "b": [(1, Point(0.5))]}
    bars = {"a": {"cold": Point(5.0, 4.0, 6.0), "warm": Point(1.0)}, "b": {"warm": Point(2.0)}}
    return [
        (line_chart(lines, "streams", "tokens/s", log_x=True), "Rates."),
        (bar_chart(bars, "TTFT, ms"), "First tokens."),
    ]


def test_a_page_holds_all_it_shows_and_loads_nothing() -> None:
    table = ("Figures", [["", "a & b"], ["TTFT", "<5 ms"]])
    page = page_html("T", "S", charts(), "in <full>", tables=[table], warnings=["careful & slow"])
    read = Read(page)
    assert read.tags.count("svg") == 2
    assert [tag for tag in read.tags if tag in ("th", "td")] == ["th", "th", "th", "td"]
    assert [place for place in read.loads if not place.startswith("#")] == []
    assert {"script", "link", "img"}.isdisjoint(read.tags)
    for text in ("tokens/s", "streams", "TTFT, ms", "a & b", "<5 ms", "in <full>", "cold", "a",
                 "careful & slow"):  # fmt: skip
        assert text in read.text


def test_ids_of_a_page_are_its_own_and_equal_input_gives_equal_pages() -> None:
    first, second = charts(), charts()
    assert first == second
    ids = [set(re.findall(r'<(?:path|clipPath)[^>]* id="([^"]+)"', svg)) for svg, _ in first]
    assert all(ids)
    assert not ids[0] & ids[1]


def test_bars_say_their_value_and_leave_out_what_is_missing() -> None:
    svg, _ = charts()[1]
    assert len(re.findall(r">[125]</text>", svg)) >= 3
    assert svg.count(">cold<") == 1


def test_a_page_that_cannot_be_written_names_its_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--html: .*nowhere"):
        write_html(tmp_path / "nowhere" / "a.html", "x")
