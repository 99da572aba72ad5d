// Browsers do not start web workers on file:// pages. There, run the search worker inside an invisible frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      this.loaded = new Promise((resolve) => { inside.confrereLoaded = resolve; });
      inside.confrereReply = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.inside = inside;
      inside.document.open();
      inside.document.write(
        "<script>postMessage = (data) => confrereReply(data);</" + "script>" +
        "<script src='" + url + "' onload='confrereLoaded()'></" + "script>"
      );
      inside.document.close();
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
