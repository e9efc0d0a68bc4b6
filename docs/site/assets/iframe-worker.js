// Browsers start no web worker from a file:// address. There, the site's search runs its worker script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const scope = (this.scope = this.frame.contentWindow)
      scope.document.open()
      scope.document.write("<!doctype html><body></body>")
      scope.document.close()
      scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = scope.document.createElement("script")
      script.src = url
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      }
      script.onerror = () => this.dispatchEvent(new Event("error"))
      scope.document.body.appendChild(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
