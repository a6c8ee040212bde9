"""The cost page's words: what it joins, what it escapes, what it needs."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost_pages import config_question, mixture_question, package_question

from mxconv.cost.report import Question, cost_report
from mxconv.package.manifest import CertificateRecord, DecodeRecord, Manifest, read_manifest
from mxconv.report.cost_page import render_cost_page, write_cost_page
from mxconv.report.inspection import Inspection

Inspect = Callable[..., Inspection]


def rendered(question: Question, manifest: Manifest | None = None, inspection: Inspection | None = None) -> str:
    return render_cost_page(question, cost_report(question), manifest, inspection)


def parse(page: str) -> ElementTree.Element:
    """The page without its scripts is XML: every element is closed and every name escaped."""
    words = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    return ElementTree.fromstring(words.removeprefix("<!DOCTYPE html>").strip())


def words(page: str) -> str:
    return " ".join("".join(parse(page).itertext()).split())


def facts(page: str) -> dict[str | None, str | None]:
    return {div[0].text: div[1].text for div in parse(page).findall(".//dl/div")}


def test_a_config_gives_the_advice_and_every_table_of_the_terminal(tmp_path: Path) -> None:
    question = config_question()
    report = cost_report(question)
    write_cost_page(question, report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert report["advice"]["text"] in words(page)
    titles = [title.text for title in parse(page).iter("h3")]
    assert titles[1:] == ["Speed-up", "Throughput of a batch of 1, 8 draft tokens, 591 FLOPs a byte", "Roofline"]
    assert "8,030,261,248 parameters" in (titles[0] or "")
    for entry in report["models"]:
        assert f"source: {entry['source']}" in words(page)
    assert "there are no weights, so no manifest, no certificate and no exponents" in words(page)
    for table in parse(page).iter("table"):
        assert len({len(row) for row in table.iter("tr")}) == 1


def test_a_package_gives_manifest_certificate_histogram_and_traces(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path], tmp_path: Path
) -> None:
    folder = package(tiny_llama, codec="bsfp")
    question, manifest, inspection = package_question(folder, tmp_path), read_manifest(folder), inspect_path(folder)
    page = rendered(question, manifest, inspection)
    assert facts(page)["bits a weight"] == f"{manifest.bits_per_weight:.2f}"
    assert facts(page)["lossless"] == "yes"
    assert "None is stored in this package: mxconv verify PACKAGE --write makes one." in words(page)
    bars = [bar for bar in parse(page).iter("rect") if bar.get("class") in ("in", "out")]
    assert len(bars) >= 16
    assert "exponent field of BF16, and least magnitude below it" in words(page)
    decode = DecodeRecord(num_prompts=3, num_tokens=1234, num_token_mismatches=0, num_logit_mismatches=0)
    certificate = CertificateRecord(
        created_by="mxconv", source_compared=True, num_tensors=9, num_bit_exact=9, lossless=True, decode=decode
    )
    page = rendered(question, manifest.model_copy(update={"certificate": certificate}), inspection)
    assert facts(page)["bit-exact tensors"] == "9 of 9"
    assert facts(page)["decoded with and without drafts"] == "1,234 tokens, 3 prompts"
    assert facts(page)["level decoded"] == "target"  # a certificate that names none is of the first
    assert facts(page)["token mismatches"] == "0"
    assert "Mean error" in words(page)
    traces = data_of(page)["traces"]
    assert [trace["name"] for trace in traces] == ["greedy", "drafted"]
    assert traces[1]["by_position"] == [24 / 29, 18 / 24, 12 / 18, 6 / 12]


def test_the_page_needs_no_network_and_is_small() -> None:
    page = rendered(config_question())
    for word in ("http:", "https:", "<link", "@import", "url(", "src=", "fetch(", "XMLHttp", "import("):
        assert word not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert len(page.encode()) < 200_000


def test_hostile_names_stay_words() -> None:
    question = config_question()
    hostile = "</script><script>alert(1)</script> & \x1b[31m"
    levels = question.strategies["bf16 <- mxfp4"]
    renamed = [levels[0], replace(levels[1], name=hostile, acceptance_source=hostile)]
    page = rendered(replace(question, strategies={"bf16": levels[:1], hostile: renamed}))
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert page.count("</script>") == 6  # the data and five scripts
    assert "</script><script>alert(1)</script> & \\x1b[31m" in words(page)
    assert data_of(page)["drafts"][0]["name"] == "</script><script>alert(1)</script> & \\x1b[31m"


def test_only_what_was_asked_for_is_drawn() -> None:
    page = rendered(replace(config_question(), models=["speedup"]))
    assert "chart-lengths" in ids(page)
    assert not {"chart-roofline", "chart-batches"} & ids(page)
    page = rendered(mixture_question("h100-sxm"))
    assert "chart-roofline" in ids(page)
    assert "chart-batches" not in ids(page)  # SPIRe's equation knows dense decoders only
    plain = config_question()
    page = rendered(replace(plain, strategies={"bf16": plain.strategies["bf16"]}))
    assert "chart-answers" in ids(page)
    assert not {"chart-lengths", "chart-surface"} & ids(page)
    assert "Do not speculate: there is no draft." in words(page)


def ids(page: str) -> set[str | None]:
    return {element.get("id") for element in parse(page).iter()}


def data_of(page: str) -> Any:
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])
