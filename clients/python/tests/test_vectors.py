"""Digests, keys and signatures are those of every other client."""

from __future__ import annotations

import json
import subprocess
import sys
from enum import Enum
from typing import Any

import pytest
from server import REPOSITORY

from pgonce import Class, Intent, canonical, classify, derived_key, fingerprint, lint_key, new_key, resource_id, webhooks
from pgonce._intent import to_json
from pgonce._messages import message
from pgonce.errors import Invalid
from pgonce.fingerprint import number
from pgonce.keys import BadKey

FINGERPRINTS = json.loads((REPOSITORY / "docs/src/reference/fingerprints.json").read_text("utf-8"))
VECTORS = REPOSITORY / "conformance/vectors"


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text("utf-8"))


@pytest.mark.parametrize("vector", FINGERPRINTS, ids=lambda vector: str(vector["json"])[:40])
def test_a_fingerprint_is_that_of_every_client(vector: dict[str, str]) -> None:
    request = json.loads(vector["json"])
    assert canonical(request).decode("utf-8") == vector["canonical"]
    made = fingerprint(request, operation=vector.get("operation", ""), version=vector.get("version", ""))
    assert made.hex() == vector["sha256"]


def test_chosen_fields_alone_count_and_absent_is_not_null() -> None:
    include = ["/id", "/note"]
    one = fingerprint({"id": 1, "x": 1}, include=include)
    assert one == fingerprint({"id": 1, "x": 2}, include=include)
    assert one == fingerprint([["/id", 1]])
    assert one != fingerprint({"id": 1, "note": None}, include=include)
    request = {"meta": {"at": 1, "b": 2}, "list": [1, 2]}
    left_out = fingerprint(request, exclude=["/meta/at", "/list/0", "/none/there"])
    assert left_out == fingerprint({"meta": {"b": 2}, "list": [2]})
    assert request == {"meta": {"at": 1, "b": 2}, "list": [1, 2]}, "the caller's own request is not changed"
    twice = ["/a/0", "/a/1", "/a/10", "/a/9", "/a/0", "/a/01"]
    assert fingerprint({"a": [10, 11, 12, *[0] * 9]}, exclude=twice) == fingerprint({"a": [12, *[0] * 7]})


@pytest.mark.parametrize("pointers", [["id"], [""], ["/id", "#/id"]], ids=str)
def test_fields_that_no_request_has_are_refused(pointers: list[str]) -> None:
    with pytest.raises(Invalid):
        fingerprint({"id": 1}, include=pointers)
    with pytest.raises(Invalid):
        fingerprint({"id": 1}, exclude=pointers)
    for missing, without in (["/no", "/none/there"], []), (["/id"], ["/id"]):
        with pytest.raises(Invalid, match="none of the fields"):
            fingerprint({"id": 1}, include=missing, exclude=without)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 10**400, "\ud800", {1: 2}, object(), b"bytes"])
def test_what_is_not_json_has_no_fingerprint(bad: object) -> None:
    with pytest.raises(Invalid):
        fingerprint(bad)


@pytest.mark.parametrize("vector", vectors("numbers.json"), ids=str)
def test_a_double_is_written_as_ecmascript_does(vector: list[str]) -> None:
    assert number(float.fromhex(vector[0])) == vector[1]


@pytest.mark.parametrize("vector", vectors("keys.json")["derived"], ids=str)
def test_a_derived_key_is_that_of_every_client(vector: dict[str, Any]) -> None:
    assert derived_key(vector["namespace"], *vector["parts"]) == vector["key"]


@pytest.mark.parametrize("vector", vectors("keys.json")["resource"], ids=str)
def test_a_resource_id_is_that_of_every_client(vector: dict[str, Any]) -> None:
    assert str(resource_id(vector["namespace"], *vector["parts"])) == vector["id"]


@pytest.mark.parametrize("key", vectors("lint.json")["good"], ids=ascii)
def test_a_good_key_passes_the_lint(key: str) -> None:
    lint_key(key)


@pytest.mark.parametrize(
    "fault, key", [(fault, key) for fault, keys in vectors("lint.json")["bad"].items() for key in keys], ids=ascii
)
def test_a_bad_key_is_refused_for_its_fault_and_never_repeated(fault: str, key: str) -> None:
    with pytest.raises(BadKey) as caught:
        lint_key(key)
    assert caught.value.fault == fault and isinstance(caught.value, Invalid)
    assert caught.value.code == ("P4001" if fault == "empty" else "22023") and caught.value.hint
    assert len(key) < 12 or key not in str(caught.value)


def test_keys_that_we_make_pass_the_lint() -> None:
    for key in (new_key(), derived_key("invoice", "acme"), str(resource_id("order", "7"))):
        lint_key(key)


def test_a_new_key_is_a_uuid_of_version_7_and_never_the_same() -> None:
    one, two = new_key(), new_key()
    assert one != two and one[14] == "7" and one[19] in "89ab"


@pytest.mark.parametrize("vector", vectors("webhooks.json"), ids=lambda vector: str(vector["name"]))
def test_a_webhook_is_verified_as_by_every_client(vector: dict[str, Any]) -> None:
    def verify() -> str:
        body = vector["body"].encode("utf-8")
        return webhooks.verify(vector["secrets"], vector["headers"], body, now=vector["now"])

    if "error" in vector:
        with pytest.raises(webhooks.WebhookError) as caught:
            verify()
        assert caught.value.code == vector["error"]
    else:
        assert verify() == vector["id"]


def test_a_signature_that_we_make_is_one_that_we_accept() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = {"Webhook-Id": "m", "Webhook-Timestamp": "100", "Webhook-Signature": webhooks.sign(secret, "m", 100, b"x")}
    assert webhooks.verify([secret], headers, b"x", now=100) == "m"


@pytest.mark.parametrize("digits", [19, 310, 5000])
def test_a_time_of_too_many_digits_is_outside_the_window(digits: int) -> None:
    headers = {"webhook-id": "m", "webhook-timestamp": "9" * digits, "webhook-signature": "v1,AAAA"}
    with pytest.raises(webhooks.WebhookError) as caught:
        webhooks.verify("whsec_MfKQ", headers, b"x")
    assert caught.value.code == "timestamp_outside_window"


def test_an_id_that_is_not_unicode_was_signed_by_nobody() -> None:
    headers = {"webhook-id": "\ud800", "webhook-timestamp": "100", "webhook-signature": "v1,AAAA"}
    with pytest.raises(webhooks.WebhookError) as caught:
        webhooks.verify("whsec_MfKQ", headers, b"x", now=100)
    assert caught.value.code == "signature_wrong"


class Colour(str, Enum):
    RED = "red"


class Size(int, Enum):
    LARGE = 3


def test_a_member_of_an_enumeration_counts_as_what_is_stored_of_it() -> None:
    request = {Colour.RED: [Colour.RED, Size.LARGE]}
    assert fingerprint(request) == fingerprint({"red": ["red", 3]}) == fingerprint(json.loads(to_json(request)))


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("part", lambda text: derived_key("n", "a", text)),
        ("namespace", lambda text: derived_key(text, "a")),
        ("part", lambda text: resource_id("n", text)),
        ("namespace", lambda text: resource_id(text, "a")),
        ("operation", lambda text: fingerprint({}, operation=text)),
        ("version", lambda text: fingerprint({}, version=text)),
        ("key", lambda text: Intent("s", text, b"x")),
        ("payload", lambda text: message("c", "s", "m", text, "")),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_wherever_it_would_count(what: str, call: Any) -> None:
    with pytest.raises(Invalid, match=f"the {what} is not Unicode") as caught:
        call("a\ud800")
    assert caught.value.code == "22023"


def test_the_table_of_codes_is_the_one_of_the_program() -> None:
    script = REPOSITORY / "clients/python/scripts/make_codes.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_a_code_without_a_line_goes_by_its_group_and_an_unknown_one_is_final() -> None:
    assert classify("40P01") is Class.RETRY
    assert classify("08P01") is Class.RETRY
    assert classify("53100") is Class.RETRY_AFTER_DELAY
    assert classify("08007") is Class.AMBIGUOUS
    assert {classify(code) for code in ("XX000", "", "0", "4000", "400011", "P0001")} == {Class.FINAL}
