/** All tests in one process, so that they share one server. */

import "./vectors.test.js";
import "./conformance.test.js";
import "./once.test.js";
import "./http.test.js";
import "./doubt.test.js";
import "./connections.test.js";
import "./silent.test.js";
import "./storm.test.js";
import "./services.test.js";
import "./example.test.js";
import "./package.test.js";
