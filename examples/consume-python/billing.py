"""A service that makes an invoice for each order event. Only Python's standard library.

`pgonce consume` posts each event to it, in the order of its subject, and tries again until it is answered with 2xx. The same
event may come twice, always with the same Idempotency-Key: what was invoiced under a key is not invoiced again.

    python3 billing.py [PORT]
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

invoices = {}
lock = threading.Lock()


class Billing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        event = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if "amount" not in event:
            # It never will be: kept for an operator at once, instead of being tried again.
            return self.answer(422, {"error": "no amount"}, {"Pgonce-Disposition": "refuse"})
        with lock:
            invoice = {"order": self.headers["ce-subject"], "amount": event["amount"]}
            invoices.setdefault(self.headers["Idempotency-Key"], invoice)
        self.answer(200, {})

    def do_GET(self):
        with lock:
            self.answer(200, list(invoices.values()))

    def answer(self, status, body, headers=()):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9000), Billing)
    print(f"billing on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
