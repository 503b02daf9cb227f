"""The studio's pages as files: what they name is found, and links, scripts and styles lead to the files beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from urllib.parse import urlsplit

STATIC = "/static/"
# Of a file there is no other: the live studio has a fresh one for every page.
NONCE = "export"
POLICY = (
    f"default-src 'none'; script-src 'self' file: blob:; style-src 'self' file: 'nonce-{NONCE}'; media-src 'self' file: blob:; "
    "img-src 'self' file: data: blob:; connect-src blob:; base-uri 'none'; form-action 'none'"
)
ONE_FILE_POLICY = (
    f"default-src 'none'; script-src 'nonce-{NONCE}' blob:; style-src 'nonce-{NONCE}'; media-src data:; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
# `defer`: they run in this order, once the page is there.
SCRIPTS = ("static/export.js", "data/index.js", "static/modules.js")
_IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*\(?\s*)"\./([^"]+)"')
Attributes = dict[str, str | None]


@dataclass
class Parts:
    """The addresses in a page: links to pages, sounds to play, modules (below `static`), and other files of `static`."""

    links: list[str] = field(default_factory=list)
    sounds: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    assets: list[str] = field(default_factory=list)


class _Page(HTMLParser):
    """A copy of a page; `change` returns the replacement of a start tag (None: the tag as it is)."""

    def __init__(
        self,
        change: Callable[[str, Attributes], str | None],
        change_text: Callable[[str], str] = str,
        before_head_ends: str = "",
    ) -> None:
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self._change, self._change_text, self._before_head_ends = change, change_text, before_head_ends

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # Of a repeated attribute the first counts.
        given: Attributes = {}
        for key, value in attrs:
            given.setdefault(key, value)
        changed = self._change(tag, given)
        self.out.append(self.get_starttag_text() or "" if changed is None else changed)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.out.append(f"{self._before_head_ends}</{tag}>" if tag == "head" else f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.out.append(self._change_text(data))

    def handle_entityref(self, name: str) -> None:
        self.out.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.out.append(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        self.out.append(f"<!{decl}>")

    def copy(self, text: str) -> str:
        self.feed(text)
        self.close()
        return "".join(self.out)


def _tag(name: str, attributes: Attributes) -> str:
    written = (key if value is None else f'{key}="{escape(value)}"' for key, value in attributes.items())
    return f"<{' '.join([name, *written])}>"


def read_page(text: str) -> Parts:
    """Return the addresses in a page, in its order."""
    parts = Parts()

    def note(tag: str, attributes: Attributes) -> None:
        address = attributes.get("href") or attributes.get("src") or ""
        if address.startswith(STATIC) and ".." not in address:
            kind = parts.modules if tag == "script" else parts.assets
            kind.append(address.removeprefix(STATIC))
        elif tag == "a" and address.startswith("/"):
            parts.links.append(address)
        sound = attributes.get("data-clip") or ""
        if sound.startswith("/"):
            parts.sounds.append(sound)

    _Page(note).copy(text)
    return parts


def write_page(text: str, file_of: Callable[[str], str | None], change_text: Callable[[str], str]) -> str:
    """Return a page of an export; `file_of` gives a page's file, or None: then its links stay as text, and say so."""
    if nonce := re.search(r'<meta name="style-nonce" content="([^"]*)">', text):
        text = text.replace(nonce[1], NONCE)

    def change(tag: str, attributes: Attributes) -> str | None:
        if tag == "head":
            return f'<head><meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        for key in ("href", "src"):
            address = attributes.get(key) or ""
            if address.startswith(STATIC):
                name = address.removeprefix(STATIC)
                if tag == "script":
                    return _tag(tag, {"type": "text/plain", "data-module": name})
                return _tag(tag, attributes | {key: f"static/{name}"})
        address = attributes.get("href") or ""
        if tag != "a" or not address.startswith("/"):
            return None
        if (file := file_of(address)) is None:
            kept = {key: value for key, value in attributes.items() if key != "href"}
            return _tag(tag, kept | {"title": "This is not part of the export; the studio shows it."})
        # Scripts read the parameters; a file is found without them.
        query = urlsplit(address).query
        return _tag(tag, attributes | {"href": f"{file}?{query}" if query else file})

    scripts = "".join(f'<script defer src="{name}"></script>\n' for name in SCRIPTS)
    return _Page(change, change_text, scripts).copy(text)


def inline_page(
    text: str, read: Callable[[str], str], start: str, site: Sequence[Mapping[str, object]], change_text: Callable[[str], str]
) -> str:
    """Return a page that holds its styles and scripts, and refers to nothing outside itself.

    `read` gives the text of a file below `static`, `start` is the script that starts an export's page; `site` holds what that
    script needs: files or data: addresses by name, modules by name, and the texts of the files.
    """

    def change(tag: str, attributes: Attributes) -> str | None:
        if tag == "head":
            return f'<head><meta http-equiv="Content-Security-Policy" content="{escape(ONE_FILE_POLICY)}">'
        address = attributes.get("href") or attributes.get("src") or ""
        if tag == "meta" and attributes.get("name") == "style-nonce":
            return _tag(tag, attributes | {"content": NONCE})
        if tag == "link":
            css = read(address.removeprefix(STATIC)) if attributes.get("rel") == "stylesheet" else ""
            return f'<style nonce="{NONCE}">{css}</style>' if css else ""
        if tag == "script" and address.startswith(STATIC):
            return _tag(tag, {"type": "text/plain", "data-module": address.removeprefix(STATIC)})
        if tag == "a" and address.startswith("/"):
            return _tag("a", {"title": "This is not part of the report; the studio shows it."})
        return None

    files, modules, texts = (_script_json(part) for part in site)
    scripts = (
        f"{start}\nObject.assign(paras2sSite, {{ files: {files}, modules: {modules} }});\n"
        f"for (const [file, text] of Object.entries({texts})) paras2sSite.add(file, text);"
    )
    return _Page(change, change_text, f'<script nonce="{NONCE}">{scripts}</script>\n').copy(text)


def _script_json(value: Mapping[str, object]) -> str:
    """Return a value as an expression of a script in a page: no word in it ends the script."""
    return f"JSON.parse({json.dumps(json.dumps(value)).replace('<', chr(92) + 'u003c')})"


def bundle_modules(names: Sequence[str], read: Callable[[str], str]) -> dict[str, str]:
    """Return the text of modules and of all they import, by name below `static`; imports are named "module:NAME"."""
    texts: dict[str, str] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in texts:
            continue
        folder, slash, _ = name.rpartition("/")
        text = read(name)
        pending += [f"{folder}{slash}{match[2]}" for match in _IMPORT.finditer(text)]
        texts[name] = _IMPORT.sub(rf'\1"module:{folder}{slash}\2"', text)
    return texts
