"""Makes a site of the repository's own pages: `mkdocs.yml` names this file.

The pages stay where GitHub shows them, and their links to each other stay as they are. Links to anything else in the repository
lead to GitHub; a link to a file that is not there is a warning, which `--strict` makes an error.
"""

import logging
import os
import re
import subprocess
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "ARCHITECTURE.md", "EVALUATION.md", "MODELS.md", "SERVING.md", "CONTRIBUTING.md", "CHANGELOG.md"]
#: Pictures of these pages.
PICTURES = ["benches/results/abacus/chain-light.png", "benches/results/abacus/chain-dark.png"]

LOG = logging.getLogger("mkdocs.hooks.uqac")
#: Code, which stays as it is, or the target of a link.
CODE_OR_TARGET = re.compile(r"(?P<code>^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$|`[^`\n]*`)|(?<=\]\()(?P<target>[^)\s]+)(?=\))", re.DOTALL | re.MULTILINE)
NESTED_ITEM = re.compile(r"^( {2,})(?=[-*] )", re.MULTILINE)


def repository() -> str:
    """The repository's address: of the workflow that runs this, or of the clone's origin; empty elsewhere."""
    if "GITHUB_REPOSITORY" in os.environ:
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{os.environ['GITHUB_REPOSITORY']}"
    origin = subprocess.run(["git", "-C", ROOT, "remote", "get-url", "origin"], capture_output=True, text=True).stdout.strip()
    found = re.fullmatch(r"(?:https://|git@)github\.com[/:](.+?)(?:\.git)?", origin)
    return f"https://github.com/{found[1]}" if found else ""


def on_config(config):
    config.repo_url = repository() or None
    config.repo_name = "GitHub" if config.repo_url else None
    return config


def on_files(files, config):
    for name in PAGES + PICTURES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    # Python-Markdown nests lists by four columns
    markdown = NESTED_ITEM.sub(lambda found: found[1] * 2, markdown)
    return CODE_OR_TARGET.sub(lambda found: found["code"] or _target(found["target"], page, config), markdown)


def _target(target: str, page, config) -> str:
    """A link's target: unchanged within the site and to other hosts, else on GitHub."""
    path, _, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return target
    # the pages beside this file are written as they lie in the repository, but are served from its root
    folder = ROOT if page.file.src_uri in PAGES else ROOT / "docs"
    file = Path(os.path.normpath(folder / path))
    name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else path
    if name in PAGES + PICTURES:
        return name + ("#" + anchor if anchor else "")
    if not file.exists():
        LOG.warning("%s: %s is not in the repository", page.file.src_uri, target)
    # a preview of a clone from elsewhere shows the clone's own files
    base = f"{config.repo_url}/{'tree' if file.is_dir() else 'blob'}/main" if config.repo_url else ROOT.as_uri()
    return f"{base}/{name}" + ("#" + anchor if anchor else "")
