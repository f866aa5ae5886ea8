// An answer as a stream of parts, from a model with a chat template or without one.
//
// Parts: {text, reasoning, tokens, usage, speed, reason}. A base model has no template: it continues the text of the
// conversation as it stands, through /completion.

import { stream } from "./api.js";

const ALTERNATIVES = 5;
const RAW_TOKENS = 256; // a base model seldom ends by itself

// The text that a base model continues.
export const rawPrompt = (messages) => messages.reduce((text, { role, content }) => text + (role === "user" && text ? `\n${content}` : content), "");

// What is kept of a token: its bytes are not needed.
const kept = ({ token, id, logprob, top_logprobs: top }) => ({ token, id, logprob, top_logprobs: top.map((t) => ({ token: t.token, id: t.id, logprob: t.logprob })) });

async function* chat({ model, messages, settings, signal }) {
  const request = { model, messages, ...settings, stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: ALTERNATIVES };
  for await (const event of stream("/v1/chat/completions", request, signal)) {
    const choice = event.choices[0];
    yield {
      text: choice?.delta.content, reasoning: choice?.delta.reasoning_content, tokens: (choice?.logprobs?.content ?? []).map(kept),
      reason: choice?.finish_reason, speed: event.timings?.tokens_per_second, usage: event.usage && {
        prompt: event.usage.prompt_tokens, cached: event.usage.prompt_tokens_details.cached_tokens, answer: event.usage.completion_tokens },
    };
  }
}

async function* continuation({ model, messages, settings, signal }) {
  const request = { model, prompt: rawPrompt(messages), max_tokens: RAW_TOKENS, ...settings, stream: true, n_probs: ALTERNATIVES };
  for await (const event of stream("/completion", request, signal)) {
    yield {
      text: event.content, tokens: (event.completion_probabilities ?? []).map(kept), reason: event.stop ? { eos: "stop", limit: "length" }[event.stop_type] ?? event.stop_type : null,
      speed: event.timings?.predicted_per_second, usage: event.stop && { prompt: event.tokens_evaluated, cached: event.tokens_cached, answer: event.tokens_predicted },
    };
  }
}

export const answerOf = (asked) => (asked.raw ? continuation(asked) : chat(asked));
