"""Callback URLs lead to public addresses, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dragoman.security.urls import DENIED, PRIVATE, Network, Pinned, UrlRefused, pin

PUBLIC = "93.184.216.34"


class Names:
    """A name server that counts."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


async def test_a_public_url_is_pinned_to_its_address() -> None:
    pinned = await pin("https://agent.example:8443/hook?a=1#x", resolve=Names([PUBLIC]))
    assert pinned == Pinned(scheme="https", host="agent.example", port=8443, address=PUBLIC, target="/hook?a=1")
    assert pinned.url == f"https://{PUBLIC}:8443/hook?a=1"
    assert pinned.host_header == "agent.example:8443"


async def test_the_name_stays_in_the_host_header_and_ipv6_in_brackets() -> None:
    pinned = await pin("http://agent.example", resolve=Names(["2606:2800:220:1::1"]))
    assert (pinned.url, pinned.host_header) == ("http://[2606:2800:220:1::1]:80/", "agent.example")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
        "169.254.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1",
        "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:93.184.216.34",
        "2002:7f00:1::", "2002:a9fe:a9fe::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "::7f00:1", "2001:db8::1",
        "2001:0:7f00:1:0:0:80ff:fffe",
    ],
)  # fmt: skip
async def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(UrlRefused, match="not a public address"):
        await pin("http://agent.example/", resolve=Names([address]))


async def test_one_bad_address_among_good_ones_is_enough() -> None:
    with pytest.raises(UrlRefused):
        await pin("http://agent.example/", resolve=Names([PUBLIC, "127.0.0.1"]))


async def test_a_name_is_resolved_once() -> None:
    names = Names([PUBLIC], ["127.0.0.1"])
    pinned = await pin("http://rebinding.example/", resolve=names)
    assert (pinned.address, names.asked) == (PUBLIC, 1)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://agent.example/", "file:///etc/passwd", "gopher://agent.example/", "javascript:alert(1)",
        "//agent.example/", "http://", "http:///x", "agent.example", "", "http://user:secret@agent.example/", "http://user@agent.example/",
        "http://agent.example:0/", "http://agent.example:99999/", "http://agent.example:x/",
        "http://agent.example/\r\nX: y",
        "http://agent.example/\x00", "http://agent.example /", "http://ägent.example/", "http://[fe80::1%25eth0]/",
        "http://agent.example\\@127.0.0.1/", "http://" + "a" * 3000,
    ],
)  # fmt: skip
async def test_what_is_not_a_plain_http_url_is_refused_before_it_is_resolved(url: str) -> None:
    names = Names([PUBLIC])
    with pytest.raises(UrlRefused) as refused:
        await pin(url, resolve=names)
    assert names.asked == 0
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://127.1/", "http://2130706433/", "http://0x7f.1/", "http://[::1]/"]
)
async def test_this_machine_is_refused_however_it_is_written(url: str) -> None:
    with pytest.raises(UrlRefused):
        await pin(url)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "fd12::1"])
async def test_an_operator_may_open_private_networks(address: str) -> None:
    assert (await pin("http://agent.example/", allowed=PRIVATE, resolve=Names([address]))).address == address


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"]
)
async def test_metadata_addresses_stay_shut_even_then(address: str) -> None:
    with pytest.raises(UrlRefused):
        await pin("http://agent.example/", allowed=PRIVATE, resolve=Names([address]))


@pytest.mark.parametrize("network", DENIED, ids=str)
async def test_every_denied_network_is_refused_from_its_first_address_to_its_last(network: Network) -> None:
    for address in (network[0], network[-1]):
        with pytest.raises(UrlRefused, match="not a public address"):
            await pin("http://agent.example/", resolve=Names([str(address)]))


@pytest.mark.parametrize(
    "address",
    [
        "168.63.129.16", "192.0.0.192", "192.88.99.1", "fec0::1", "feff::1", "3fff::1", "3fff:fff::1", "5f00::1",
        "64:ff9b:1::1", "64:ff9b:1:ffff::808:808", "100.100.100.200", "0.1.2.3",
        # what an IPv6 address wraps is looked at in the same way
        "64:ff9b::a83f:8110", "64:ff9b::c000:c0", "64:ff9b::a00:1", "64:ff9b::6440:1", "2002:a83f:8110::",
        "2002:c000:c0::", "2002:a00:1::", "2002:6440:1::", "::ffff:168.63.129.16",
    ],
)  # fmt: skip
async def test_an_address_of_which_python_says_that_it_is_global_is_refused(address: str) -> None:
    with pytest.raises(UrlRefused, match="not a public address"):
        await pin("http://agent.example/", resolve=Names([address]))


@pytest.mark.parametrize("address", ["168.63.129.15", "192.88.98.1", "2606:4700::1", "100.128.0.1"])
async def test_what_lies_beside_them_is_called(address: str) -> None:
    assert (await pin("http://agent.example/", resolve=Names([address]))).address == address


async def test_a_name_that_leads_nowhere_is_refused() -> None:
    async def nowhere(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    with pytest.raises(UrlRefused, match="cannot be resolved"):
        await pin("http://agent.example/", resolve=nowhere)
    with pytest.raises(UrlRefused, match="no address"):
        await pin("http://agent.example/", resolve=Names([]))
