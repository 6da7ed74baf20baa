"""README.zh-CN.md keeps up with README.md: the same sections, commands and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
)


def commands(text: str) -> list[str]:
    """The lines of all shell blocks, without what is said beside them."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines() if line]


def links(text: str) -> set[str]:
    return {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_every_command_stands_in_both():
    missing = [line for line in commands(ENGLISH) if line not in commands(CHINESE)]
    assert missing == []


def test_the_same_number_of_sections():
    assert len(re.findall("^## ", ENGLISH, re.MULTILINE)) == len(
        re.findall("^## ", CHINESE, re.MULTILINE)
    )


def test_python_is_the_same():
    assert blocks(ENGLISH, "python") == blocks(CHINESE, "python")


def test_both_have_the_same_links_and_those_of_this_one_lead_somewhere():
    own = {"README.md", "README.zh-CN.md", "docs/figures/curves.png", "docs/figures/curves.zh.png"}
    assert links(ENGLISH) - own == links(CHINESE) - own
    for link in links(CHINESE) & own:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("command", [c for c in commands(CHINESE) if c.startswith("npformer ")])
def test_commands_can_be_given(command: str):
    import shlex

    from npformer.cli import build_parser

    build_parser().parse_args(shlex.split(command)[1:])
