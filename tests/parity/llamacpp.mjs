// node llamacpp.mjs MODULES JOBS FOLDER: for each {name, path, ids}, the probabilities of all tokens after each token.
// MODULES is the folder in which node-llama-cpp was installed. An error becomes {error}.
import fs from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, jobs, folder] = process.argv.slice(2);
const found = createRequire(`${modules}/`).resolve("node-llama-cpp");
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(found).href);
const said = [];
const llama = await getLlama({
  gpu: false, build: "never", logLevel: LlamaLogLevel.error, logger: (_, text) => said.push(text.trim()),
});
const precise = {
  contextSize: 256, batchSize: 64, flashAttention: false, ignoreMemorySafetyChecks: true,
  experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32",
};
const options = { temperature: 1, topK: 0, topP: 1, minP: 0 };
for (const { name, path, ids } of JSON.parse(fs.readFileSync(jobs))) {
  said.length = 0;
  let answer;
  try {
    const model = await llama.loadModel({ modelPath: path, gpuLayers: 0 });
    const context = await model.createContext(precise);
    const asked = ids.map((id) => [id, { generateNext: { probabilities: true, options } }]);
    const rows = await context.getSequence().controlledEvaluate(asked);
    answer = rows.map(({ next }) => [...next.probabilities].sort(([a], [b]) => a - b).map(([, share]) => share));
    await context.dispose();
    await model.dispose();
  } catch (error) {
    answer = { error: said.find((line) => line.includes("error")) ?? `${error}` };
  }
  fs.writeFileSync(`${folder}/${name}.json`, JSON.stringify(answer));
}
await llama.dispose();
