// Client of evorl's servers for browsers and Node.js 22 or later: one file, no build step, no dependencies.
//
//   <script src="client.js"></script>                     const {EvorlClient} = require("./client.js");
//
//   const client = new EvorlClient("ws://localhost:7001/ws");
//   const agent = client.agent();                         // one socket carries up to 64 agents
//   await agent.init({exploit: true});
//   let action = await agent.update(null, [0.1, 0.2]);    // first state of an episode: no reward yet
//   action = await agent.update(1.0, [0.2, 0.3]);         // reward and next state of the last action
//   await agent.update(0.0, [0.3, 0.4], true);            // end of the episode: the action is null
//   client.close();
//
// Messages are those of RLX as JSON, one per WebSocket frame; the additional key `sid` identifies the agent.

"use strict";

/** Thrown if a request fails, with the error message of the server or another reason. */
class AgentError extends Error {
  constructor(message) {
    super(message);
    this.name = "AgentError";
  }
}

/** Encode a message as JSON, with typed arrays as lists; throw for numbers that JSON cannot represent. */
function asJson(message) {
  return JSON.stringify(message, (key, value) => {
    if (typeof value === "bigint" || (typeof value === "number" && !Number.isFinite(value))) {
      throw new TypeError(`${key} is ${value} (${typeof value}), which JSON cannot represent: send a finite number`);
    }
    return ArrayBuffer.isView(value) && !(value instanceof DataView) ? Array.from(value) : value;
  });
}

/** One socket to a server, shared by several agents. */
class EvorlClient {
  #socket = null; // promise of the open socket
  #waiting = new Map(); // by sid: the handlers of the response
  #closed = false; // set by close: only connect opens another socket
  #agents = 0;

  /**
   * @param {string} url for instance "ws://localhost:7001/ws", or wss:// for TLS
   * @param {{token?: string, pause?: (seconds: number) => Promise<void>}} options the token is sent with every init;
   *     pause waits between two connection attempts
   */
  constructor(url, {token, pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds))} = {}) {
    this.url = url;
    this.token = token;
    this.pause = pause;
  }

  /** Create an agent with separate memory and episodes; by default its name, the sid, is generated. */
  agent(sid = `agent-${this.#agents}`) {
    this.#agents += 1;
    return new EvorlAgent(this, sid);
  }

  /** Open the socket in at most `retry` attempts, 0.5 to 6 s apart. Requests also open it until `close` is called. */
  connect(retry = 6) {
    this.#closed = false;
    if (this.#socket === null) {
      const opening = Promise.resolve().then(() => this.#tries(retry));
      opening.catch(() => this.#lost(opening));
      this.#socket = opening;
    }
    return this.#socket.then(() => undefined);
  }

  /** Close the socket; pending requests fail. */
  close() {
    this.#closed = true;
    const socket = this.#socket;
    this.#lost(socket);
    if (socket !== null) socket.then(open => open.close(), () => undefined);
  }

  /** Send a message and resolve to its result; at most one request per sid may be pending. */
  async ask(message) {
    const text = asJson(message);
    const socket = await this.#open();
    return new Promise((resolve, reject) => {
      this.#waiting.set(message.sid, {resolve, reject});
      socket.send(text);
    });
  }

  /** True if the socket is open or opening. */
  get isConnected() {
    return this.#socket !== null;
  }

  async #open() {
    if (!this.#closed) await this.connect();
    const socket = this.#socket === null ? null : await this.#socket;
    if (socket === null || socket.readyState !== WebSocket.OPEN) throw new AgentError("no connection is available.");
    return socket;
  }

  async #tries(retry) {
    const mine = this.#socket;
    for (let attempt = 1; this.#socket === mine; attempt += 1) {
      const socket = new WebSocket(this.url);
      const opened = await new Promise(resolve => {
        socket.onopen = () => resolve(true);
        socket.onerror = socket.onclose = () => resolve(false);
      });
      if (opened) {
        socket.onmessage = event => this.#socket === mine && this.#answer(event.data);
        socket.onerror = null; // a close event follows
        socket.onclose = () => this.#lost(mine);
        return socket;
      }
      if (attempt >= retry) throw new AgentError(`no connection is available after ${attempt} attempts at ${this.url}`);
      await this.pause(0.5 + 5.5 * Math.random());
    }
    throw new AgentError("connection closed");
  }

  #lost(socket) {
    if (this.#socket !== socket) return;
    this.#socket = null;
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const {reject} of waiting) reject(new AgentError("connection closed"));
  }

  #answer(text) {
    let answer = null;
    try {
      answer = JSON.parse(text);
    } catch {
      // stays null: the response belongs to no request
    }
    const isObject = typeof answer === "object" && answer !== null;
    // A response without a sid concerns the socket itself: all pending requests fail.
    const sids = isObject && "sid" in answer ? [answer.sid] : [...this.#waiting.keys()];
    for (const sid of sids) {
      const waiting = this.#waiting.get(sid);
      this.#waiting.delete(sid);
      if (waiting === undefined) continue; // the agent has disconnected
      if (!isObject || typeof answer.response !== "string") waiting.reject(new AgentError("wrong message format"));
      else if (answer.response === "error") waiting.reject(new AgentError(answer.message ?? "unknown error"));
      else waiting.resolve("data" in answer ? answer.data : answer.response);
    }
  }
}

/** One agent: every method returns a promise of the response; further requests are queued. */
class EvorlAgent {
  #client;
  #last = Promise.resolve();

  constructor(client, sid) {
    this.#client = client;
    this.sid = sid;
    const send = (method, name, y, x) => this.#ask("update_metrics", {data: [{method, name, y, x: x ?? null}]});
    /** Metrics for the curves of the server; without x the server uses its own step. */
    this.metrics = {
      scalar: (name, y, x) => send("scalar", name, y, x),
      histogram: (name, y, x) => send("histogram", name, y, x),
    };
  }

  /** Start a session; the options exploit, obs_space, action_space and name may be omitted. Resolves to "ready". */
  init({exploit = false, ...more} = {}) {
    const token = this.#client.token;
    return this.#ask("init", {exploit, ...(token === undefined ? {} : {token}), ...more});
  }

  /**
   * Resolve to the action for a state; null after the last state of an episode.
   *
   * @param {?number} reward reward of the last action; null at the beginning of an episode
   * @param {?(Array|ArrayBufferView)} state numbers in nested arrays or in a typed array; null only if terminal
   * @param {boolean} terminal true if the episode is over
   * @param {object} more further entries: {truncated: true} if only a time limit has ended the episode
   */
  update(reward, state, terminal = false, more = {}) {
    return this.#ask("update", {reward: reward ?? null, state: state ?? null, terminal, ...more});
  }

  /** Abort the current episode. Resolves to "done". */
  reset() {
    return this.#ask("reset", {});
  }

  /** End the session; the socket stays open for the other agents. Resolves to "done". */
  disconnect() {
    const leave = {sid: this.sid, command: "disconnect"};
    return this.#inTurn(() => this.#client.isConnected ? this.#client.ask(leave) : "done");
  }

  #ask(command, fields) {
    return this.#inTurn(() => this.#client.ask({sid: this.sid, command, ...fields}));
  }

  #inTurn(action) {
    const turn = this.#last.then(action);
    this.#last = turn.catch(() => undefined);
    return turn;
  }
}

if (typeof module === "object" && module.exports) module.exports = {EvorlClient, EvorlAgent, AgentError};
else Object.assign(globalThis, {EvorlClient, EvorlAgent, AgentError});
