// The client of evorl's servers for browsers and Node.js 22 or later: one file, nothing to build, nothing to install.
//
//   <script src="client.js"></script>                     const {EvorlClient} = require("./client.js");
//
//   const client = new EvorlClient("ws://localhost:7001/ws");
//   const agent = client.agent();                         // as many as you like over the one socket
//   await agent.init({exploit: true});
//   let action = await agent.update(null, [0.1, 0.2]);    // the first state of an episode: no reward yet
//   action = await agent.update(1.0, [0.2, 0.3]);         // the reward for the action before, the state it led to
//   await agent.update(0.0, [0.3, 0.4], true);            // the end of the episode is answered with null
//   client.close();
//
// Messages are JSON, one to a WebSocket frame: those of RLX, and `sid`, which says whose they are.

"use strict";

/** What the server refuses, in its own words, or why it cannot be asked. */
class AgentError extends Error {
  constructor(message) {
    super(message);
    this.name = "AgentError";
  }
}

/** The JSON of a message: typed arrays go as lists; what JSON has no number for is refused instead of sent as null. */
function asJson(message) {
  return JSON.stringify(message, (key, value) => {
    if (typeof value === "bigint" || (typeof value === "number" && !Number.isFinite(value))) {
      throw new TypeError(`${key} is ${value}: JSON has no such number`);
    }
    return ArrayBuffer.isView(value) && !(value instanceof DataView) ? Array.from(value) : value;
  });
}

/** One socket to a server, with the agents that speak over it. */
class EvorlClient {
  #socket = null; // a promise of the open one
  #waiting = new Map(); // by sid: what to do with the answer
  #closed = false; // by close: nothing but connect opens another socket
  #agents = 0;

  /**
   * @param {string} url for instance "ws://localhost:7001/ws", or wss:// for TLS
   * @param {{token?: string, pause?: (seconds: number) => Promise<void>}} options the token goes with every init; the
   *     pause is between two tries to connect
   */
  constructor(url, {token, pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds))} = {}) {
    this.url = url;
    this.token = token;
    this.pause = pause;
  }

  /** One more agent, with memory and episodes of its own; its name, the sid, is chosen if it is not given. */
  agent(sid = `agent-${this.#agents}`) {
    this.#agents += 1;
    return new EvorlAgent(this, sid);
  }

  /** Open the socket in at most `retry` tries, 0.5 to 6 seconds apart. The first question does so by itself. */
  connect(retry = 6) {
    this.#closed = false;
    if (this.#socket === null) {
      const opening = Promise.resolve().then(() => this.#tries(retry));
      opening.catch(() => this.#lost(opening));
      this.#socket = opening;
    }
    return this.#socket.then(() => undefined);
  }

  /** Close the socket; what was asked and is not answered yet fails. */
  close() {
    this.#closed = true;
    const socket = this.#socket;
    this.#lost(socket);
    if (socket !== null) socket.then(open => open.close(), () => undefined);
  }

  /** The meaning of the server's answer to a message, whose sid must wait for no other one. */
  async ask(message) {
    const text = asJson(message);
    const socket = await this.#open();
    return new Promise((resolve, reject) => {
      this.#waiting.set(message.sid, {resolve, reject});
      socket.send(text);
    });
  }

  /** Whether there is a socket, open or about to be. */
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
        socket.onerror = null; // it is followed by a close
        socket.onclose = () => this.#lost(mine);
        return socket;
      }
      if (attempt >= retry) throw new AgentError(`no connection is available. ${attempt} tries at ${this.url}`);
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
      // stays null: it is for nobody
    }
    const isObject = typeof answer === "object" && answer !== null;
    // An answer without a sid is about the socket itself, and nobody's question will be answered any more.
    const sids = isObject && "sid" in answer ? [answer.sid] : [...this.#waiting.keys()];
    for (const sid of sids) {
      const waiting = this.#waiting.get(sid);
      this.#waiting.delete(sid);
      if (waiting === undefined) continue; // it has left
      if (!isObject || typeof answer.response !== "string") waiting.reject(new AgentError("wrong message format"));
      else if (answer.response === "error") waiting.reject(new AgentError(answer.message ?? "unknown error"));
      else waiting.resolve("data" in answer ? answer.data : answer.response);
    }
  }
}

/** One agent: every method promises the answer; questions asked before it has come wait for their turn. */
class EvorlAgent {
  #client;
  #last = Promise.resolve();

  constructor(client, sid) {
    this.#client = client;
    this.sid = sid;
    const send = (method, name, y, x) => this.#ask("update_metrics", {data: [{method, name, y, x: x ?? null}]});
    /** Numbers for the server's curves; without x the server takes its own step. */
    this.metrics = {
      scalar: (name, y, x) => send("scalar", name, y, x),
      histogram: (name, y, x) => send("histogram", name, y, x),
    };
  }

  /** Begin, as {exploit, obs_space, action_space, name} say, all of them optional: "ready". */
  init({exploit = false, ...more} = {}) {
    const token = this.#client.token;
    return this.#ask("init", {exploit, ...(token === undefined ? {} : {token}), ...more});
  }

  /**
   * The action for a state; null after the last state of an episode.
   *
   * @param {?number} reward for the last action; null at the beginning of an episode
   * @param {?(Array|ArrayBufferView)} state numbers, in arrays in one another or in a typed array
   * @param {boolean} terminal whether the episode is over
   * @param {object} more goes along: {truncated: true} where only a limit of time has ended it
   */
  update(reward, state, terminal = false, more = {}) {
    return this.#ask("update", {reward: reward ?? null, state: state ?? null, terminal, ...more});
  }

  /** Let the agent forget the episode so far: "done". */
  reset() {
    return this.#ask("reset", {});
  }

  /** Leave: "done"; the socket stays open for the other agents. */
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
