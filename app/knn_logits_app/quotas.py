"""Limits how much of the server one address may use, so that other visitors have their share."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any


@dataclass(frozen=True)
class Quotas:
    """The most that one address may have at a time.

    Attributes:
        waiting: Requests that run the model or wait for it.
        uploaded: Bytes of uploads that were not deleted yet.
        uploaded_by_all: Bytes of such uploads of all addresses together.
        stores: Datastores of visitors' own texts.
        stores_of_all: Such datastores of all addresses together.
    """

    waiting: int = 16
    uploaded: int = 20_000_000
    uploaded_by_all: int = 200_000_000
    stores: int = 8
    stores_of_all: int = 64


def address_of(scope: MutableMapping[str, Any]) -> str:
    """Returns the address of a visitor. Of an IPv6 address it is the /64 network of a household.

    On a Hub Space all requests come through the Hub's servers. The last public address that these
    wrote into `x-forwarded-for` is the visitor's. Elsewhere a client could invent this header, so
    uvicorn trusts it only from this machine and from FORWARDED_ALLOW_IPS.
    """
    client = scope.get("client")
    found = str(client[0]) if client else ""
    if os.environ.get("SPACE_ID"):
        noted = [
            one.strip()
            for name, value in scope["headers"]
            if name == b"x-forwarded-for"
            for one in value.decode("latin-1").split(",")
        ]
        found = next((one for one in reversed(noted) if _public(one)), found)
    try:
        address = ip_address(found)
    except ValueError:
        return found
    return str(ip_network((address, 64), strict=False)) if address.version == 6 else found


def _public(address: str) -> bool:
    try:
        return ip_address(address).is_global
    except ValueError:
        return False
