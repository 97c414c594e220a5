// Browsers start no workers on pages opened from the disk, and the search of the site runs in one. Here a hidden frame
// takes its place, so that the site needs neither a server nor the network.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = this.load(url);
      this.inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script");
        Object.assign(script, { src: new URL(url, location).href, onload: resolve, onerror: reject });
        this.inner.document.head.append(script);
      });
    }
    async postMessage(data) {
      await this.loaded;
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }
  };
}
