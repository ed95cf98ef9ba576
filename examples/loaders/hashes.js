// Hashes of texts, by JSON lines. Rule: hash:{algorithm}:{text*}
const { createHash, getHashes } = require("node:crypto");

const known = new Set(getHashes());
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
// Byte strings that are not UTF-8 come as base64.
const bytes = (part) => (typeof part === "string" ? Buffer.from(part) : Buffer.from(part.b64, "base64"));

function load({ args }) {
  if (!known.has(args.algorithm)) return { not_found: 60 };
  const hash = createHash(args.algorithm).update(bytes(args.text)).digest("hex");
  return { value: hash, ttl: 3600, tags: [`hash:${args.algorithm}`] };
}

require("node:readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    const message = JSON.parse(line);
    if (message.type === "retire") process.exit(0);
    if (message.type === "ping") say({ pong: true });
    if (message.type !== "job") return;
    try {
      say({ id: message.id, ...load(message) });
    } catch (error) {
      say({ id: message.id, error: { code: "exception", message: String(error), detail: error.stack } });
    }
  });
say({ ready: true });
