/** How the tests are reported: a dot for each that passes; the name and the error of each that fails, at once. */

import { inspect } from "node:util";
import type { TestEvent } from "node:test/reporters";

export default async function* report(source: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  let dots = 0;
  for await (const { type, data } of source) {
    if (type === "test:pass") {
      dots += 1;
      yield dots % 80 === 0 ? ".\n" : ".";
    } else if (type === "test:fail") {
      dots = 0;
      const { error } = data.details;
      yield `\nFAIL ${data.name}\n${inspect(error.cause ?? error, { depth: 0 })}\n`;
    } else if (type === "test:diagnostic" && data.nesting === 0) {
      if (dots > 0) yield "\n";
      dots = 0;
      yield `${data.message}\n`;
    }
  }
}
