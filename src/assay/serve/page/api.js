// The server's API: JSON requests, and answers as streams of events.

async function fault(response) {
  try {
    return new Error((await response.json()).error.message);
  } catch {
    return new Error(`${response.status} ${response.statusText}`);
  }
}

export async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw await fault(response);
  return response.json();
}

export async function post(path, body, signal) {
  const response = await fetch(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await fault(response);
  return response.json();
}

// Yields each event of a streamed answer. Leaving the loop closes the connection, and the server stops computing.
export async function* stream(path, body, signal) {
  const response = await fetch(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await fault(response);
  yield* events(response);
}

// Sends a file after one line of JSON, without reading it into memory, and yields each event of the answer.
export async function* upload(path, request, file, signal) {
  const headers = { "Content-Type": "application/vnd.assay.upload", Accept: "text/event-stream" };
  const body = new Blob([JSON.stringify(request), "\n", file]);
  const response = await fetch(path, { method: "POST", headers, body, signal });
  if (!response.ok) throw await fault(response);
  yield* events(response);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new Error(event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
