// The search runs in a worker, and browsers start none from a page of a file. There it runs in a frame that nobody sees.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve, reject) => {
        this.frame.addEventListener("load", () => {
          const inside = this.frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = async (...urls) => {
            for (const each of urls) await this.load(each);
          };
          this.load(url).then(() => resolve(inside), reject);
        }, { once: true });
      });
      this.frame.srcdoc = "<!doctype html>";
      document.documentElement.appendChild(this.frame);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${url}`));
        this.frame.contentDocument.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
