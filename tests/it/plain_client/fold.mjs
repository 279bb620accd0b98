// Folds what comes on standard input, a list of lists of events, and prints the list of their states.

import { readFileSync } from "node:fs";

import { initial, reduce } from "./client.mjs";

const streams = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(streams.map((events) => events.reduce(reduce, initial))));
