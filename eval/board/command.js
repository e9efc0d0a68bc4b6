// Commands with a button that copies them, for both pages of the board.

function command(id, label, text) {
  const code = el("code", {}, text);
  const copy = async event => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {  // not allowed: select it for Ctrl-C
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  };
  return el("div", { class: "command" }, el("p", {}, label), code,
    el("button", { type: "button", "data-key": `${id} ${label}`, "aria-label": `Copy the command: ${label}`, on: { click: copy } }, "Copy"));
}
