/** A TCP proxy that cuts connections to PostgreSQL at a chosen message. */

import net from "node:net";

/** What to do when a statement passes: once. */
export interface Fault {
  /** How the statement begins. */
  at: string;
  /**
   * `request`: cut before the server sees it. `reply`: cut after the server has done it, before the client learns of
   * it. `abort`: make the transaction fail right before it. `silence`: pass it on, and nothing after it, either way; the
   * connection stays open, also where the client ends its half. `hold`: keep the replies until `goOn`. `panic`: as `reply`, with an error of that severity as the
   * last message.
   */
  action: "request" | "reply" | "abort" | "silence" | "hold" | "panic";
  /** How the server writes the severity. */
  severity?: string;
  /** How many such statements pass before. */
  skip?: number;
}

/** Passes everything on, but for the faults it is given. */
export class Proxy {
  faults: Fault[] = [];
  struck = 0;
  port = 0;
  private readonly server: net.Server;
  private readonly links = new Set<Link>();

  constructor(target: number) {
    // Without half-open connections even a silent link would answer the end of its client.
    this.server = net.createServer({ allowHalfOpen: true }, (client) => {
      const link = new Link(this, client, net.connect(target, "127.0.0.1"));
      this.links.add(link);
      client.on("close", () => this.links.delete(link));
    });
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    this.port = (this.server.address() as net.AddressInfo).port;
  }

  close(): void {
    this.server.close();
    for (const link of this.links) link.cut();
  }

  /** Passes on what was held. */
  goOn(): void {
    for (const link of this.links) link.goOn();
  }

  /** Breaks every connection: the client gets an error of its socket, and some turns later its end. */
  reset(): void {
    for (const link of this.links) link.reset();
  }

  take(text: string): Fault | undefined {
    const found = this.faults.findIndex(({ at }) => text.trim().toLowerCase().startsWith(at));
    const fault = this.faults[found];
    if (fault === undefined) return undefined;
    if (fault.skip !== undefined && fault.skip > 0) {
      fault.skip -= 1;
      return undefined;
    }
    this.faults.splice(found, 1);
    this.struck += 1;
    return fault;
  }
}

class Link {
  private readonly named = new Map<string, string>();
  private started = false;
  private swallow = 0;
  private cutAfterReply = false;
  private flushed = false;
  private silent = false;
  private lastMessage: Buffer | undefined;
  private held: Buffer[] | undefined;

  constructor(
    private readonly proxy: Proxy,
    private readonly client: net.Socket,
    private readonly server: net.Socket,
  ) {
    for (const end of [client, server]) {
      // Messages are passed on one by one: each would wait for the acknowledgement of the last.
      end.setNoDelay(true);
      end.on("error", () => this.cut());
    }
    server.on("close", () => {
      // The last message is still on its way, or there is none.
      if (this.lastMessage === undefined && !this.silent) this.cut();
    });
    client.on("end", () => {
      // The server learns of it, and frees its locks.
      if (this.silent) server.destroy();
      else client.end();
    });
    client.on("close", () => {
      // The server is to finish what it got.
      if (!this.cutAfterReply) this.cut();
    });
    messages(client, () => !this.started, (message) => this.forward(message));
    messages(server, () => false, (message) => this.backward(message));
  }

  cut(): void {
    this.client.destroy();
    this.server.destroy();
  }

  reset(): void {
    this.client.resetAndDestroy();
    this.server.destroy();
  }

  goOn(): void {
    for (const message of this.held ?? []) this.client.write(message);
    this.held = undefined;
  }

  private forward(message: Buffer): void {
    if (this.silent) return;
    if (!this.started) {
      // The first message has no type.
      this.started = true;
      this.server.write(message);
      return;
    }
    const text = this.statement(message);
    const fault = text === undefined ? undefined : this.proxy.take(text);
    if (fault?.action === "request") {
      this.cut();
      return;
    }
    if (fault?.action === "silence") this.silent = true;
    if (fault?.action === "hold") this.held = [];
    if (fault?.action === "reply" || fault?.action === "panic") this.cutAfterReply = true;
    if (fault?.action === "panic") this.lastMessage = errorMessage(fault.severity ?? "PANIC");
    if (fault?.action === "abort") {
      this.swallow += 1;
      this.server.write(simple("select 1/0"));
    }
    // postgres.js prepares with Flush instead of Sync: then no "ready" will come.
    if (this.cutAfterReply && message[0] === 72) this.flushed = true;
    this.server.write(message);
  }

  private backward(message: Buffer): void {
    if (this.server.destroyed) return;
    const ready = message[0] === 90;
    if (this.silent) return;
    if (this.swallow > 0) {
      if (ready) this.swallow -= 1;
    } else if (this.cutAfterReply) {
      if (!ready && !this.flushed) return;
      this.server.destroy();
      if (this.lastMessage === undefined) this.client.destroy();
      else this.client.end(this.lastMessage);
    } else if (this.held !== undefined) {
      this.held.push(message);
    } else {
      this.client.write(message);
    }
  }

  private statement(message: Buffer): string | undefined {
    const [first = "", second = ""] = message.subarray(5).toString("utf8").split("\0");
    switch (message[0]) {
      case 81: // Query
        return first;
      case 80: // Parse: name, text
        this.named.set(first, second);
        return second;
      case 66: // Bind: portal, name. What was just parsed has been seen.
        return this.named.get(second) !== undefined && second !== "" && this.seen(second) ? this.named.get(second) : undefined;
      default:
        return undefined;
    }
  }

  private readonly bound = new Set<string>();

  /** Whether a named statement was bound before, so that this is a further use of it. */
  private seen(name: string): boolean {
    const before = this.bound.has(name);
    this.bound.add(name);
    return before;
  }
}

function messages(socket: net.Socket, untyped: () => boolean, onMessage: (message: Buffer) => void): void {
  let pending = Buffer.alloc(0);
  socket.on("data", (chunk: Buffer) => {
    pending = Buffer.concat([pending, chunk]);
    for (;;) {
      const head = untyped() ? 0 : 1;
      if (pending.length < head + 4) return;
      const length = head + pending.readUInt32BE(head);
      if (pending.length < length) return;
      const message = pending.subarray(0, length);
      pending = pending.subarray(length);
      onMessage(message);
    }
  });
}

function simple(text: string): Buffer {
  return typed("Q", `${text}\0`);
}

function errorMessage(severity: string): Buffer {
  return typed("E", `S${severity}\0VPANIC\0C58030\0Mcould not write to file\0\0`);
}

function typed(type: string, text: string): Buffer {
  const body = Buffer.from(text);
  const head = Buffer.alloc(5);
  head.write(type);
  head.writeUInt32BE(body.length + 4, 1);
  return Buffer.concat([head, body]);
}
