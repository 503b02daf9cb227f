"""Addresses of endpoints: their usual form, and whether a server is the user's own."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlparse

# Paths of single calls, which manuals show beside the address that they belong to.
CALLS = ("/chat/completions", "/completions")


def is_loopback(url: str) -> bool:
    """Return whether an address is of this machine."""
    host = urlparse(url).hostname or ""
    address = _ip(host)
    return host == "localhost" or (address is not None and (address.is_loopback or address.is_unspecified))


def is_private(url: str) -> bool:
    """Return whether an address is of this machine or of a private network: it needs no key, and has few slots."""
    host = urlparse(url).hostname or ""
    address = _ip(host)
    if address is not None:
        return address.is_private or address.is_loopback or address.is_link_local or address.is_unspecified
    # Containers and machines of a network have names without a dot, or under these endings.
    return "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa"))


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def endpoint_url(text: str) -> str:
    """Return an address with its scheme, and without a call's path. Raises ValueError: it holds a key, a query or no host."""
    url = text.strip()
    if "://" not in url:
        url = f"{'http' if is_private(f'http://{url}') else 'https'}://{url}"
    try:
        parts = urlparse(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no address ({error})") from error
    if parts.scheme not in ("http", "https") or not host or any(sign.isspace() for sign in url):
        raise ValueError(f"{text!r} is no address; give one such as http://127.0.0.1:8080/v1")
    if "@" in parts.netloc:
        raise ValueError("an address holds no key; set it in the environment, and name the variable as api_key_env")
    if parts.query or parts.fragment:
        raise ValueError(
            f"leave {'?' + parts.query if parts.query else '#' + parts.fragment} out; Azure's address is https://NAME.openai.azure.com/openai/v1"
        )
    for call in CALLS:
        if url.rstrip("/").endswith(call):
            return url.rstrip("/").removesuffix(call)
    return url


def llm_url(text: str) -> str:
    """Return a language model server's address: `endpoint_url`, with /v1 without a path. Raises ValueError: it is none."""
    url = endpoint_url(text)
    return url if urlparse(url).path.strip("/") else f"{url.rstrip('/')}/v1"
