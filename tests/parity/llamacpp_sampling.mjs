// node llamacpp_sampling.mjs MODULES JOB ANSWER: of {path, ids, options}, for each of the options the ids that may be
// drawn after the last token, with their probabilities. MODULES is the folder in which node-llama-cpp was installed.
import fs from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, job, answer] = process.argv.slice(2);
const found = createRequire(`${modules}/`).resolve("node-llama-cpp");
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(found).href);
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error });
const precise = {
  contextSize: 256, batchSize: 64, flashAttention: false, ignoreMemorySafetyChecks: true,
  experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32",
};
const { path, ids, options } = JSON.parse(fs.readFileSync(job));
const model = await llama.loadModel({ modelPath: path, gpuLayers: 0 });
const answers = [];
for (const { penalties, ...settings } of options) {
  const context = await model.createContext(precise);
  const repeatPenalty = penalties ? { ...penalties, punishTokens: ids } : undefined;
  const generateNext = { token: true, probabilities: true, options: { ...settings, repeatPenalty } };
  const asked = [...ids.slice(0, -1), [ids.at(-1), { generateNext }]];
  const rows = await context.getSequence().controlledEvaluate(asked);
  answers.push([...rows.at(-1).next.probabilities]);
  await context.dispose();
}
fs.writeFileSync(answer, JSON.stringify(answers));
await model.dispose();
await llama.dispose();
