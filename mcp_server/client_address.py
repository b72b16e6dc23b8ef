"""Who a client is, as far as limits are concerned that hold before anything is proven."""

import ipaddress


def network_of(address: str) -> str:
    """The part of a client's address that its user cannot choose: all of IPv4, 64 bits of IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    if mapped is not None or parsed.version == 4:
        return str(mapped or parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
