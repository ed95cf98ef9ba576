// A worker in JavaScript: JSON lines on the standard streams.
const lines = require("node:readline").createInterface({ input: process.stdin });
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
say({ ready: true });
lines.on("line", (line) => {
  const message = JSON.parse(line);
  if (message.type === "init") say({ event: ["init", message.config] });
  if (message.type === "retire") process.exit(0);
  if (message.type !== "job") return;
  const [what, ...args] = message.args;
  const id = message.id;
  if (what === "echo") return say({ id, result: args });
  if (what === "square") return say({ id, result: Number(args[0]) ** 2 });
  if (what === "fail") return say({ id, error: { code: "no", message: "as told", retryable: true } });
  if (what === "progress") {
    say({ id, progress: "half" });
    return say({ id, result: null });
  }
  if (what === "nonsense") return process.stdout.write("this is no JSON\n");
  if (what === "hang") for (;;);
});
