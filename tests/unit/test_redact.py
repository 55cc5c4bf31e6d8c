"""What is taken for a credential, what is not, and that masking hides all of it."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from stepseven.store.redact import MASK, find_secret, mask

# Made up, and put together here so that no scanner takes this file for a leak.
A = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
HEX = hashlib.sha256(b"made up").hexdigest()
PEM = f"-----BEGIN RSA {'PRIVATE'} KEY-----\nMIIEpAIBAAKCAQEA{A}\n{A}{A}\n-----END RSA {'PRIVATE'} KEY-----"
JWT = f"eyJhbGciOiJIUzI1NiJ9.eyJ{A[:20]}.{A}"

CREDENTIALS = {
    "sk-" + A + A[:16]: "an OpenAI key",
    "sk-proj-" + A + "_-" + A: "an OpenAI key",
    "sk-ant-api03-" + A + "-" + A: "an Anthropic key",
    "sk_live_" + A[:24]: "a Stripe key",
    "rk_live_" + A[:24]: "a Stripe key",
    "whsec_" + A: "a webhook secret",
    "ghp_" + A + A[:4]: "a GitHub token",
    "gho_" + A + A[:4]: "a GitHub token",
    "ghs_" + A + A[:4]: "a GitHub token",
    "github_pat_" + A[:22] + "_" + A + A[:27]: "a GitHub token",
    "glpat-" + A[:20]: "a GitLab token",
    "xoxb-123456789012-1234567890123-" + A[:24]: "a Slack token",
    "xapp-1-A0123456789-1234567890123-" + HEX: "a Slack token",
    "AKIA" + "ABCDEFGH23456789": "an AWS access key",
    "ASIA" + "ABCDEFGH23456789": "an AWS access key",
    "AIza" + A + "abc": "a Google key",
    "ya29." + A + A: "a Google key",
    "SG." + A[:22] + "." + A + A[:11]: "a SendGrid key",
    "npm_" + A + A[:4]: "an npm token",
    "pypi-AgE" + A + A: "a PyPI token",
    "sbp_" + HEX[:40]: "a Supabase token",
    "pat" + A[:14] + "." + HEX: "an Airtable token",
    "hf_" + A + "ab": "a Hugging Face token",
    "s7_" + HEX[:12] + (A + A)[:43]: "a stepseven token",
    "s7s_" + HEX[:12] + (A + A)[:43]: "a stepseven token",
    JWT: "a signed token (JWT)",
    PEM: "a private key",
}
IN_CONTEXT = {
    "Authorization: Bearer abc.def-12345": "a bearer token",
    "curl -H 'authorization: bearer 0123456789abcdef0123456789abcdef'": "a bearer token",
    f"Bearer {HEX}": "a bearer token",
    "Authorization: Basic dXNlcjpwYXNz": "a password in a header",
    '{"Authorization":"Bearer abcd1234"}': "a bearer token",
    "postgresql://app:s3cr3t!@db.example.com/x": "a password in a URL",
    "redis://:hunter22@localhost:6379/0": "a password in a URL",
    f"aws_secret_access_key = {'wJalrXUtnFEMI/K7MDENG/bPxRfiCY' + 'abcdefghij'}": "an AWS secret key",
    f"twilio key SK{HEX[:32]}": "a Twilio key",
}
HARMLESS = [
    "sk-iing in the Alps, sk-learn, task-2026-03-14-the-quarterly-report, risk-assessment-for-the-board",
    "sk-bratislava-office-2024-report-final-version",
    base64.urlsafe_b64encode(b"".join(hashlib.sha512(bytes([n])).digest() for n in range(256)) * 4).decode(),
    "c3VyZQ-sk-" + A,
    "INV-2026-000123456789012345678901",
    str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)),
    HEX,
    "sha256:" + HEX,
    "SK" + HEX[:32],
    "data:image/png;base64," + base64.b64encode(hashlib.sha512(b"x").digest() * 40).decode(),
    "mail ann@example.com or https://example.com/@ann?x=1:2@3",
    "https://user:password@example.com and https://user:***@example.com and postgres://u:${PASSWORD}@h/d",
    "The bearer of this letter is authorised. Bearer certificates.",
    "Authorization: none",
    "open_questions_count_per_client_and_quarter hf_hub npm_config_registry gho_st ghp_ whsec_",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBa\n-----END CERTIFICATE-----",
    "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWx msg_01XFDUDYJgAACzvnptvVoYEL toolu_01A09q90qw90lq917835lq9",
    "eyJ is how base64 of JSON starts",
    "ASIA PACIFIC, AKIAK, SG. 1234567890123456789012",
    "",
]


@pytest.mark.parametrize("text, what", (CREDENTIALS | IN_CONTEXT).items())
def test_credential_is_found_and_masked(text: str, what: str) -> None:
    """Each provider's credential is named for what it is, and nothing of its secret part is left after masking."""
    assert find_secret(text) == what
    masked = mask(text)
    assert MASK in masked
    assert find_secret(masked) is None


@pytest.mark.parametrize("text, what", CREDENTIALS.items())
@pytest.mark.parametrize("before", ["", "key=", '"', "a line\n", "tab\t", "\x1b", "é", "note: ", "\r\n", "(", "/"])
def test_credential_is_found_in_json_text(text: str, what: str, before: str) -> None:
    """Escaping does not hide a credential: what stands before it may have become a backslash and a letter."""
    encoded = to_json({"n": 1, "note": [before + text + "\nrest"]}).decode()
    assert find_secret(encoded) == what
    assert find_secret(json.dumps(before + text)) == what
    assert find_secret(mask(before + text + " rest")) is None


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_is_left_alone(text: str) -> None:
    """Slugs, invoice numbers, UUIDs, hashes, images and documentation are no credentials."""
    assert find_secret(text) is None
    assert find_secret(json.dumps({"text": text})) is None
    assert mask(text) == text


def test_many_runs_do_not_hide_a_credential() -> None:
    """A credential after any number of hashes and UUIDs is still found."""
    for n in (0, 1, 7, 8, 9, 30):
        assert find_secret((HEX + " ") * n + "ghp_" + A + A[:4]) == "a GitHub token"
        assert find_secret(("ordinary_long_identifier_" + A + " ") * n + "npm_" + A + A[:4]) == "an npm token"


def test_only_the_secret_part_is_masked() -> None:
    """What helps to understand an error stays: the header's name, the host, the user."""
    assert mask("postgresql://app:s3cr3t!@db/x refused") == f"postgresql://app:{MASK}@db/x refused"
    assert mask("Authorization: Bearer abc.def-12345") == f"Authorization: Bearer {MASK}"


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(list(CREDENTIALS | IN_CONTEXT))), max_size=5))
def test_mask_is_idempotent_and_complete(parts: list[str]) -> None:
    """Whatever stands around credentials: after masking none is found, and masking again changes nothing."""
    masked = mask(" ".join(parts))
    assert find_secret(masked) is None
    assert mask(masked) == masked
