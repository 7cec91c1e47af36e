"""An orders service that knows nothing of idempotency: every POST makes an order.

Only Python's standard library. `pgonce gateway` stands in front and makes each
order happen once; this file would be the same without it.

    python3 orders.py [PORT]
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

orders = []
lock = threading.Lock()


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        if self.path != "/orders":
            return self.answer(404, {"error": "no such path"})
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        with lock:
            # What the gateway sends, for our own log: which request, and which attempt.
            order = {
                "id": len(orders) + 1,
                "item": request["item"],
                "key": self.headers.get("Idempotency-Key"),
                "attempt": self.headers.get("Pgonce-Attempt"),
            }
            orders.append(order)
        self.answer(201, {"id": order["id"], "item": order["item"]}, {"Location": f"/orders/{order['id']}"})

    def do_GET(self):
        if self.path != "/orders":
            return self.answer(404, {"error": "no such path"})
        with lock:
            self.answer(200, list(orders))

    def answer(self, status, document, headers=None):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    server = ThreadingHTTPServer(("127.0.0.1", port), Orders)
    print(f"orders on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
