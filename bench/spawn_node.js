// SPDX-License-Identifier: MIT
// Prints the microseconds of one /bin/true by child_process, output captured: spawn_node.js COUNT
const { spawn } = require("node:child_process");

function runOnce() {
  return new Promise((resolve, reject) => {
    const child = spawn("/bin/true", [], { stdio: ["ignore", "pipe", "pipe"] });
    child.stdout.resume();
    child.stderr.resume();
    child.on("error", reject);
    child.on("close", resolve);
  });
}

async function main(count) {
  await runOnce();
  const start = process.hrtime.bigint();
  for (let i = 0; i < count; i++) await runOnce();
  console.log(Number(process.hrtime.bigint() - start) / 1000 / count);
}

main(Number(process.argv[2]));
