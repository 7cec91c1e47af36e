/** Digests, keys and signatures are those of every other client. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import path from "node:path";
import { describe } from "node:test";
import {
  BadKey,
  Invalid,
  WebhookError,
  canonicalJson,
  classify,
  derivedKey,
  fingerprint,
  lintKey,
  newKey,
  parseJson,
  resourceId,
  signWebhook,
  toJson,
  verifyWebhook,
} from "pgonce";
import { it } from "./limit.js";
import { PACKAGE, REPOSITORY } from "./server.js";

function vectors<T>(name: string): T {
  return parseJson(readFileSync(path.join(REPOSITORY, name), "utf8")) as T;
}

interface FingerprintVector {
  json: string;
  operation?: string;
  version?: string;
  canonical: string;
  sha256: string;
}

interface KeyVectors {
  derived: { namespace: string; parts: string[]; key: string }[];
  resource: { namespace: string; parts: string[]; id: string }[];
}

interface LintVectors {
  good: string[];
  bad: Record<string, string[]>;
}

interface WebhookVector {
  name: string;
  secrets: string[];
  headers: Record<string, string>;
  body: string;
  now: number;
  id?: string;
  error?: string;
}

describe("vectors", () => {
  it("a fingerprint is that of every client", () => {
    for (const { json, operation = "", version = "", canonical, sha256 } of vectors<FingerprintVector[]>(
      "docs/src/reference/fingerprints.json",
    )) {
      const request = parseJson(json);
      assert.equal(canonicalJson(request), canonical, json);
      assert.equal(fingerprint(request, { operation, version }).toString("hex"), sha256, json);
    }
  });

  it("chosen fields alone count and absent is not null", () => {
    const include = ["/id", "/note"];
    const one = fingerprint({ id: 1, x: 1 }, { include });
    assert.deepEqual(one, fingerprint({ id: 1, x: 2 }, { include }));
    assert.deepEqual(one, fingerprint([["/id", 1]]));
    assert.notDeepEqual(one, fingerprint({ id: 1, note: null }, { include }));
    const request = { meta: { at: 1, b: 2 }, list: [1, 2] };
    const left = fingerprint(request, { exclude: ["/meta/at", "/list/0", "/none/there"] });
    assert.deepEqual(left, fingerprint({ meta: { b: 2 }, list: [2] }));
    assert.deepEqual(request, { meta: { at: 1, b: 2 }, list: [1, 2] }, "the caller's own request is not changed");
    const items = { a: [10, 11, 12, ...Array(9).fill(0)] };
    const twice = ["/a/0", "/a/1", "/a/10", "/a/9", "/a/0", "/a/01"];
    assert.deepEqual(fingerprint(items, { exclude: twice }), fingerprint({ a: [12, ...Array(7).fill(0)] }));
  });

  it("fields that no request has are refused", () => {
    for (const pointers of [["id"], [""], ["/id", "#/id"]]) {
      assert.throws(() => fingerprint({ id: 1 }, { include: pointers }), Invalid, "include");
      assert.throws(() => fingerprint({ id: 1 }, { exclude: pointers }), Invalid, "exclude");
    }
    assert.throws(() => fingerprint({ id: 1 }, { include: ["/no", "/none/there"] }), /none of the fields/);
    assert.throws(() => fingerprint({ id: 1 }, { include: ["/id"], exclude: ["/id"] }), /none of the fields/);
  });

  it("what is not JSON has no fingerprint", () => {
    for (const bad of [NaN, Infinity, 10n ** 400n, "\ud800", { "\udc00": 1 }, () => 1, Buffer.from("x"), new Map()]) {
      assert.throws(() => fingerprint(bad), Invalid);
    }
  });

  it("dates and absent members count as JSON.stringify writes them", () => {
    const at = new Date(0);
    assert.equal(canonicalJson({ at, none: undefined, list: [undefined] }), '{"at":"1970-01-01T00:00:00.000Z","list":[null]}');
  });

  it("a double is written as ECMAScript does", () => {
    for (const [hex, text] of vectors<[string, string][]>("conformance/vectors/numbers.json")) {
      assert.equal(canonicalJson(fromHex(hex)), text, hex);
    }
  });

  it("JSON keeps integers beyond 2^53 and nothing else changes", () => {
    const text = '{"a":[9007199254740993,-9007199254740993,1.5,1e2,"\\u00e9\\n"],"__proto__":{"x":null},"b":{},"c":[]}';
    const value = parseJson(text) as { a: unknown[] };
    assert.deepEqual(value.a, [9007199254740993n, -9007199254740993n, 1.5, 100, "é\n"]);
    assert.deepEqual(parseJson(toJson(value)), value);
    for (const bad of ["", "[1,]", "{,}", '{"a"}', "01", "1 2", "[", '"\n"', "nul", '{"a":1,}', "+1", "1.", "'a'"]) {
      assert.throws(() => parseJson(bad), SyntaxError, bad);
    }
  });

  it("derived keys and resource ids are those of every client", () => {
    const { derived, resource } = vectors<KeyVectors>("conformance/vectors/keys.json");
    for (const { namespace, parts, key } of derived) assert.equal(derivedKey(namespace, ...parts), key);
    for (const { namespace, parts, id } of resource) assert.equal(resourceId(namespace, ...parts), id);
  });

  it("a key is good or bad as for every client, and a bad one is never repeated", () => {
    const { good, bad } = vectors<LintVectors>("conformance/vectors/lint.json");
    for (const key of [...good, newKey(), derivedKey("invoice", "acme"), resourceId("order", "7")]) lintKey(key);
    for (const [fault, keys] of Object.entries(bad)) {
      for (const key of keys) {
        const refused = (raised: unknown): boolean => {
          assert.ok(raised instanceof BadKey && raised instanceof Invalid, String(raised));
          assert.deepEqual([raised.fault, raised.code], [fault, fault === "empty" ? "P4001" : "22023"], JSON.stringify(key));
          return key.length < 12 || !raised.message.includes(key);
        };
        assert.throws(() => lintKey(key), refused, JSON.stringify(key));
      }
    }
  });

  it("a new key is a UUID of version 7 and never the same", () => {
    const [one, two] = [newKey(), newKey()];
    assert.notEqual(one, two);
    assert.match(one, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  });

  for (const { name, secrets, headers, body, now, id, error } of vectors<WebhookVector[]>("conformance/vectors/webhooks.json")) {
    it(`a webhook: ${name}`, () => {
      const verify = (): string => verifyWebhook(secrets, headers, Buffer.from(body), { now });
      if (error === undefined) assert.equal(verify(), id);
      else assert.throws(verify, (raised) => raised instanceof WebhookError && raised.code === error);
    });
  }

  it("a signature that we make is one that we accept, by any kind of headers", () => {
    const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const headers = { "Webhook-Id": "m", "Webhook-Timestamp": "100", "Webhook-Signature": signWebhook(secret, "m", 100, "x") };
    assert.equal(verifyWebhook(secret, headers, "x", { now: 100 }), "m");
    assert.equal(verifyWebhook([secret], new Headers(headers), "x", { now: 100 }), "m");
  });

  it("the table of codes is the one of the program", () => {
    const checked = spawnSync(process.execPath, [path.join(PACKAGE, "scripts/make-codes.mjs"), "--check"], { encoding: "utf8" });
    assert.equal(checked.status, 0, checked.stderr);
  });

  it("a code without a line goes by its group and an unknown one is final", () => {
    assert.deepEqual(["40P01", "08P01", "53100", "08007"].map(classify), ["retry", "retry", "retry_after_delay", "ambiguous"]);
    for (const code of ["XX000", "", "0", "4000", "400011", "P0001"]) assert.equal(classify(code), "final");
  });
});

/** A double from C's hexadecimal form. */
function fromHex(text: string): number {
  const [, sign, whole, digits, power] = /^(-?)0x([01])\.([0-9a-f]+)p([-+][0-9]+)$/.exec(text) ?? [];
  const mantissa = Number(whole) + parseInt(digits ?? "", 16) / 16 ** (digits ?? "").length;
  // In two steps: 2 to the power of -1074 alone would be rounded away.
  const exponent = Number(power);
  const half = Math.trunc(exponent / 2);
  return (sign === "-" ? -1 : 1) * mantissa * 2 ** half * 2 ** (exponent - half);
}
