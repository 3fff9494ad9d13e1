// Browsers refuse to start a Worker from a page that was opened as a file. In such pages only, this class takes the place
// of Worker and runs the script in a hidden frame, so that the search works offline.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      // The frame's script sends by postMessage and loads further scripts by importScripts, as in a worker.
      inside.document.open();
      inside.document.write("<!doctype html><html><body></body></html>");
      inside.document.close();
      inside.postMessage = message => {
        const event = new MessageEvent("message", { data: structuredClone(message) });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      const load = address =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = address;
          script.onload = resolve;
          script.onerror = () => reject(new Error(`cannot load ${address}`));
          inside.document.body.append(script);
        });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      this.ready = load(url);
      this.ready.catch(error => {
        const event = new ErrorEvent("error", { error, message: error.message });
        this.dispatchEvent(event);
        this.onerror?.(event);
      });
    }
    postMessage(message) {
      const data = structuredClone(message);
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
